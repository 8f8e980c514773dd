"""Check every reply before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Array, ConfigRecord, Message, RecordDict

from fedac.flower.checks import BadArraysError, read_like
from fedac.flower.messages import MEMORY, ROUND, WEIGHT, NamedArrays, NDArray

CLIENT = re.compile(r"\d{1,20}")

# From a record, and what was sent, to arrays like those; raises BadArraysError.
Reader = Callable[[Mapping[str, Array], NamedArrays], dict[str, NDArray]]


@dataclass(frozen=True)
class Reply:
    """A reply that can be used.

    A client with memory also says its number, and whether it had to begin its memory anew.
    """

    weight: float
    metrics: Mapping[str, float]
    arrays: NamedArrays
    client: str | None = None
    memory_lost: bool = False


class BadReplyError(Exception):
    """A reply that must not be used; the message says why."""


def check_reply(
    message: Message,
    *,
    server_round: int,
    expected: NamedArrays | None = None,
    read: Reader = read_like,
) -> Reply:
    """Return the content of a good reply, or raise `BadReplyError`.

    A good reply has exactly one MetricRecord of finite numbers, with this round's number and a
    positive weight. A training reply also has exactly one ArrayRecord with the keys, shapes and
    types of `expected`, all finite; without `expected`, arrays are ignored. `read` is for replies
    that are rounded.
    """
    if message.has_error():
        # Flower sends a traceback; its last line names the error.
        lines = (message.error.reason or "").strip().splitlines() or ["no reason given"]
        raise BadReplyError(f"error {message.error.code}: {lines[-1].strip()[:300]}")
    weight, metrics = _metrics(message.content, server_round)
    arrays = {} if expected is None else _arrays(message.content, expected, read)
    return Reply(weight, metrics, arrays, *_memory(message.content))


def sort_replies(
    replies: Iterable[Message],
    server_round: int,
    expected: NamedArrays | None = None,
    read: Reader = read_like,
) -> tuple[dict[int, Reply], dict[int, str]]:
    """Return the good replies, and why the others are bad, by node."""
    good: dict[int, Reply] = {}
    bad: dict[int, str] = {}
    for message in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            good[node] = check_reply(
                message, server_round=server_round, expected=expected, read=read
            )
        except BadReplyError as reason:
            bad[node] = str(reason)
    return good, bad


def _metrics(content: RecordDict, server_round: int) -> tuple[float, dict[str, float]]:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} MetricRecords instead of one")
    numbers = {k: float(v) for k, v in records[0].items() if isinstance(v, int | float)}
    for key in (ROUND, WEIGHT):
        if key not in numbers:
            raise BadReplyError(f"missing metric: {key} (was the client made by client_app?)")
    not_finite = [key for key, value in numbers.items() if not math.isfinite(value)]
    if not_finite:
        raise BadReplyError(f"not finite: metric {', '.join(not_finite)}")
    reply_round, weight = numbers.pop(ROUND), numbers.pop(WEIGHT)
    if reply_round != server_round:
        raise BadReplyError(f"from round {reply_round:g}, not {server_round}")
    if weight <= 0:
        raise BadReplyError(f"weight must be above 0: {weight:g}")
    return weight, numbers


def _arrays(content: RecordDict, expected: NamedArrays, read: Reader) -> dict[str, NDArray]:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    try:
        return read(records[0], expected)
    except BadArraysError as reason:
        raise BadReplyError(str(reason)) from reason


def _memory(content: RecordDict) -> tuple[str | None, bool]:
    """Return the client's number if it says so, and whether it has lost its memory."""
    record = content.config_records.get(MEMORY, ConfigRecord())
    client = record.get("client")
    known = isinstance(client, str) and CLIENT.fullmatch(client)
    return str(client) if known else None, record.get("lost") is True
