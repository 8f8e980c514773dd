"""Which arrays of a model travel, and under which keys; the others stay as they were.

A PyTorch model's `state_dict` has more than its parameters: buffers, of which some are counters,
and two names for a tensor that two layers share. Outputs have all of its names again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType

from fedac.algorithms import Algorithm, State
from fedac.errors import InputError


@dataclass(frozen=True)
class Layout:
    """How the names of a model relate to what travels; by default they are the same.

    Attributes
    ----------
    keys : dict
        By name, the key under which an array travels; None if it does not. Names of the same tensor
        have the same key.
    fixed : dict
        By name, the arrays that do not travel.

    Examples
    --------
    >>> keys = {"a": "a", "b": "a", "mean": "buffer/mean", "count": None}
    >>> layout = Layout(keys, {"count": np.array(7)})
    >>> layout.complete({"a": np.array(1.0), "buffer/mean": np.array(2.0)})
    {'a': array(1.), 'b': array(1.), 'mean': array(2.), 'count': array(7)}
    """

    keys: Mapping[str, str | None] = field(default_factory=dict)
    fixed: NamedArrays = field(default_factory=dict)

    def travelling(self, arrays: NamedArrays) -> dict[str, NDArray]:
        """Return what travels of a model's arrays."""
        if not self.keys:
            return dict(arrays)
        return {key: arrays[name] for name, key in self.keys.items() if key is not None}

    def complete(self, arrays: NamedArrays) -> dict[str, NDArray]:
        """Undo `travelling`: return arrays under all names of the model."""
        if not self.keys:
            return dict(arrays)
        return {
            name: self.fixed[name] if key is None else arrays[key]
            for name, key in self.keys.items()
        }


class ModelArrays(ArrayRecord):
    """A model's arrays under the names of its `state_dict`, and their layout.

    Examples
    --------
    >>> list(ModelArrays({"weight": np.ones(2)}, Layout()))
    ['weight']
    """

    layout: Layout

    def __init__(self, arrays: NamedArrays, layout: Layout) -> None:
        super().__init__({name: Array(np.asarray(array)) for name, array in arrays.items()})
        self.layout = layout


def layout_of(record: ArrayRecord) -> Layout:
    """Return the layout of a run's initial arrays: of a plain ArrayRecord, everything travels."""
    return record.layout if isinstance(record, ModelArrays) else Layout()


def travelling(record: ArrayRecord) -> dict[str, NDArray]:
    """Return what travels of a run's initial arrays."""
    return layout_of(record).travelling(from_record(record))


# --- How models travel: every sequence of an algorithm in one ArrayRecord.
#
# The message of a client has the same keys, whatever it computed from the sequences.
#
# Arrays have keys ``<sequence>/<name>``: ``w_ag/0`` and ``w/0``, say. A floating-point buffer of
# the
# model (such as BatchNorm's running mean) has the key ``buffer/<name>`` and travels once.
#
# What the server asks for is in the one ConfigRecord of a message, beside the entries of the
# user's:
# Flower's modifiers expect no other.

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


# --- From a model's arrays to the algorithm's sequences of them, and back.


def initial_sequences(algorithm: Algorithm, initial_arrays: ArrayRecord) -> dict[str, NDArray]:
    """Return the start of every sequence, or say why a model cannot be averaged.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> initial_sequences(FEDAC_I, ArrayRecord([np.array([0.0])]))
    {'w_ag/0': array([0.]), 'w/0': array([0.])}
    """
    if not isinstance(initial_arrays, ArrayRecord):
        raise InputError(
            f"initial_arrays must be an ArrayRecord, got {type(initial_arrays).__name__}; "
            "use ArrayRecord([w]) for a list of arrays, torch_arrays(model) for a PyTorch model"
        )
    initial = travelling(initial_arrays)
    if not initial:
        raise InputError("initial_arrays is empty: there is nothing to train")
    for key, array in initial.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"initial_arrays['{key}'] is {array.dtype}; only floating-point arrays can be "
                "averaged. For PyTorch models use fedac.flower.torch_arrays, which knows counters"
            )
        if not np.isfinite(array).all():
            raise InputError(f"initial_arrays['{key}'] has NaN or infinite entries")
    buffers = buffers_of(initial)
    starts = {
        key: algorithm.split(algorithm.start(initial[key]))[0]
        for key in initial
        if key not in buffers
    }
    return buffers | to_named(algorithm.sequences, starts)


def by_key(names: tuple[str, ...], arrays: NamedArrays) -> dict[str, State]:
    """Return for every array of the model its vectors, one for each name.

    The functions of an algorithm take the vectors of one array at a time.

    Examples
    --------
    >>> by_key(("w", "v"), {"w/bias": np.zeros(1), "v/bias": np.ones(1)})
    {'bias': (array([0.]), array([1.]))}
    """
    if not names:
        return {}
    first, *others = [with_prefix(name, arrays) for name in names]
    return {key: (array, *(other[key] for other in others)) for key, array in first.items()}


def to_named(
    names: tuple[str, ...], vectors: Mapping[str, State], like: NamedArrays | None = None
) -> dict[str, NDArray]:
    """Undo `by_key`; with `like`, give every array the type of the model's array of that key.

    Examples
    --------
    >>> to_named(("w", "v"), {"bias": (np.zeros(1), np.ones(1))})
    {'w/bias': array([0.]), 'v/bias': array([1.])}
    """
    return {
        f"{name}/{key}": np.asarray(vector[i], None if like is None else like[key].dtype)
        for i, name in enumerate(names)
        for key, vector in vectors.items()
    }
