"""Read arrays that came from outside: nothing about them is taken on trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array

from fedac.flower.messages import NamedArrays, NDArray


class BadArraysError(Exception):
    """Arrays that must not be used; the message says why."""


def read_like(record: Mapping[str, Array], expected: NamedArrays) -> dict[str, NDArray]:
    """Return the arrays of a record that has the keys, shapes and types of `expected`, all finite.

    Examples
    --------
    >>> read_like({"w/0": Array(np.ones(3))}, {"w/0": np.zeros(2)})
    Traceback (most recent call last):
    ...
    fedac.flower.checks.BadArraysError: wrong shape: w/0 is (3,), not (2,)
    """
    require_keys(record, expected)
    return {key: _array(key, record[key], expected[key]) for key in expected}


def require_keys(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse missing and extra keys."""
    for problem, keys in (
        ("missing", expected.keys() - found.keys()),
        ("extra", found.keys() - expected.keys()),
    ):
        if keys:
            raise BadArraysError(f"{problem} key: {', '.join(sorted(keys))}")


def require_like(key: str, array: NDArray, expected: NDArray) -> None:
    """Refuse an array of another type or shape."""
    if array.dtype != expected.dtype:
        raise BadArraysError(f"wrong type: {key} is {array.dtype}, not {expected.dtype}")
    if array.shape != expected.shape:
        raise BadArraysError(f"wrong shape: {key} is {array.shape}, not {expected.shape}")


def _array(key: str, sent: Array, expected: NDArray) -> NDArray:
    try:
        array = sent.numpy()
    except Exception as error:  # bytes from outside may fail NumPy in any way
        raise BadArraysError(f"unreadable: {key}: {str(error)[:80]}") from error
    require_like(key, array, expected)
    if not np.isfinite(array).all():
        raise BadArraysError(f"not finite: {key}")
    return array
