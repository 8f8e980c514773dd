# SPDX-License-Identifier: Apache-2.0
"""The arrays of a model: as NumPy arrays by name, as vectors, on the wire and in files.

Between the user's model and the wire, arrays change their form at most three times:

1. The user's model, a PyTorch `state_dict` or a list of NumPy arrays, becomes **named arrays**:
   NumPy arrays under the keys ``<sequence>/<name>`` (``w_ag/0``, ``w/0``). A floating-point buffer
   of the model, such as BatchNorm's running mean, travels once, under ``buffer/<name>``.
2. To enter, leave or serve a round, and to compress a message, named arrays become **vectors**:
   one flat float64 vector per sequence, as in the simulator (`flatten`).
3. On the **wire** everything is in one ArrayRecord: the named arrays, or one array of bytes per
   sequence if the message is compressed. Flower's modifiers allow no second ArrayRecord.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message

from fedac.algorithms import Algorithm, State
from fedac.errors import InputError
from fedac.federation.checkpoint import Envelope
from fedac.federation.compression import FLOAT32, bytes_of
from fedac.federation.round import decompress

NDArray = npt.NDArray[np.floating[Any]]
NamedArrays = Mapping[str, NDArray]

BUFFER = "buffer/"
HEADER, ARRAY = "header.json", "array:"  # names in an archive
_READING = threading.Lock()


class ModelArrays(ArrayRecord):
    """A model's arrays under the names of its `state_dict`, and the keys under which they travel.

    The key is None for an array that does not travel. A tensor with two names has one key.
    """

    def __init__(self, arrays: NamedArrays, keys: Mapping[str, str | None]) -> None:
        super().__init__({name: Array(np.asarray(array)) for name, array in arrays.items()})
        self.travel_keys = keys


def travel_keys(record: ArrayRecord) -> Mapping[str, str | None]:
    """Return the keys under which a run's initial arrays travel, by name."""
    return record.travel_keys if isinstance(record, ModelArrays) else {n: n for n in record}


def initial_state(
    algorithm: Algorithm, initial_arrays: ArrayRecord
) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Return the initial sequences and server state, if the model can be averaged."""
    if not isinstance(initial_arrays, ArrayRecord):
        raise InputError(
            f"initial_arrays must be an ArrayRecord, got {type(initial_arrays).__name__}; "
            "use ArrayRecord([w]) for a list of arrays, torch_arrays(model) for a PyTorch model"
        )
    arrays, keys = from_record(initial_arrays), travel_keys(initial_arrays)
    initial = {key: arrays[name] for name, key in keys.items() if key is not None}
    for key, array in initial.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(
                f"initial_arrays['{key}'] is {array.dtype}; only floating-point arrays can be "
                "averaged. For PyTorch models use fedac.flower.torch_arrays, which skips counters"
            )
        if not np.isfinite(array).all():
            raise InputError(f"initial_arrays['{key}'] has NaN or infinite entries")
    buffers = buffers_of(initial)
    model = {key: array for key, array in initial.items() if key not in buffers}
    if not model:
        raise InputError("initial_arrays is empty: there is nothing to train")
    (w_0,) = flatten(("w",), {f"w/{key}": array for key, array in model.items()}, model)
    sequences, server = algorithm.split(algorithm.start(w_0))
    return (
        buffers | unflatten(algorithm.sequences, sequences, model),
        unflatten(algorithm.server, server, model, np.float64),
    )


def with_prefix(sequence: str, arrays: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays of one sequence, without its prefix."""
    prefix = f"{sequence}/"
    return {k.removeprefix(prefix): array for k, array in arrays.items() if k.startswith(prefix)}


