"""The process at the other end of `processes`: answers one message after the other."""

from __future__ import annotations

import pickle
import traceback

from flwr.app import Context, Message
from flwr.common.constant import ErrorCode

from fedac.flower._grid.inprocess import App, call_app, error_reply, take_identity
from fedac.processes import Parent


def main() -> None:
    """Serve the process that started this one."""
    parent = Parent()
    take_identity()
    app = _load(parent.read())
    parent.write("ready")
    while True:
        message: Message
        context: Context
        message, context = parent.read()
        if isinstance(app, str):
            reply = error_reply(message, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, app)
            parent.write((reply, context.state))
        else:
            parent.write(call_app(app, message, context))


def _load(pickled: bytes) -> App | str:
    """Return the app, or why it cannot be loaded."""
    try:
        app: App = pickle.loads(pickled)
    except BaseException:  # whatever happens when the user's modules are imported
        return traceback.format_exc()
    return app


if __name__ == "__main__":
    main()
