"""Replies on a rounded wire (`fedac.wire`): every vector of a message is one array of bytes.

All arrays of a sequence, one after the other, are one vector, as in the simulator; its bytes have
the name of the sequence as their key. Buffers of the model travel as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array

from fedac.algorithms import Algorithm, State
from fedac.federation.compression import FLOAT32, Sender, bytes_of
from fedac.federation.round import compress, decompress
from fedac.flower._arrays import NamedArrays, NDArray, buffers_of, with_prefix
from fedac.flower._server.replies import BadArraysError, read_like, require_keys, require_like
from fedac.flower._task import Task


def pack(
    task: Task, client: int, *, message: NamedArrays, sent: NamedArrays, memory: NamedArrays
) -> tuple[NamedArrays, NamedArrays]:
    """Return a client's message as it travels, and what the client remembers then.

    `sent` is what the server sent, whose names, shapes and types the message must have.
    """
    if task.wire == FLOAT32:
        return message, memory
    # Once they are bytes, the server cannot see this.
    require_keys(message, sent)
    for key, array in sent.items():
        require_like(key, message[key], array)
    algorithm, sender = task.messenger, Sender(task.wire, task.wire_seed, client, task.round - 1)
    model = with_prefix(algorithm.sequences[0], sent)
    # The server drops replies that are not finite: an overflow needs no warning here.
    with np.errstate(over="ignore", invalid="ignore"):
        _, after = compress(
            algorithm,
            joined(algorithm.sequences, message, model),
            joined(algorithm.sequences, sent, model),
            joined(algorithm.memory, memory, model),
            sender,
        )
        remembered = apart(algorithm.memory, after, model)
    vectors: dict[str, Any] = dict(zip(algorithm.sequences, sender.data, strict=True))
    return buffers_of(message) | vectors, remembered


def unpack(
    algorithm: Algorithm, wire: str, record: Mapping[str, Array], sent: NamedArrays
) -> dict[str, NDArray]:
    """Return the arrays of a reply to what was sent, or raise `BadArraysError`."""
    names = algorithm.sequences
    model = with_prefix(names[0], sent)
    length = bytes_of(wire, sum(array.size for array in model.values()))
    bytes_each: dict[str, Any] = dict.fromkeys(names, np.broadcast_to(np.uint8(0), length))
    found: dict[str, Any] = read_like(record, buffers_of(sent) | bytes_each)
    with np.errstate(over="ignore", invalid="ignore"):
        data = [found[name] for name in names]
        arrays = apart(names, decompress(algorithm, wire, data, joined(names, sent, model)), model)
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise BadArraysError(f"not finite: {key}")
    return buffers_of(found) | arrays


def joined(
    names: tuple[str, ...], arrays: NamedArrays, model: NamedArrays
) -> tuple[npt.NDArray[np.float64], ...]:
    """Return a vector for each name, with its arrays in the order of the model's.

    Examples
    --------
    >>> model = {"0": np.zeros((1, 2)), "1": np.zeros(1)}
    >>> joined(("w",), {"w/1": np.ones(1), "w/0": np.zeros((1, 2))}, model)
    (array([0., 0., 1.]),)
    """
    return tuple(
        np.concatenate([np.ravel(arrays[f"{name}/{key}"]).astype(np.float64) for key in model])
        for name in names
    )


def apart(names: tuple[str, ...], vectors: State, model: NamedArrays) -> dict[str, NDArray]:
    """Undo `joined`; arrays have the shapes and types of the model's.

    Examples
    --------
    >>> apart(("w",), (np.arange(3.0),), {"0": np.zeros((1, 2)), "1": np.zeros(1)})
    {'w/0': array([[0., 1.]]), 'w/1': array([2.])}
    """
    ends = np.cumsum([array.size for array in model.values()])
    return {
        f"{name}/{key}": part.reshape(array.shape).astype(array.dtype)
        for name, vector in zip(names, vectors, strict=True)
        for (key, array), part in zip(model.items(), np.split(vector, ends[:-1]), strict=True)
    }
