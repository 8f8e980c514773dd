"""Read arrays that came from outside: nothing about them is taken on trust."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Message, RecordDict

from fedac.flower._arrays import (
    CLIENT,
    MEMORY,
    MOST_EXAMPLES,
    ROUND,
    WEIGHT,
    NamedArrays,
    NDArray,
    checksum,
)
from fedac.flower._client.signatures import RAISED, explain
from fedac.flower._server.nodes import as_number


class BadArraysError(Exception):
    """Arrays that must not be used; the message says why."""


def read_like(record: Mapping[str, Array], expected: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays of a record that has the keys, shapes and types of `expected`, all finite.

    Examples
    --------
    >>> read_like({"w/0": Array(np.ones(3))}, {"w/0": np.zeros(2)})
    Traceback (most recent call last):
    ...
    fedac.flower._server.replies.BadArraysError: wrong shape: w/0 is (3,), not (2,)
    """
    require_keys(record, expected)
    return {key: _array(key, record[key], expected[key]) for key in expected}


def require_keys(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse missing and extra keys."""
    for problem, keys in (
        ("missing", expected.keys() - found.keys()),
        ("extra", found.keys() - expected.keys()),
    ):
        if keys:
            raise BadArraysError(f"{problem} key: {', '.join(sorted(keys))}")


def require_like(key: str, array: NDArray, expected: NDArray) -> None:
    """Refuse an array of another type or shape."""
    if array.dtype != expected.dtype:
        raise BadArraysError(f"wrong type: {key} is {array.dtype}, not {expected.dtype}")
    if array.shape != expected.shape:
        raise BadArraysError(f"wrong shape: {key} is {array.shape}, not {expected.shape}")


def _array(key: str, sent: Array, expected: NDArray) -> NDArray:
    try:
        array = sent.numpy()
    except Exception as error:  # bytes from outside may fail NumPy in any way
        raise BadArraysError(f"unreadable: {key}: {str(error)[:80]}") from error
    require_like(key, array, expected)
    if not np.isfinite(array).all():
        raise BadArraysError(f"not finite: {key}")
    return array


# --- Check every reply before it is used.

# From a record, and what was sent, to arrays like those; raises BadArraysError.
Reader = Callable[[Mapping[str, Array], NamedArrays], dict[str, NDArray]]


@dataclass(frozen=True)
class Reply:
    """A reply that can be used.

    A client of ours also says its number, and whether it had to begin its memory anew. `records`
    is the reply without its arrays, for metrics that are the user's own to aggregate.
    """

    weight: float
    metrics: Mapping[str, float]
    arrays: NamedArrays
    client: str | None = None
    memory_lost: bool = False
    records: RecordDict = field(default_factory=RecordDict)


class BadReplyError(Exception):
    """A reply that must not be used; the message says why.

    The client may have said its number. A `foreign` one may not know our messages at all.
    """

    client: str | None = None
    foreign: bool = False


def check_reply(
    message: Message,
    *,
    server_round: int,
    expected: NamedArrays | None = None,
    read: Reader = read_like,
    remembered: bool = False,
) -> Reply:
    """Return the content of a good reply, or raise `BadReplyError`.

    A good reply has exactly one MetricRecord, with a positive weight. A training reply also has
    this round's number, and exactly one ArrayRecord with the keys, shapes and types of `expected`,
    all finite; without `expected`, arrays are ignored. `read` is for replies that are rounded. If
    clients remember what they sent, it must not have been changed since.
    """
    if message.has_error():
        text, client = explain(message.error)
        bad = BadReplyError(f"error {message.error.code}: {text}")
        bad.client, bad.foreign = client, client is None and message.error.code == RAISED
        raise bad
    weight, metrics = _metrics(message.content, server_round, training=expected is not None)
    arrays = {} if expected is None else _arrays(message.content, expected, read)
    if remembered:
        _require_unchanged(message.content)
    others = {k: v for k, v in message.content.items() if k not in message.content.array_records}
    return Reply(weight, metrics, arrays, *_memory(message.content), RecordDict(others))


@dataclass
class Sorted:
    """The good replies, why the others are bad, and what they tell of their clients, by node."""

    good: dict[int, Reply] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    clients: dict[int, str] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)


def sort_replies(
    replies: Iterable[Message],
    server_round: int,
    expected: NamedArrays | None = None,
    read: Reader = read_like,
    remembered: bool = False,
) -> Sorted:
    """Tell good replies from bad ones, by node; see `check_reply`."""
    found = Sorted()
    for message in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            reply = check_reply(
                message,
                server_round=server_round,
                expected=expected,
                read=read,
                remembered=remembered,
            )
            found.good[node], client = reply, reply.client
        except BadReplyError as reason:
            found.bad[node], client = str(reason), reason.client
            if reason.foreign:
                found.foreign.add(node)
        if client is not None:
            found.clients[node] = client
    return found


def _metrics(
    content: RecordDict, server_round: int, *, training: bool
) -> tuple[float, dict[str, float]]:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} MetricRecords instead of one")
    numbers = {k: float(v) for k, v in records[0].items() if isinstance(v, int | float)}
    # Flower's own clients, which may evaluate for us, do not say the round.
    reply_round = numbers.pop(ROUND, None if training else server_round)
    if reply_round is None:
        bad = BadReplyError(f"missing metric: {ROUND}")
        bad.foreign = True
        raise bad
    if WEIGHT not in numbers:
        raise BadReplyError(f"missing metric: {WEIGHT}")
    weight = numbers.pop(WEIGHT)
    if not math.isfinite(weight):
        raise BadReplyError(f"not finite: metric {WEIGHT}")
    if reply_round != server_round:
        raise BadReplyError(f"from round {reply_round:g}, not {server_round}")
    if not 0 < weight <= MOST_EXAMPLES:
        raise BadReplyError(f"weight must be above 0 and at most 2^53: {weight:g}")
    return weight, numbers


def _arrays(content: RecordDict, expected: NamedArrays, read: Reader) -> dict[str, NDArray]:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    try:
        return read(records[0], expected)
    except BadArraysError as reason:
        raise BadReplyError(str(reason)) from reason


def _require_unchanged(content: RecordDict) -> None:
    """Refuse arrays that differ from those that the client remembers having sent."""
    record = content.config_records.get(MEMORY, ConfigRecord())
    (arrays,) = content.array_records.values()
    if "checksum" in record and record["checksum"] != checksum(arrays):
        raise BadReplyError(
            "its arrays were changed after training, by a modifier such as LocalDpMod: the client "
            "remembers others, and the control variates would drift; use an algorithm without them"
        )


def _memory(content: RecordDict) -> tuple[str | None, bool]:
    """Return the client's number if it says so, and whether it has lost its memory."""
    number, memory = (content.config_records.get(k, ConfigRecord()) for k in (CLIENT, MEMORY))
    return as_number(number.get(CLIENT)), memory.get("lost") is True
