"""An algorithm's step as linear combinations, for runtimes that want their own fused operations.

The coefficients are found by calling the algorithm's own functions on unit values, so that no
runtime writes an update.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedac.algorithms.base import Algorithm
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


def linear(algorithm: Algorithm, hp: Hyperparameters) -> Linear:
    """Find the coefficients of an algorithm's step.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> hp = Hyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> linear(FEDAC_I, hp)  # of w_ag and w
    Linear(query=(0.75, 0.25), update=((0.0, 0.0, 1.0, -0.5), (0.0, 0.5, 0.5, -1.0)))
    """
    S = len(algorithm.sequences)
    units = [tuple(float(i == j) for j in range(S + 2)) for i in range(S + 2)]
    columns = [algorithm.update(unit[:S], unit[S], unit[S + 1], hp) for unit in units]
    return Linear(
        query=tuple(float(algorithm.query(unit[:S], hp)) for unit in units[:S]),
        update=tuple(tuple(float(column[s]) for column in columns) for s in range(S)),
    )
