"""Check every reply before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, Message, RecordDict

from fedac.flower.messages import ROUND, WEIGHT, NamedArrays, NDArray


@dataclass(frozen=True)
class Reply:
    """A reply that can be used."""

    weight: float
    metrics: Mapping[str, float]
    arrays: NamedArrays


class BadReplyError(Exception):
    """A reply that must not be used; the message says why."""


def check_reply(
    message: Message, *, server_round: int, expected: NamedArrays | None = None
) -> Reply:
    """Return the content of a good reply, or raise `BadReplyError`.

    A good reply has exactly one MetricRecord of finite numbers, with this round's number and a
    positive weight. A training reply also has exactly one ArrayRecord with the keys, shapes and
    types of `expected`, all finite; without `expected`, arrays are ignored.
    """
    if message.has_error():
        # Flower sends a traceback; its last line names the error.
        lines = (message.error.reason or "").strip().splitlines() or ["no reason given"]
        raise BadReplyError(f"error {message.error.code}: {lines[-1].strip()[:300]}")
    weight, metrics = _metrics(message.content, server_round)
    arrays = {} if expected is None else _arrays(message.content, expected)
    return Reply(weight, metrics, arrays)


def sort_replies(
    replies: Iterable[Message], server_round: int, expected: NamedArrays | None = None
) -> tuple[dict[int, Reply], dict[int, str]]:
    """Return the good replies, and why the others are bad, by node."""
    good: dict[int, Reply] = {}
    bad: dict[int, str] = {}
    for message in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            good[node] = check_reply(message, server_round=server_round, expected=expected)
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


def _arrays(content: RecordDict, expected: NamedArrays) -> dict[str, NDArray]:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    for problem, keys in (
        ("missing", expected.keys() - records[0].keys()),
        ("extra", records[0].keys() - expected.keys()),
    ):
        if keys:
            raise BadReplyError(f"{problem} key: {', '.join(sorted(keys))}")
    return {key: _array(key, records[0][key], expected[key]) for key in expected}


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
