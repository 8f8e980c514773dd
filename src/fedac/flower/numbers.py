"""A client's own number, which stays the same where Flower gives its node another id."""

from __future__ import annotations

import re

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedac.errors import InputError
from fedac.flower.messages import ASK, CLIENT, CONFIG, QUESTION

NUMBER = re.compile(r"\d{1,20}")


def client_number(context: Context) -> int:
    """Return a client's number: its ``partition-id``, or without one its node id.

    Examples
    --------
    >>> config = {"partition-id": 3, "num-partitions": 8}
    >>> client_number(Context(1, 77, config, RecordDict(), {}))
    3
    """
    return int(context.node_config.get("partition-id", context.node_id))


def tell_number(app: ClientApp) -> ClientApp:
    """Let a ClientApp of your own tell the server its number when it asks; return the app.

    The server draws clients by their numbers (``sample``), so that a run repeats although Flower
    gives nodes other ids every time. `client_app` does it already. The question is a message of a
    type of its own, "query.fedac": it does not meet a query function of yours.

    Examples
    --------
    >>> app = tell_number(ClientApp())
    """

    @app.query(QUESTION.partition(".")[2])
    def tell(message: Message, context: Context) -> Message:
        asked = message.content.config_records.get(CONFIG, ConfigRecord()).get(ASK)
        if asked != CLIENT:
            raise InputError(f"the server asks for {asked!r:.40}, which this client does not know")
        number = ConfigRecord({CLIENT: str(client_number(context))})
        return Message(RecordDict({CLIENT: number}), reply_to=message)

    return app


def question(node: int) -> Message:
    """Return the message by which the server asks a node for its client's number."""
    content = RecordDict({CONFIG: ConfigRecord({ASK: CLIENT})})
    return Message(content, node, QUESTION)


def number_in(reply: Message) -> str | None:
    """Return the number in an answer, or None if there is none that can be trusted."""
    if reply.has_error():
        return None
    return as_number(reply.content.config_records.get(CLIENT, ConfigRecord()).get(CLIENT))


def as_number(given: object) -> str | None:
    """Return a client's number as it came from outside, or None if it is not one.

    >>> as_number("17"), as_number("../17"), as_number(17)
    ('17', None, None)
    """
    return given if isinstance(given, str) and NUMBER.fullmatch(given) else None
