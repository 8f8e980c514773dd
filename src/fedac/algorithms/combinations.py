"""Linear combinations of vectors, and values to check that a function is one."""

from __future__ import annotations

from functools import cache, reduce
from operator import add

import numpy as np

from fedac.algorithms.record import State, Vector
from fedac.arrays import Array

# Each row has the coefficients of one combination.
Rows = tuple[tuple[float, ...], ...]


def apply_rows(rows: Rows, vectors: State) -> State:
    """Return a combination of the vectors for each row.

    Examples
    --------
    >>> apply_rows(((1.0, 2.0), (0.0, -1.0)), (3.0, 4.0))
    (11.0, -4.0)
    """
    return tuple(combine(row, vectors) for row in rows)


def combine(coefficients: tuple[float, ...], vectors: State) -> Vector:
    """Return one combination of the vectors."""
    terms = [c * v for c, v in zip(coefficients, vectors, strict=True) if c]
    return reduce(add, terms) if terms else 0.0 * vectors[0]


@cache  # a step size that falls asks in every round
def probes(rows: int, columns: int) -> Array:
    """Return columns of values, the same in every call."""
    return np.random.default_rng(0).normal(size=(rows, columns))
