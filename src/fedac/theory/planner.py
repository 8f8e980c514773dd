"""The planner: K, step size and number of rounds, by the paper's bounds.

Bounds are worst cases: they rank choices and show what limits them, but real runs are usually
orders of magnitude better. `fedac.experiments.calibration` measures on the data instead.

>>> constants = Constants(L=1.0, mu=1e-3, sigma=1.0, D0=1.0)
>>> for choice in plan(constants, M=64, T=2**24):
...     print(f"{choice.theorem.label:15} K={choice.K:<6} rounds={choice.rounds}")
fedaci:full     K=64     rounds=262144
fedacii:a1:full K=64     rounds=262144
fedavg:a1       K=8      rounds=2097152
mb-sgd          K=1024   rounds=16384
mb-ac-sgd       K=32768  rounds=512
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedac.algorithms import get
from fedac.errors import InputError
from fedac.require import require_count, require_nonnegative, require_positive
from fedac.theory.constants import Constants
from fedac.theory.terms import Bound
from fedac.theory.theorems import THEOREMS, StepSize, Theorem

# To save rounds, accept a bound that is larger than the best by this factor.
SLACK = 2.0
# Nobody would wait for more.
MOST_STEPS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the bound of one theorem recommends.

    Attributes
    ----------
    theorem : Theorem
        The theorem, with its algorithm.
    M, K, T, rounds : int
        Workers, local steps per round, steps in total, and T/K.
    step_size : StepSize
        The theorem's hyperparameters.
    bound : Bound
        On the suboptimality, term by term.
    speedup_rounds : int or None
        The fewest rounds (at this T) for which the noise of M T gradients is the largest term of
        the rate, without constants and logarithms: then M workers are M times as good as one.
        None if no number of rounds is enough, or if there is no noise.
    megabytes_per_worker : float or None
        What one worker sends, if the dimension is known.
    vacuous : bool
        Whether the bound is no better than the potential at the start.
    """

    theorem: Theorem
    M: int
    K: int
    T: int
    rounds: int
    step_size: StepSize
    bound: Bound
    speedup_rounds: int | None
    megabytes_per_worker: float | None
    vacuous: bool


def plan(
    constants: Constants,
    *,
    M: int,
    T: int | None = None,
    target: float | None = None,
    round_cost: float = 1000.0,
    dim: int | None = None,
) -> list[Choice]:
    """Choose K (and T) for every theorem that applies to the constants.

    Parameters
    ----------
    constants : Constants
        Of the problem; mu = 0 selects the theorems for general convex objectives.
    M : int
        Workers.
    T : int, optional
        Steps per worker. K is then the largest divisor of T (the fewest rounds) whose bound is
        at most twice the best one.
    target : float, optional
        Instead of T, the bound to reach at the least cost.
    round_cost : float
        The cost of one round, in gradients; used with `target` only.
    dim : int, optional
        The model's dimension, for the megabytes.

    Returns
    -------
    list of Choice
        One per theorem, except theorems that need an unknown Q, need more than T steps, cannot
        reach the target in 2^40 steps, or whose step size does not exist (FedAc-II at mu = L).
    """
    if (T is None) == (target is None):
        raise InputError("give either T (steps) or a target accuracy")
    M = require_count("M (workers)", M)
    if require_nonnegative("round_cost", round_cost) > MOST_STEPS:
        raise InputError(f"round_cost must be at most 2^40 gradients, got {round_cost:g}")
    if target is not None:
        require_positive("target", target)
    if T is not None:
        T = require_count("T (steps)", T)
        if T > MOST_STEPS:
            raise InputError(f"T (steps) must be at most 2^40, got {T}")
    how = {"T": T, "target": target, "round_cost": round_cost}
    choices = (
        _choice(theorem, constants, M=M, dim=dim, **how)
        for theorem in THEOREMS
        if theorem.strongly_convex == (constants.mu > 0)
        and (theorem.assumption == 1 or constants.Q is not None)
        and (T is None or theorem.least_steps <= T)
    )
    return [choice for choice in choices if choice is not None]


