# SPDX-License-Identifier: Apache-2.0
"""All convergence theorems: label, conditions, rate, step size and bound."""

from __future__ import annotations

from fedac.theory.theorems import fedac, fedavg, minibatch
from fedac.theory.theorems.base import StepSize, Theorem
from fedac.validate import look_up

__all__ = ["THEOREMS", "StepSize", "Theorem", "theorem"]

THEOREMS = (
    fedac.FEDACI_FULL, fedac.FEDACII_A1_FULL, fedac.FEDACII_A2_FULL,
    fedavg.FEDAVG_A1, fedavg.FEDAVG_A2_FULL,
    minibatch.MB_SGD, minibatch.MB_AC_SGD, minibatch.AC_SGD,
    fedac.FEDACI_A1_GCVX, fedac.FEDACII_A1_GCVX, fedac.FEDACII_A2_GCVX,
    fedavg.FEDAVG_A1_GCVX, fedavg.FEDAVG_A2_GCVX,
    minibatch.MB_SGD_GCVX, minibatch.MB_AC_SGD_GCVX, minibatch.AC_SGD_GCVX,
)  # fmt: skip
"""All theorems: first for strongly convex, then for general convex objectives."""


def theorem(label: str) -> Theorem:
    """Look up a theorem by its label in the paper.

    Examples
    --------
    >>> theorem("fedaci:full").algorithm
    'fedac-i'
    """
    return look_up("theorem", label, {theorem.label: theorem for theorem in THEOREMS})