def buffers_of(arrays: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays that are buffers of the model."""
    return {key: array for key, array in arrays.items() if key.startswith(BUFFER)}


def flatten(names: tuple[str, ...], arrays: NamedArrays, model: NamedArrays) -> State:
    """Return one float64 vector per sequence, with the arrays in the order of the model's."""
    return tuple(
        np.concatenate([np.ravel(arrays[f"{name}/{key}"]).astype(np.float64) for key in model])
        for name in names
    )


def unflatten(
    names: tuple[str, ...], vectors: State, model: NamedArrays, dtype: Any = None
) -> dict[str, NDArray]:
    """Undo `flatten`: return arrays with the model's shapes, and its types or `dtype`."""
    ends = np.cumsum([array.size for array in model.values()])
    return {
        f"{name}/{key}": part.reshape(array.shape).astype(dtype or array.dtype)
        for name, vector in zip(names, vectors, strict=True)
        for (key, array), part in zip(model.items(), np.split(vector, ends[:-1]), strict=True)
    }


def to_record(arrays: NamedArrays) -> ArrayRecord:
    """Return arrays as one ArrayRecord."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, NDArray]:
    """Return the arrays of an ArrayRecord by key."""
    return {key: _read(array) for key, array in record.items()}


def _read(array: Array) -> NDArray:
    """Return an array of a record, with pickle off as Flower reads it.

    NumPy parses its header with `ast`, which fails in CPython 3.11 if two threads do so at once.
    """
    with _READING:
        return array.numpy()


class BadArraysError(Exception):
    """Arrays from outside that must not be used, and the reason."""


def read_like(record: Mapping[str, Array], expected: NamedArrays) -> dict[str, NDArray]:
    """Read arrays from outside, which must be finite and have the keys and types of `expected`."""
    found: dict[str, NDArray] = {}
    _require_keys(record, expected)
    for key in expected:
        try:
            found[key] = _read(record[key])
        except Exception as error:  # bytes from outside may fail NumPy in any way
            raise BadArraysError(f"unreadable: {key}: {str(error)[:80]}") from error
    require_like(found, expected)
    require_finite(found)
    return found


def sent_back(algorithm: Algorithm, arrays: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays that clients send back, of all that were broadcast."""
    kept = algorithm.broadcast_only
    return {key: array for key, array in arrays.items() if key.partition("/")[0] not in kept}


def read_reply(
    record: Mapping[str, Array], sent: NamedArrays, *, algorithm: Algorithm, wire: str
) -> dict[str, NDArray]:
    """Return the named arrays of a reply to what was sent."""
    if wire == FLOAT32:
        return read_like(record, sent_back(algorithm, sent))
    names = algorithm.sent
    model = with_prefix(algorithm.sequences[0], sent)
    length = bytes_of(wire, sum(array.size for array in model.values()))
    data: dict[str, Any] = dict.fromkeys(names, np.broadcast_to(np.uint8(0), length))
    found: dict[str, Any] = read_like(record, buffers_of(sent) | data)
    with np.errstate(over="ignore", invalid="ignore"):
        sequences = flatten(algorithm.sequences, sent, model)
        vectors = decompress(algorithm, wire, [found[name] for name in names], sequences)
        arrays = unflatten(names, vectors, model)
    require_finite(arrays)
    return buffers_of(found) | arrays


def require_like(found: NamedArrays, expected: NamedArrays) -> None:
    """Reject arrays with other keys, types or shapes."""
    _require_keys(found, expected)
    for key, array in expected.items():
        mine = found[key]
        if mine.dtype != array.dtype:
            raise BadArraysError(f"wrong type: {key} is {mine.dtype}, not {array.dtype}")
        if mine.shape != array.shape:
            raise BadArraysError(f"wrong shape: {key} is {mine.shape}, not {array.shape}")


def _require_keys(found: Mapping[str, Any], expected: NamedArrays) -> None:
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or extra:
        problem = "missing" if missing else "extra"
        raise BadArraysError(f"{problem} key: {', '.join(sorted(missing or extra))}")


def require_finite(arrays: NamedArrays) -> None:
    """Reject arrays with NaN or infinite entries."""
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise BadArraysError(f"not finite: {key}")


def checksum(record: ArrayRecord) -> int:
    """Return a checksum of the arrays of a message."""
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


def write_archive(
    envelope: Envelope, path: Path, header: Mapping[str, Any], arrays: NamedArrays
) -> None:
    """Write named arrays and a JSON header to one NumPy archive, atomically."""
    whole = envelope.header() | {"keys": list(arrays)} | dict(header)
    text = np.frombuffer(json.dumps(whole).encode(), dtype=np.uint8)
    # Numbered, because a parameter's name may not be a valid file name.
    numbered = {f"{ARRAY}{i}": array for i, array in enumerate(arrays.values())}

    def write(file: BinaryIO) -> None:
        np.savez(file, **{HEADER: text}, **numbered)  # type: ignore[arg-type]

    envelope.write(path, write)


def read_archive(envelope: Envelope, path: Path) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Return the header and the arrays of an archive, read without pickle."""

    def read(file: BinaryIO) -> tuple[dict[str, Any], dict[str, NDArray]]:
        with np.load(file, allow_pickle=False) as archive:
            header: Any = json.loads(archive[HEADER].tobytes()) if HEADER in archive else None
            envelope.require_header(header)
            return header, {key: archive[f"{ARRAY}{i}"] for i, key in enumerate(header["keys"])}

    return envelope.read(path, read)
