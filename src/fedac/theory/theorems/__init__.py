"""All convergence theorems, one record each: label, conditions, rate, step size and bound.

>>> [theorem.label for theorem in THEOREMS if theorem.algorithm == "fedac-i"]
['fedaci:full', 'fedaci:a1:gcvx']
"""

from __future__ import annotations

from fedac.errors import look_up
from fedac.theory.theorems.fedac_i import FEDACI_A1_GCVX, FEDACI_FULL
from fedac.theory.theorems.fedac_ii import (
    FEDACII_A1_FULL,
    FEDACII_A1_GCVX,
    FEDACII_A2_FULL,
    FEDACII_A2_GCVX,
)
from fedac.theory.theorems.fedavg import FEDAVG_A1, FEDAVG_A2_FULL, FEDAVG_A2_GCVX
from fedac.theory.theorems.minibatch import MB_AC_SGD, MB_AC_SGD_GCVX, MB_SGD, MB_SGD_GCVX
from fedac.theory.theorems.record import StepSize, Theorem

__all__ = ["THEOREMS", "StepSize", "Theorem", "theorem"]

THEOREMS = (
    # for strongly convex objectives
    FEDACI_FULL,
    FEDACII_A1_FULL,
    FEDACII_A2_FULL,
    FEDAVG_A1,
    FEDAVG_A2_FULL,
    MB_SGD,
    MB_AC_SGD,
    # for general convex objectives
    FEDACI_A1_GCVX,
    FEDACII_A1_GCVX,
    FEDACII_A2_GCVX,
    FEDAVG_A2_GCVX,
    MB_SGD_GCVX,
    MB_AC_SGD_GCVX,
)


def theorem(label: str) -> Theorem:
    """Look a theorem up by its label in the paper.

    Examples
    --------
    >>> theorem("fedaci:full").algorithm
    'fedac-i'
    >>> theorem("fedaci")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: unknown theorem 'fedaci'; did you mean 'fedaci:full'? known: ...
    """
    return look_up("theorem", label, {theorem.label: theorem for theorem in THEOREMS})
