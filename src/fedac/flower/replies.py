"""Check every reply before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, Message, RecordDict

from fedac.flower.messages import ROUND, WEIGHT, NamedArrays, NDArray


@dataclass(frozen=True)
class Reply:
    """A reply that can be used."""

    arrays: NamedArrays
    weight: float
    metrics: Mapping[str, float]


class BadReplyError(Exception):
    """A reply that must not be used; the message says why."""


def check_reply(message: Message, *, expected: NamedArrays, server_round: int) -> str | None:
    """Return why a training reply is bad, or None if it is good.

    A good reply has exactly one ArrayRecord with the keys, shapes and types of `expected`, all
    finite, and exactly one MetricRecord of finite numbers, with this round's number and a positive
    weight.
    """
    try:
        read_training_reply(message, expected=expected, server_round=server_round)
    except BadReplyError as reason:
        return str(reason)
    return None


def read_training_reply(message: Message, *, expected: NamedArrays, server_round: int) -> Reply:
    """Return the content of a training reply, or raise `BadReplyError`."""
    content = _content(message)
    weight, metrics = _metrics(content, server_round)
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    (record,) = records
    missing, extra = sorted(set(expected) - set(record)), sorted(set(record) - set(expected))
    if missing:
        raise BadReplyError(f"missing key: {', '.join(missing)}")
    if extra:
        raise BadReplyError(f"extra key: {', '.join(extra)}")
    arrays = {key: _array(key, record[key], expected[key]) for key in expected}
    return Reply(arrays, weight, metrics)


def read_evaluation_reply(message: Message, *, server_round: int) -> Reply:
    """Return the content of an evaluation reply, or raise `BadReplyError`."""
    weight, metrics = _metrics(_content(message), server_round)
    return Reply({}, weight, metrics)


def sort_replies(
    replies: Iterable[Message], read: Callable[[Message], Reply]
) -> tuple[dict[int, Reply], dict[int, str]]:
    """Return the good replies, and why the others are bad, by node."""
    good: dict[int, Reply] = {}
    bad: dict[int, str] = {}
    for message in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            good[node] = read(message)
        except BadReplyError as reason:
            bad[node] = str(reason)
    return good, bad


def _content(message: Message) -> RecordDict:
    if message.has_error():
        # Flower sends a traceback; its last line names the error.
        lines = (message.error.reason or "").strip().splitlines() or ["no reason given"]
        raise BadReplyError(f"error {message.error.code}: {lines[-1].strip()[:300]}")
    if not message.has_content():
        raise BadReplyError("empty")
    return message.content


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


def _array(key: str, sent: Array, expected: NDArray) -> NDArray:
    try:
        array = sent.numpy()
    except Exception as error:  # bytes from outside may fail NumPy in any way
        raise BadReplyError(f"unreadable: {key}: {str(error)[:80]}") from error
    if array.dtype != expected.dtype:
        raise BadReplyError(f"wrong type: {key} is {array.dtype}, not {expected.dtype}")
    if array.shape != expected.shape:
        raise BadReplyError(f"wrong shape: {key} is {array.shape}, not {expected.shape}")
    if not np.isfinite(array).all():
        raise BadReplyError(f"not finite: {key}")
    return array
