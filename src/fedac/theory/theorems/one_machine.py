"""Accelerated SGD on one worker, which the others need not exist for; labels are ours.

It is accelerated minibatch SGD with M = K = 1, so its constants follow from the paper too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedac.theory import any_step
from fedac.theory.theorems.minibatch import MB_AC_SGD, MB_AC_SGD_GCVX
from fedac.theory.theorems.record import Theorem

R = TypeVar("R")


def _alone(formula: Callable[..., R]) -> Callable[..., R]:
    """Return a formula of accelerated minibatch SGD at M = K = 1."""

    def at_one(*rate: object, M: float, K: float, **letters: float) -> R:
        return formula(*rate, M=1.0, K=1.0, **letters)

    return at_one


AC_SGD = Theorem(
    label="ac-sgd",
    name="ac_sgd",
    algorithm="fedac-vanilla",
    start="Psi0",
    communicates=False,
    rate_formula=_alone(MB_AC_SGD.rate_formula),
    step_size_formula=_alone(MB_AC_SGD.step_size_formula),
    bound_formula=_alone(MB_AC_SGD.bound_formula),
    any_step=any_step.ac_sgd,
)

AC_SGD_GCVX = Theorem(
    label="ac-sgd:gcvx",
    name="ac_sgd_convex",
    algorithm="fedac-vanilla",
    strongly_convex=False,
    communicates=False,
    rate_formula=_alone(MB_AC_SGD_GCVX.rate_formula),
    step_size_formula=_alone(MB_AC_SGD_GCVX.step_size_formula),
    bound_formula=_alone(MB_AC_SGD_GCVX.bound_formula),
    any_step=any_step.augmented(any_step.ac_sgd, start="Psi0"),
    augmented=True,
)