# The error expected after T steps with interval K: expected(K, T).
Expected = Callable[[int, int], float]


def divisors(T: int) -> list[int]:
    """Return all divisors of T, the possible K.

    Examples
    --------
    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [K for K in range(1, math.isqrt(T) + 1) if T % K == 0]
    return sorted({*small, *(T // K for K in small)})


def choose(
    expected: Expected,
    *,
    T: int | None,
    target: float | None,
    round_cost: float,
    most_steps: int = MOST_STEPS,
) -> tuple[int, int] | None:
    """Choose K and T: given T, the fewest rounds within the slack of the best; else the cheapest.

    Examples
    --------
    If a round costs as much as ten steps, two rounds of sixteen steps are cheapest:

    >>> choose(lambda K, T: K**0.5 / T, T=None, target=0.125, round_cost=10.0)
    (16, 32)
    >>> choose(lambda K, T: K / T, T=64, target=None, round_cost=10.0)
    (2, 64)
    """
    if T is not None:
        totals = {K: expected(K, T) for K in divisors(T)}
        enough = SLACK * min(totals.values())
        return max(K for K, total in totals.items() if total <= enough), T
    assert target is not None
    options = [
        (R * (round_cost + K), K, K * R)
        for K in (2**power for power in range(most_steps.bit_length()))
        if (R := _rounds_to(expected, target, K, most_steps)) is not None
    ]
    return min(options)[1:] if options else None


def _rounds_to(expected: Expected, target: float, K: int, most_steps: int) -> int | None:
    """Return the fewest rounds of K steps that are expected to reach `target`."""

    def reached(R: int) -> bool:
        try:
            return expected(K, K * R) <= target
        except InputError:  # fewer steps than the theorem needs
            return False

    R = 1
    while not reached(R):
        R *= 2
        if most_steps < K * R:
            return None
    return _fewest(reached, R)


def _fewest(enough: Callable[[int], bool], R: int) -> int:
    """Return the fewest rounds that are enough, by bisection; R rounds are."""
    too_few = 0
    while R - too_few > 1:
        middle = (too_few + R) // 2
        too_few, R = (too_few, middle) if enough(middle) else (middle, R)
    return R


def _choice(
    theorem: Theorem, constants: Constants, *, M: int, dim: int | None, **how: Any
) -> Choice | None:
    """Return the choice; None if the target is out of reach or the step size does not exist."""

    def total(K: int, T: int) -> float:
        return theorem.bound(**constants.letters, M=M, K=K, T=T).total

    chosen = choose(total, **how)
    if chosen is None:
        return None
    K, T = chosen
    letters = constants.letters | {"M": M, "K": K, "T": T}
    try:
        step_size = theorem.step_size(**letters)
    except InputError:
        return None
    rounds, bound = T // K, theorem.bound(**letters)
    return Choice(
        theorem=theorem,
        M=M,
        K=K,
        T=T,
        rounds=rounds,
        step_size=step_size,
        bound=bound,
        speedup_rounds=_speedup_rounds(theorem, constants, M, T),
        megabytes_per_worker=dim and get(theorem.algorithm).megabytes(dim=dim, rounds=rounds),
        vacuous=bound.total >= constants.Psi0,
    )


def _speedup_rounds(theorem: Theorem, constants: Constants, M: int, T: int) -> int | None:
    def enough(R: int) -> bool:
        letters = constants.letters | {"M": M, "K": T / R, "T": T}
        rate = theorem.rate(**letters)
        # For strongly convex objectives the term decays exponentially and is not in the rate.
        start = rate.optimization or theorem.bound(**letters).optimization
        return rate.variance >= max(rate.noise, start)

    # Without noise there is nothing to average.
    if constants.sigma == 0 or not enough(T):
        return None
    return _fewest(enough, T)
