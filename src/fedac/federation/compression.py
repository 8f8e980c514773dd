# SPDX-License-Identifier: Apache-2.0
"""Compression of client messages: float32, bfloat16 or int8 with stochastic rounding.

Clients compress the difference of a vector from the last broadcast, which is small. ``int8`` has a
scale for every 256 numbers and rounds up or down at random, so that messages are unbiased.
``bfloat16`` rounds to the nearest number with 8 significant bits. Broadcasts stay float32, because
an absent client lacks the last broadcast.

Draws are pure functions of seed, client, round, vector and coordinate. The formulas, from `stream`
to `nearest_bfloat16`, use operators that both NumPy arrays and compiled kernels support.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms.algorithm import Algorithm, Vector
from fedac.errors import InputError
from fedac.federation.sampling import GOLDEN, mix, worker_key
from fedac.validate import Array, require_count, unknown_name

Bytes = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.float32]
BLOCK = 256  # numbers per scale
FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"
WIRES = (FLOAT32, BFLOAT16, INT8)

_STREAM = np.uint64(0xA24BAED4963EE407)  # any odd number with no pattern
_ONE, _11 = np.uint64(1), np.uint64(11)
# Maps the largest number of a block to almost 127, even if its scale is rounded down.
_SCALE = (1 + 1e-6) / 127
_TINY = np.float32(1.2e-38)  # so that no scale is zero
_SPLIT = 2.0**45 + 1


def stream(seed: Any, m: Any, r: Any, t: Any) -> Any:
    """Return the random key of vector t of client m's message in round r; all are uint64."""
    return mix(mix(worker_key(seed ^ _STREAM, m) + (r + _ONE) * GOLDEN) + (t + _ONE) * GOLDEN)


def uniform(key: Any, j: Any) -> Any:
    """Return the draw in [0, 1) for coordinate j; both are uint64."""
    return (mix(key + (j + _ONE) * GOLDEN) >> _11) * 2.0**-53


def scale_of(largest: Any) -> Any:
    """Return the float32 scale of a block, given its largest absolute value."""
    return np.float32(largest * _SCALE) + _TINY


def code_of(x: Any, scale: Any, u: Any) -> Any:
    """Return the int8 code of x, rounded at random by the draw u."""
    return np.floor(x / scale + u)


def nearest_bfloat16(x: Any) -> Any:
    """Return the nearest numbers with 8 significant bits (Veltkamp's splitting, in float64)."""
    high = x * _SPLIT
    return high - (high - x)


def require_wire(wire: str) -> str:
    """Return a wire format; raise InputError if it is unknown."""
    if wire not in WIRES:
        raise unknown_name("wire format", str(wire), WIRES)
    return wire


def require_wire_seed(seed: int) -> int:
    """Return a seed of compression; raise InputError if it does not fit 63 bits."""
    if require_count("wire_seed", seed, least=0) >= 2**63:
        raise InputError(f"wire_seed must be at most 2^63 - 1, got {seed}")
    return seed


