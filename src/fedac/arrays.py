"""Arrays of numbers: their type, their check, their hash."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError

Array = npt.NDArray[np.float64]

# The square of a larger number overflows in single precision, in which local states are kept.
LARGEST = 1e18


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


def as_data(name: str, values: Any) -> Array:
    """Return `values` as `as_numbers` does; refuse what no local state can be multiplied with.

    Examples
    --------
    >>> as_data("X", [1.0, -1e300])
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: X has an entry of -1e+300, and squares overflow above 1e+18: scale it
    """
    array = as_numbers(name, values)
    too_large = array[np.abs(array) > LARGEST]
    if too_large.size:
        raise InputError(
            f"{name} has an entry of {too_large[0]:g}, and squares overflow above {LARGEST:g}: "
            "scale it"
        )
    return array


def signs_advice(labels: Array) -> str:
    """Say how to write two classes as -1 and +1; nothing for any other number of classes.

    Examples
    --------
    >>> signs_advice(np.array([0.0, 1.0, 1.0]))
    '; two classes become these by y = np.where(y == 1, 1.0, -1.0)'
    """
    classes = np.unique(labels)
    if len(classes) != 2:
        return ""
    return f"; two classes become these by y = np.where(y == {classes[1]:.17g}, 1.0, -1.0)"
