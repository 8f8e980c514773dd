# SPDX-License-Identifier: Apache-2.0
"""Baselines without local steps: L-BFGS and accelerated gradient descent on full gradients.

A round is one gradient of F and its value. All clients are present: each receives one vector, takes
one step on all its rows and sends one vector. The curves below are F, not F - F*, after 0, 1, ..,
`rounds` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from fedac.algorithms import MB_AC_SGD
from fedac.algorithms.hyperparameters import FedAcHyperparameters
from fedac.objectives import ConvexObjective
from fedac.validate import Array

OnIterate = Callable[[int, Array], object]
BASELINES = {"lbfgs": "L-BFGS", "agd": "AGD"}
"""Labels by name; only ``agd`` has a step size."""


class _SpentError(Exception):
    """All rounds are spent, possibly within a line search."""


def lbfgs_curve(
    F: ConvexObjective, start: Array, rounds: int, on_iterate: OnIterate = lambda r, w: None
) -> Array:
    """Run L-BFGS; every evaluation in a line search is a round.

    A value is F of the last accepted iterate. If the method stops early, its last value repeats.
    `on_iterate` is called with the rounds before an iterate, and the iterate.
    """
    from scipy.optimize import OptimizeResult, minimize

    values, spent = np.full(rounds + 1, F.value(start)), 0

    def evaluate(w: Array) -> tuple[float, Array]:
        nonlocal spent
        if spent == rounds:
            raise _SpentError
        spent += 1
        return F.value(w), F.gradient(w)

    def accept(intermediate_result: OptimizeResult) -> None:  # SciPy wants this name
        values[spent:] = intermediate_result.fun
        on_iterate(spent, intermediate_result.x)

    with suppress(_SpentError):
        minimize(
            evaluate,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=accept,
            # With zero tolerances it stops where rounding errors hide any further descent.
            options={"ftol": 0.0, "gtol": 0.0, "maxiter": rounds, "maxfun": rounds + 1},
        )
    return values


def agd_curve(
    F: ConvexObjective,
    start: Array,
    rounds: int,
    eta: float,
    mu: float,
    on_iterate: OnIterate = lambda r, w: None,
) -> Array:
    """Run Nesterov's constant step scheme II (Lectures on Convex Optimization, 2018, (2.2.20)).

    Its momentum rises from FISTA's to the constant momentum of MB-AC-SGD, which does poorly in
    the first 1/sqrt(eta mu) rounds. The update is therefore MB-AC-SGD's with new hyperparameters in
    every round: the book's a starts at 1 and tends to sqrt(eta mu). After divergence F is inf.

    >>> from fedac.objectives import NoisyQuadratic
    >>> F = NoisyQuadratic([4.0, 1.0], optimum=[1.0, 1.0])
    >>> agd_curve(F, np.zeros(2), rounds=3, eta=0.25, mu=1.0).round(4)
    array([2.5   , 0.2812, 0.1582, 0.0776])
    """
    values = np.full(rounds + 1, math.inf)
    values[0] = F.value(start)
    # The lower limit, lost in rounding, stands for mu = 0. Steps above 1/mu have no momentum.
    q = min(max(eta * mu, 1e-30), 1.0)
    a, state = 1.0, MB_AC_SGD.start(start)
    with np.errstate(over="ignore", invalid="ignore"):  # the step size may be too large
        for r in range(1, rounds + 1):
            beta = (1 - q) / (a - q) if a < 1 else 1.0
            hp = FedAcHyperparameters(eta=eta, gamma=eta / a, alpha=a / q, beta=beta)
            w_md = MB_AC_SGD.query(state, hp)
            state = MB_AC_SGD.update(state, w_md, F.gradient(w_md), hp)
            w = MB_AC_SGD.output(state, hp, r)
            value = F.value(w)
            if not math.isfinite(value):
                break
            on_iterate(r, w)
            values[r] = value
            a = (q - a * a + math.sqrt((a * a - q) ** 2 + 4 * a * a)) / 2
    return values
