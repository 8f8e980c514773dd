"""What comes back: every reply is checked before anybody uses it."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, Message, MetricRecord, RecordDict

from fedac.flower.aggregate import Array as NumPyArray
from fedac.flower.aggregate import Arrays
from fedac.flower.messages import ROUND, WEIGHT

FRAME = re.compile(r'File "([^"\n]*)", line (\d{1,7})\b')


@dataclass(frozen=True)
class Reply:
    """A reply that can be used."""

    arrays: Arrays
    weight: float
    metrics: Mapping[str, float]


class BadReply(Exception):  # noqa: N818 - it is a finding, not a failure of ours
    """A reply that must not be used; the message says why."""


def check_reply(message: Message, *, like: Arrays, server_round: int) -> str | None:
    """Return why a training reply is bad, or None if it is good.

    Good is: exactly one ArrayRecord with the keys, shapes and types of `like`, all finite;
    exactly one MetricRecord of finite numbers, with this round's number and a positive weight.
    """
    try:
        read_reply(message, like=like, server_round=server_round)
    except BadReply as reason:
        return str(reason)
    return None


def read_reply(message: Message, *, like: Arrays, server_round: int) -> Reply:
    """Return what a training reply holds; raise `BadReply` if it is bad."""
    content = _content(message)
    weight, metrics = _metrics(content, server_round)
    records = list(content.array_records.values())
    if len(records) != 1:
        raise BadReply(f"{len(records)} ArrayRecords, not one")
    (record,) = records
    missing, extra = sorted(set(like) - set(record)), sorted(set(record) - set(like))
    if missing:
        raise BadReply(f"missing key: {', '.join(missing)}")
    if extra:
        raise BadReply(f"extra key: {', '.join(extra)}")
    return Reply({key: _array(key, record[key], like[key]) for key in like}, weight, metrics)


def read_metrics(message: Message, *, server_round: int) -> Reply:
    """Return what an evaluation reply holds; raise `BadReply` if it is bad."""
    weight, metrics = _metrics(_content(message), server_round)
    return Reply({}, weight, metrics)


def sort_out(
    nodes: Iterable[int], replies: Mapping[int, Message], read: Callable[[Message], Reply]
) -> tuple[dict[int, Reply], dict[int, str]]:
    """Return the good replies by node, and why the other nodes have none."""
    good: dict[int, Reply] = {}
    reasons: dict[int, str] = {}
    for node in sorted(nodes):
        if node not in replies:
            reasons[node] = "no reply in time"
            continue
        try:
            good[node] = read(replies[node])
        except BadReply as bad:
            reasons[node] = str(bad)
    return good, reasons


def _content(message: Message) -> RecordDict:
    if message.has_error():
        error = message.error
        raise BadReply(f"error {error.code}: {_short(error.reason)}")
    if not message.has_content():
        raise BadReply("empty")
    return message.content


def _short(reason: str | None) -> str:
    """Return the exception of a traceback, which is what Flower sends, and the user's line."""
    # Without the margins that exception groups have.
    lines = re.sub(r"^ *[|+] ?", "", (reason or "")[-20_000:], flags=re.MULTILINE).splitlines()
    frames = [i for i, line in enumerate(lines) if FRAME.search(line)]
    # The message begins after the last frame, whose code is indented.
    after = [line for line in lines[frames[-1] :] if line[:1].strip()] if frames else []
    said = (after or [line.strip() for line in lines if line.strip()][-1:] or ["no reason given"])[
        0
    ]
    if not frames:
        return said[:200]
    places = [FRAME.findall(lines[i])[-1] for i in frames]
    # Where the user's code was, if it was there at all.
    own = [place for place in places if not re.search(r"site-packages|[\\/]fedac[\\/]", place[0])]
    path, number = (own or places)[-1]
    name = re.split(r"[\\/]", path)[-1][:60]
    return f"{said[:200]} ({name}:{number})"


def _metrics(content: RecordDict, server_round: int) -> tuple[float, dict[str, float]]:
    records: list[MetricRecord] = list(content.metric_records.values())
    if len(records) != 1:
        raise BadReply(f"{len(records)} MetricRecords, not one")
    numbers = {k: v for k, v in records[0].items() if isinstance(v, int | float)}
    for key in (ROUND, WEIGHT):
        if key not in numbers:
            raise BadReply(f"missing metric: {key} (is the client made by client_app?)")
    broken = [key for key, value in numbers.items() if not _finite(value)]
    if broken:
        raise BadReply(f"not finite: metric {', '.join(broken)}")
    if numbers[ROUND] != server_round:
        raise BadReply(f"of round {numbers[ROUND]:g}, not {server_round}")
    if not numbers[WEIGHT] > 0:
        raise BadReply(f"weight not above 0: {numbers[WEIGHT]:g}")
    metrics = {k: float(v) for k, v in numbers.items() if k not in (ROUND, WEIGHT)}
    return float(numbers[WEIGHT]), metrics


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _array(key: str, sent: Array, like: NumPyArray) -> NumPyArray:
    """Return an array that was sent, if it is what its label says and what was expected."""
    label = f"{sent.dtype} {tuple(sent.shape)}"
    if sent.dtype != str(like.dtype):
        raise BadReply(f"wrong type: {key} is {label[:80]}, not {like.dtype}")
    if tuple(sent.shape) != like.shape:
        raise BadReply(f"wrong shape: {key} is {label[:80]}, not {like.shape}")
    # Read what the bytes say of themselves before making room for them.
    try:
        shape, dtype, start = _npy_header(sent.data)
    except Exception as error:  # hostile bytes: whatever reading them raises, they are unreadable
        raise BadReply(f"unreadable: {key}: {str(error)[:80]}") from error
    if dtype != like.dtype or shape != like.shape or len(sent.data) - start != like.nbytes:
        raise BadReply(f"unreadable: {key}: its bytes are not what its label says")
    try:
        array = sent.numpy()
    except Exception as error:
        raise BadReply(f"unreadable: {key}: {str(error)[:80]}") from error
    if not np.isfinite(array).all():
        raise BadReply(f"not finite: {key}")
    return array


def _npy_header(data: bytes) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
    """Return shape and type that serialized bytes claim, and where their numbers start."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):  # what np.save writes for every plain array
        raise ValueError(f"version {version} of NumPy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype, file.tell()
