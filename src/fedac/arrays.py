"""Arrays of numbers: their type, their check, their hash."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError

Array = npt.NDArray[np.float64]


def content_hash(header: str, *arrays: npt.NDArray[np.generic]) -> str:
    """Return a hash of a line of text and the bytes of some arrays."""
    digest = hashlib.sha256(header.encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def as_numbers(name: str, values: Any) -> Array:
    """Return `values` as a contiguous array of finite numbers, or say what they are instead."""
    try:
        array: Array = np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers in an array, got {values!r:.60}") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} has NaN or infinite entries")
    return array
