"""A client's own number, which stays when Flower gives its node another id, and its examples."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedac.errors import InputError
from fedac.flower.messages import (
    ASK,
    CLIENT,
    CONFIG,
    EXAMPLES,
    MOST_EXAMPLES,
    QUESTION,
    WEIGHT,
    split_config,
)
from fedac.require import require_count

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


def tell_number(app: ClientApp, examples: Callable[[Context], int] | None = None) -> ClientApp:
    """Let a ClientApp of your own tell the server its number when it asks; return the app.

    The server draws clients by their numbers (``sample``), so that a run repeats although Flower
    gives nodes other ids every time. `client_app` does it already. The question is a message of a
    type of its own, "query.fedac": it does not meet a query function of yours.

    Parameters
    ----------
    app : ClientApp
        Yours.
    examples : callable, optional
        ``examples(context) -> int``, the "num-examples" that the client will reply with. The server
        asks for it with control variates and ``weighting="examples"``, to know how much of all
        examples a round has.

    Examples
    --------
    >>> app = tell_number(ClientApp())
    """

    @app.query(QUESTION.partition(".")[2])
    def tell(message: Message, context: Context) -> Message:
        record = message.content.config_records.get(CONFIG, ConfigRecord())
        asked = record.get(ASK)
        if asked != CLIENT:
            raise InputError(f"the server asks for {asked!r:.40}, which this client does not know")
        told: dict[str, Any] = {CLIENT: str(client_number(context))}
        if examples is not None and record.get(EXAMPLES):
            config, _ = split_config(record)
            told[WEIGHT] = require_count(WEIGHT, examples(with_config(context, config)))
        return Message(RecordDict({CLIENT: ConfigRecord(told)}), reply_to=message)

    return app


def with_config(context: Context, config: Mapping[str, Any]) -> Context:
    """Return a context whose run_config also has what the server sent of the user's."""
    context = copy.copy(context)
    context.run_config = {**context.run_config, **config}
    return context


def question(node: int, config: Mapping[str, Any], *, examples: bool) -> Message:
    """Return the message by which the server asks a node for its client's number."""
    record = ConfigRecord({**config, ASK: CLIENT, EXAMPLES: examples})
    return Message(RecordDict({CONFIG: record}), node, QUESTION)


def examples_in(reply: Message) -> float | None:
    """Return the number of examples in an answer, or None if there is none that can be used."""
    if reply.has_error():
        return None
    told = reply.content.config_records.get(CLIENT, ConfigRecord()).get(WEIGHT)
    known = isinstance(told, int | float) and 0 < told <= MOST_EXAMPLES
    return float(told) if known else None  # type: ignore[arg-type]


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
