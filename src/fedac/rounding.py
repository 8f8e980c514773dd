"""How a number is rounded for the wire: formulas for NumPy arrays and compiled kernels alike.

They use operators and a few functions that both know. `fedac.wire` makes messages of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedac.sampling import GOLDEN, mix, worker_key

BLOCK = 256  # numbers that share a scale
FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"
WIRES = (FLOAT32, BFLOAT16, INT8)

_STREAM = np.uint64(0xA24BAED4963EE407)  # any odd number with no pattern
_ONE, _11 = np.uint64(1), np.uint64(11)
# The largest number of a block becomes almost 127, whichever way its scale is rounded.
_SCALE = (1 + 1e-6) / 127
_TINY = np.float32(1.2e-38)  # so that no scale is zero
_SPLIT = 2.0**45 + 1


def stream(seed: Any, m: Any, r: Any, t: Any) -> Any:
    """Return the key of the draws for vector t of client m's message in round r; all are uint64."""
    return mix(mix(worker_key(seed ^ _STREAM, m) + (r + _ONE) * GOLDEN) + (t + _ONE) * GOLDEN)


def uniform(key: Any, j: Any) -> Any:
    """Return the draw for coordinate j, at least 0 and below 1; both are uint64."""
    return (mix(key + (j + _ONE) * GOLDEN) >> _11) * 2.0**-53


def scale_of(largest: Any) -> Any:
    """Return the float32 scale of a block whose largest absolute value is given."""
    return np.float32(largest * _SCALE) + _TINY


def code_of(x: Any, scale: Any, u: Any) -> Any:
    """Return the int8 code of x, rounded up if the draw u says so."""
    return np.floor(x / scale + u)


def nearest_bfloat16(x: Any) -> Any:
    """Return the nearest numbers with 8 significant bits (Veltkamp's splitting, in float64)."""
    high = x * _SPLIT
    return high - (high - x)
