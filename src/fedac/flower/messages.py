"""How models travel: every sequence of an algorithm in one ArrayRecord.

The message of a client has the same keys, whatever it computed from the sequences.

Arrays have keys ``<sequence>/<name>``: ``w_ag/0`` and ``w/0``, say. A floating-point buffer of the
model (such as BatchNorm's running mean) has the key ``buffer/<name>`` and travels once.

What the server asks for is in the one ConfigRecord of a message, beside the entries of the user's:
Flower's modifiers expect no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType

NDArray = npt.NDArray[np.floating[Any]]
NamedArrays = Mapping[str, NDArray]

ARRAYS, CONFIG, MEMORY, METRICS = "arrays", "config", "memory", "metrics"
ROUND, WEIGHT = "server-round", "num-examples"
BUFFER = "buffer/"
TASK = "fedac/"  # before the names of what the server asks for

# The server asks for a client's number by a message of this type, whose ConfigRecord has the entry
# ASK; the reply has the number, as a string, under CLIENT in a ConfigRecord of that name, and where
# EXAMPLES is true also the number of examples, under WEIGHT.
QUESTION = f"{MessageType.QUERY}.fedac"
ASK, EXAMPLES = f"{TASK}ask", f"{TASK}examples"
CLIENT = "client"
MOST_EXAMPLES = 2.0**53  # above that a float is no count


def with_prefix(sequence: str, arrays: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays of one sequence, without its prefix.

    Examples
    --------
    >>> with_prefix("w", {"w_ag/bias": np.zeros(1), "w/bias": np.ones(1)})
    {'bias': array([1.])}
    """
    prefix = f"{sequence}/"
    return {k.removeprefix(prefix): array for k, array in arrays.items() if k.startswith(prefix)}


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


def with_task(config: Mapping[str, Any], task: Mapping[str, Any]) -> ConfigRecord:
    """Return the entries of the user's and those of a task as one record.

    Examples
    --------
    >>> split_config(with_task({"lr": 0.1}, {"local_steps": 4}))
    ({'lr': 0.1}, {'local_steps': 4})
    """
    return ConfigRecord({**config, **{f"{TASK}{name}": value for name, value in task.items()}})


def split_config(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of the user's, and those of the task."""
    own = {name: value for name, value in record.items() if not name.startswith(TASK)}
    task = {name.removeprefix(TASK): record[name] for name in record if name not in own}
    return own, task


def buffers_of(arrays: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays that are buffers of the model.

    Examples
    --------
    >>> buffers_of({"w/bias": np.ones(1), "buffer/mean": np.zeros(1)})
    {'buffer/mean': array([0.])}
    """
    return {key: array for key, array in arrays.items() if key.startswith(BUFFER)}


def checksum(record: ArrayRecord) -> int:
    """Return a checksum of the arrays of a message.

    >>> one, two = (to_record({"w/0": np.full(2, value)}) for value in (1.0, 2.0))
    >>> checksum(one) == checksum(two)
    False
    """
    return reduce(lambda so_far, key: zlib.crc32(record[key].data, so_far), sorted(record), 0)


def count_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of all arrays in some messages."""
    return sum(
        len(array.data)
        for message in messages
        if message.has_content()
        for record in message.content.array_records.values()
        for array in record.values()
    )
