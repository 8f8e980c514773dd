"""How models travel: every sequence of an algorithm in one ArrayRecord.

Arrays have keys ``<sequence>/<name>``: ``w_ag/0`` and ``w/0``, say. A floating-point buffer of the
model (such as BatchNorm's running mean) has the key ``buffer/<name>`` and travels once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, RecordDict

NDArray = npt.NDArray[np.floating[Any]]
NamedArrays = Mapping[str, NDArray]

ARRAYS, CONFIG, METRICS, TASK = "arrays", "config", "metrics", "task"
BUFFER, OUTPUT = "buffer", "output"
ROUND, WEIGHT = "server-round", "num-examples"
# Messages outlive their deadline by this many seconds, in case clocks disagree.
CLOCK_SKEW = 60.0


def add_prefix(prefix: str, arrays: NamedArrays) -> dict[str, NDArray]:
    """Put a prefix before every key.

    Examples
    --------
    >>> add_prefix("w_ag", {"bias": np.zeros(1)})
    {'w_ag/bias': array([0.])}
    """
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def with_prefix(prefix: str, arrays: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays with a prefix, and remove it.

    Examples
    --------
    >>> with_prefix("w", {"w_ag/bias": np.zeros(1), "w/bias": np.ones(1)})
    {'bias': array([1.])}
    """
    start = f"{prefix}/"
    return {
        key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)
    }


def split_buffers(arrays: NamedArrays) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Return a model's parameters, and its buffers without their prefix."""
    parameters = {key: array for key, array in arrays.items() if not key.startswith(f"{BUFFER}/")}
    return parameters, with_prefix(BUFFER, arrays)


def to_record(arrays: NamedArrays) -> ArrayRecord:
    """Return arrays as one ArrayRecord.

    Examples
    --------
    >>> from_record(to_record({"w/0": np.ones(2)}))
    {'w/0': array([1., 1.])}
    """
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, NDArray]:
    """Return the arrays of an ArrayRecord by key."""
    return {key: array.numpy() for key, array in record.items()}


def address(
    content: RecordDict, nodes: Iterable[int], kind: str, server_round: int, deadline: float
) -> list[Message]:
    """Return one message per node, which expires some time after the deadline."""
    return [
        Message(content, node, kind, group_id=str(server_round), ttl=deadline + CLOCK_SKEW)
        for node in nodes
    ]


def count_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of all arrays in some messages."""
    return sum(
        len(array.data)
        for message in messages
        if message.has_content()
        for record in message.content.array_records.values()
        for array in record.values()
    )
