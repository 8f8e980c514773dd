"""One call of a ClientApp, as Flower makes it: whatever happens, there is a reply."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedac.flower.copies import copy_message, copy_records

App = Callable[[Message, Context], Message]


def call_app(app: App, message: Message, context: Context) -> tuple[Message, RecordDict]:
    """Return an app's reply, and the state of its node afterwards.

    A call that fails gives an error with the traceback and leaves the state as it was.
    """
    before = copy_records(context.state)
    try:
        reply = app(message, context)
        mine = isinstance(reply, Message) and reply.metadata.reply_to_message_id
        if mine != message.metadata.message_id:
            got = "another Message" if isinstance(reply, Message) else f"{reply!r:.80}"
            raise TypeError(
                f"a ClientApp must return Message(content, reply_to=message), not {got}"
            )
        return copy_message(reply), copy_records(context.state)
    except BaseException:  # sys.exit too: the node fails, not the federation
        return error_reply(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION), before


def error_reply(message: Message, code: int, reason: str | None = None) -> Message:
    """Return a reply with an error; its reason is the current exception unless one is given."""
    return Message(Error(code, reason or traceback.format_exc()), reply_to=message)


def take_identity() -> None:
    """Let this process make messages, as Flower does in the processes that it starts."""
    for name in ("_task_id", "_run_id", "_node_id"):
        if getattr(TaskIdentity, name) is None:
            setattr(TaskIdentity, name, SUPERLINK_NODE_ID)
