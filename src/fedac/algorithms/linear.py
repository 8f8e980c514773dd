"""An algorithm's step as linear combinations, for runtimes that want their own fused operations.

The coefficients are found by calling the algorithm's own functions on unit values, so that no
runtime writes an update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from fedac.algorithms.base import Algorithm
from fedac.errors import InputError
from fedac.theory.couplings import Hyperparameters


@dataclass(frozen=True, slots=True)
class Linear:
    """The coefficients of one step.

    Attributes
    ----------
    query : tuple of float
        w_md as a combination of the sequences.
    update : tuple of tuples of float
        Each next sequence as a combination of the sequences, w_md and g, in this order.
    """

    query: tuple[float, ...]
    update: tuple[tuple[float, ...], ...]


@lru_cache(maxsize=256)  # asked for at every step, mostly with the same numbers
def linear(algorithm: Algorithm, hp: Hyperparameters) -> Linear:
    """Find the coefficients of an algorithm's step, or refuse one that is not linear.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> hp = Hyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> linear(FEDAC_I, hp)  # of w_ag and w
    Linear(query=(0.75, 0.25), update=((0.0, 0.0, 1.0, -0.5), (0.0, 0.5, 0.5, -1.0)))
    """
    S = len(algorithm.sequences)
    units = [tuple(float(i == j) for j in range(S + 2)) for i in range(S + 2)]
    try:
        columns = [_update(algorithm, unit, hp) for unit in units]
        form = Linear(
            query=tuple(float(algorithm.query(unit[:S], hp)) for unit in units[:S]),
            update=tuple(tuple(column[s] for column in columns) for s in range(S)),
        )
        exact = _is_exact(form, algorithm, hp)
    except Exception:  # a user's functions may fail on our probes in any way
        exact = False
    if not exact:
        raise InputError(
            f"algorithm '{algorithm.name}' is not linear in its state and gradient, which "
            "optimizers need"
        )
    return form


def _update(
    algorithm: Algorithm, values: tuple[float, ...], hp: Hyperparameters
) -> tuple[float, ...]:
    *state, w_md, g = values
    after = tuple(float(value) for value in algorithm.update(tuple(state), w_md, g, hp))
    if len(after) != len(state):
        raise ValueError("an update must return as many sequences as it was given")
    return after


def _is_exact(form: Linear, algorithm: Algorithm, hp: Hyperparameters) -> bool:
    """Compare with the algorithm at values of all sizes: clipping shows at large ones only."""
    S = len(algorithm.sequences)
    largest = max(1.0, *(abs(c) for row in (form.query, *form.update) for c in row))
    for size in (1e-9, 1e-4, 1.0, 1e4, 1e9):
        for k in range(1, 5):
            values = tuple(size * math.sin(1.7 * k * (i + 1)) for i in range(S + 2))
            found = (float(algorithm.query(values[:S], hp)), *_update(algorithm, values, hp))
            told = (_dot(form.query, values), *(_dot(row, values) for row in form.update))
            if any(
                not abs(a - b) <= 1e-9 * largest * size for a, b in zip(found, told, strict=True)
            ):
                return False
    return True


def _dot(coefficients: tuple[float, ...], values: tuple[float, ...]) -> float:
    return sum(c * v for c, v in zip(coefficients, values, strict=False))