def bytes_of(wire: str, size: int) -> int:
    """Return the bytes of a vector.

    >>> [bytes_of(wire, 1024) for wire in WIRES]
    [4096, 2048, 1040]
    """
    if wire == INT8:
        return size + 4 * -(-size // BLOCK)
    return size * (2 if wire == BFLOAT16 else 4)


def bytes_up(algorithm: Algorithm, dim: int, wire: str = FLOAT32) -> int:
    """Return the bytes that a client sends in a round, for a model with `dim` parameters."""
    return algorithm.vectors_up * bytes_of(wire, dim)


def bytes_down(algorithm: Algorithm, dim: int) -> int:
    """Return the bytes that a client receives in a round."""
    return algorithm.vectors_down * bytes_of(FLOAT32, dim)


def keys_of(seed: int, m: npt.ArrayLike, r: int, t: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return the random keys of vectors t of clients m in round r."""
    clients, vectors = np.asarray(m).astype(np.uint64), np.asarray(t).astype(np.uint64)
    with np.errstate(over="ignore"):  # wrap-around is the point
        return np.asarray(stream(np.uint64(seed), clients, np.uint64(r), vectors), np.uint64)


def rounded(wire: str, x: npt.ArrayLike, keys: npt.ArrayLike) -> Array:
    """Return vectors (the last axis of x) as they arrive; `keys` has one key for each.

    >>> rounded("bfloat16", np.array([1.0, -0.3, 0.0]), 7)
    array([ 1.        , -0.30078125,  0.        ])
    """
    values = np.asarray(x, np.float64)
    if wire == FLOAT32:
        return values
    if wire == BFLOAT16:
        return np.asarray(nearest_bfloat16(values))
    return _from_codes(*_codes(values, np.asarray(keys, np.uint64)))


def encode(wire: str, x: npt.ArrayLike, key: int | np.uint64, *, first: int = 0) -> Bytes:
    """Encode one vector, or a chunk of whole blocks that starts at `first`; scales come first."""
    values = np.asarray(x, np.float64)
    if wire == INT8:
        codes, scales = _codes(values, np.uint64(key), first)
        with np.errstate(invalid="ignore"):  # if x is not finite, neither is its scale
            small = codes.astype(np.int8)
        return np.concatenate([scales.view(np.uint8), small.view(np.uint8)])
    if wire == BFLOAT16:
        exact: Scales = nearest_bfloat16(values).astype(np.float32)
        return (exact.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float32).view(np.uint8)


def decode(wire: str, data: Bytes, size: int) -> Array:
    """Decode a vector with `size` coordinates."""
    if wire == INT8:
        scales = data[: 4 * -(-size // BLOCK)].view(np.float32)
        codes = data[scales.nbytes :].view(np.int8)
        return _from_codes(codes.astype(np.float64), scales)
    if wire == BFLOAT16:
        halves = data.view(np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32).astype(np.float64)
    return data.view(np.float32).astype(np.float64)


@dataclass
class Sender:
    """Quantize the vectors of one client's message in one round, and keep their bytes.

    `residuals` enables error feedback: the rounding errors of the last message, one array for each
    vector, are added to this one and replaced by its own. `first` is the offset of a chunk.

    >>> residuals = [np.array([0.001, 0.0])]
    >>> sender = Sender("int8", seed=0, m=2, r=6, residuals=residuals)
    >>> arrived = sender(np.array([0.1, -0.3]), 0)
    >>> bool(np.allclose(arrived + sender.residuals[0], [0.101, -0.3]))
    True
    """

    wire: str
    seed: int
    m: int
    r: int
    residuals: list[Array] | None = None
    first: int = 0
    data: list[Bytes] = field(default_factory=list)

    def __call__(self, x: Vector, t: int) -> Vector:
        """Return vector t as it arrives."""
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow arrives as not finite
            wanted = x if self.residuals is None else x + self.residuals[t]
            key = np.uint64(keys_of(self.seed, self.m, self.r, t))
            data = encode(self.wire, wanted, key, first=self.first)
            self.data.append(data)
            arrives = decode(self.wire, data, len(x))
            if self.residuals is not None:
                self.residuals[t] = wanted - arrives
            return arrives


def _codes(
    x: Array, keys: npt.NDArray[np.uint64] | np.uint64, first: int = 0
) -> tuple[Array, Scales]:
    """Return the codes and scales of vectors from coordinate `first` on."""
    starts = np.arange(0, x.shape[-1], BLOCK)
    scales = scale_of(np.maximum.reduceat(np.abs(x), starts, axis=-1))
    with np.errstate(over="ignore", invalid="ignore"):
        j = np.arange(first, first + x.shape[-1], dtype=np.uint64)
        u = uniform(np.asarray(keys)[..., None], j)
        return code_of(x, _per_coordinate(scales, x.shape[-1]), u), scales


def _from_codes(codes: Array, scales: Scales) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(codes * _per_coordinate(scales, codes.shape[-1]))


def _per_coordinate(scales: Scales, size: int) -> Scales:
    return np.repeat(scales, BLOCK, axis=-1)[..., :size]
