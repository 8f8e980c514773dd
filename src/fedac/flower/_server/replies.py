# SPDX-License-Identifier: Apache-2.0
"""Check every reply before it is used: nothing that a client sends is trusted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ConfigRecord, Error, Message, RecordDict

from fedac.flower._arrays import BadArraysError, NamedArrays, NDArray, checksum, read_like
from fedac.flower._task import CLIENT, MEMORY, ROUND, STEPS, WEIGHT

MOST_EXAMPLES = 2.0**53  # above it, floats skip whole numbers
LONGEST_REASON = 300
CLIENT_ID = re.compile(r"\d{1,20}")
SIGNATURE = re.compile(r"client (\d{1,20}): (.*)")

# From the record of a reply, and what was sent, to arrays like those; raises BadArraysError.
Reader = Callable[[Mapping[str, Array], NamedArrays], dict[str, NDArray]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply that can be used."""

    node: int
    weight: float  # its "num-examples"
    metrics: Mapping[str, float]  # the other metrics
    arrays: NamedArrays
    steps: float = 0.0  # its local steps, if the algorithm asks for them
    client: str | None = None  # the client id, if it is in the reply
    memory_lost: bool = False  # the client started its memory again
    staleness: int = 0  # steps of the server while the client worked
    records: RecordDict = field(default_factory=RecordDict)  # the reply without its arrays


class BadReplyError(Exception):
    """A reply that must not be used: the reason, and the client id if it is known."""

    def __init__(self, reason: str, client: str | None = None) -> None:
        super().__init__(reason)
        self.client = client


def check_replies(
    replies: Iterable[Message], learn: Callable[[int, str | None], object], **options: Any
) -> tuple[dict[int, Reply], dict[int, str]]:
    """Return good replies, and the reasons why others are bad, by node and in their order.

    ``learn(node, client id)`` is called for each of them. For the options see `check_reply`.
    """
    good, bad = dict[int, Reply](), dict[int, str]()
    for message in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            good[node] = check_reply(message, **options)
            learn(node, good[node].client)
        except BadReplyError as error:
            bad[node] = str(error)
            learn(node, error.client)
    return good, bad


def check_reply(
    message: Message,
    *,
    server_round: int,
    expected: NamedArrays | None = None,
    read: Reader = read_like,
    remembered: bool = False,
    counted: bool = False,
) -> Reply:
    """Return the content of a good reply, or raise `BadReplyError`.

    A good reply has exactly one MetricRecord, with a positive weight. A training reply also has
    the number of this round, and exactly one ArrayRecord with the keys, shapes and types of
    `expected`, all finite. Without `expected`, arrays are ignored. `read` is for replies that
    differ from `expected`, such as compressed ones. If clients remember what they sent, nothing may
    have changed it since. If steps are `counted`, the reply has a whole number of local steps.
    """
    if message.has_error():
        raise _error(message.error)
    content = message.content
    weight, metrics = _metrics(content, server_round, training=expected is not None)
    steps = _steps(metrics) if counted else 0.0
    arrays: NamedArrays = {}
    if expected is not None:
        records = list(content.array_records.values())
        if len(records) != 1:
            raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
        try:
            arrays = read(records[0], expected)
        except BadArraysError as reason:
            raise BadReplyError(str(reason)) from reason
    told, memory = (content.config_records.get(k, ConfigRecord()) for k in (CLIENT, MEMORY))
    if remembered and "checksum" in memory and memory["checksum"] != checksum(records[0]):
        raise BadReplyError(
            "its arrays were changed after training, by a modifier such as LocalDpMod, but not in "
            "the client's memory: control variates would drift; use an algorithm without them"
        )
    others = {k: v for k, v in content.items() if k not in content.array_records}
    client, lost = as_client_id(told.get(CLIENT)), memory.get("lost") is True
    node = message.metadata.src_node_id
    return Reply(
        node=node, weight=weight, metrics=metrics, arrays=arrays, steps=steps, client=client,
        memory_lost=lost, records=RecordDict(others),
    )  # fmt: skip


def as_client_id(given: object) -> str | None:
    """Return a client id from outside, or None if it is not one."""
    return given if isinstance(given, str) and CLIENT_ID.fullmatch(given) else None


def _error(error: Error) -> BadReplyError:
    """Return one line about an error of Flower's, with the client id that `signed` put in it."""
    lines = (error.reason or "").strip().removesuffix("'>").splitlines() or ["no reason given"]
    for line in reversed(lines):
        if found := SIGNATURE.search(line):
            return BadReplyError(f"error {error.code}: {found[2][:LONGEST_REASON]}", found[1])
    # The last line of a traceback that is not indented names the exception.
    starts = [i for i, line in enumerate(lines) if line[:1].strip()]
    text = " ".join(" ".join(lines[starts[-1] if starts else 0 :]).split())[:LONGEST_REASON]
    return BadReplyError(f"error {error.code}: {text}")


def _steps(metrics: Mapping[str, float]) -> float:
    steps = metrics.get(STEPS)
    if steps is None:
        raise BadReplyError(f"missing metric: {STEPS}")
    if not (steps.is_integer() and 1 <= steps <= MOST_EXAMPLES):
        raise BadReplyError(f"{STEPS} must be a whole number from 1 to 2^53: {steps:g}")
    return steps


def _metrics(
    content: RecordDict, server_round: int, *, training: bool
) -> tuple[float, dict[str, float]]:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} MetricRecords instead of one")
    numbers = {k: float(v) for k, v in records[0].items() if isinstance(v, int | float)}
    # Flower's own clients, which may evaluate for us, do not report the round.
    for name in (ROUND, WEIGHT) if training else (WEIGHT,):
        if name not in numbers:
            raise BadReplyError(f"missing metric: {name}")
    reply_round, weight = numbers.pop(ROUND, server_round), numbers.pop(WEIGHT)
    if reply_round != server_round:
        raise BadReplyError(f"from round {reply_round:g}, not {server_round}")
    if not math.isfinite(weight):
        raise BadReplyError(f"not finite: metric {WEIGHT}")
    if not 0 < weight <= MOST_EXAMPLES:
        raise BadReplyError(f"weight must be above 0 and at most 2^53: {weight:g}")
    return weight, numbers
