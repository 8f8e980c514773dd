"""The planner: which K, which step size, how many rounds, by the paper's bounds.

Bounds are worst cases: they rank choices and show what limits them, but real runs are usually
orders of magnitude better. `fedac.experiments.calibration` measures on the data instead.

>>> constants = Constants(L=1.0, mu=1e-3, sigma=1.0, D0=1.0)
>>> for choice in plan(constants, M=64, T=2**24):
...     print(f"{choice.algorithm:10} K={choice.K:<6} rounds={choice.rounds}")
fedac-i    K=64     rounds=262144
fedac-ii   K=64     rounds=262144
fedavg     K=8      rounds=2097152
mb-sgd     K=1024   rounds=16384
mb-ac-sgd  K=32768  rounds=512
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedac.algorithms import get
from fedac.algorithms.couplings import Hyperparameters
from fedac.errors import InputError
from fedac.require import require_count, require_nonnegative, require_positive
from fedac.theory import bounds, rates, step_sizes
from fedac.theory.bounds import Bound
from fedac.theory.constants import Constants
from fedac.theory.letters import LEAST_STEPS

# Fewer rounds are worth a bound that is larger by so much.
SLACK = 2.0
# Beyond this nobody would wait.
MOST_STEPS = 2**40

# Theorems by the algorithm they are about; those under assumption asm2 need Q.
STRONGLY_CONVEX = (
    ("fedac-i", "fedac_i_a1"),
    ("fedac-ii", "fedac_ii_a1"),
    ("fedac-ii", "fedac_ii_a2"),
    ("fedavg", "fedavg_a1"),
    ("fedavg-weighted", "fedavg_a2"),
    ("mb-sgd", "mb_sgd"),
    ("mb-ac-sgd", "mb_ac_sgd"),
)
CONVEX = tuple(
    (algorithm, f"{theorem}_convex")
    for algorithm, theorem in STRONGLY_CONVEX
    if theorem != "fedavg_a1"  # known for strongly convex objectives only
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the bounds recommend for one theorem.

    Attributes
    ----------
    algorithm, theorem : str
        The algorithm's name and the function in `step_sizes` and `bounds`.
    M, K, T, rounds : int
        Workers, local steps per round, steps in all, and T/K.
    hyperparameters : Hyperparameters
        Those of the theorem; with ``lam`` for general convex objectives.
    bound : Bound
        On the suboptimality, term by term.
    speedup_rounds : int or None
        From how many rounds on (at this T) the noise of M T gradients is the largest term of the
        rate, without constants and logarithms: then M workers are worth M times one. None if no
        number of rounds is enough, or if there is no noise.
    megabytes_per_worker : float or None
        What one worker sends, if the dimension is known.
    vacuous : bool
        Whether the bound is no better than the potential at the start.
    """

    algorithm: str
    theorem: str
    M: int
    K: int
    T: int
    rounds: int
    hyperparameters: Hyperparameters
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
    """Choose K (and T) for every theorem that the constants allow.

    Parameters
    ----------
    constants : Constants
        Of the problem; with mu = 0 the theorems for general convex objectives are used.
    M : int
        Workers.
    T : int, optional
        Steps per worker. K is then the largest divisor of T (the fewest rounds) whose bound is
        at most twice the best of all.
    target : float, optional
        Instead of T, what the bound has to reach at the least cost.
    round_cost : float
        What one round costs, in gradients; with `target` only.
    dim : int, optional
        The model's dimension, for the megabytes.

    Returns
    -------
    list of Choice
        Without the theorems that need Q if it is unknown, that need more than T steps, that
        cannot reach the target in 2^40 steps, or whose step size has no meaning (FedAc-II's
        where mu is L).
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
    choices = []
    for algorithm, theorem in STRONGLY_CONVEX if constants.mu else CONVEX:
        if "Q" in _letters(theorem) and constants.Q is None:
            continue
        if T is not None and LEAST_STEPS.get(theorem, 1) > T:
            continue

        def total(K: int, T: int, theorem: str = theorem) -> float:
            bound: Bound = _call(bounds, theorem, constants, M=M, K=K, T=T)
            return bound.total

        chosen = choose(total, T=T, target=target, round_cost=round_cost)
        if chosen is not None and _has_step_size(theorem, constants, M, *chosen):
            choices.append(_choice(algorithm, theorem, constants, M, *chosen, dim))
    return choices


# What a choice of K and T is expected to reach.
Expected = Callable[[int, int], float]


def _call(module: Any, theorem: str, constants: Constants, **more: float) -> Any:
    """Call a theorem's function with the letters it takes."""
    known = constants.letters | more
    function = getattr(module, theorem)
    return function(**{name: known[name] for name in inspect.signature(function).parameters})


def _letters(theorem: str) -> list[str]:
    return list(inspect.signature(getattr(bounds, theorem)).parameters)


def divisors(T: int) -> list[int]:
    """Return all K with which rounds of K steps fill T.

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
    """Choose K and T: the fewest rounds within the slack of the best, or the cheapest way.

    Examples
    --------
    Where a round costs as much as ten steps, two rounds of sixteen are the cheapest way:

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
    ways = []
    K = 1
    while most_steps >= K:
        R = _rounds_to(expected, target, K, most_steps)
        if R is not None:
            ways.append((R * (round_cost + K), K, K * R))
        K *= 2
    return min(ways)[1:] if ways else None


def _rounds_to(expected: Expected, target: float, K: int, most_steps: int) -> int | None:
    """Return the fewest rounds of K steps that are expected to reach `target`."""

    def reached(R: int) -> bool:
        try:
            return expected(K, K * R) <= target
        except InputError:  # a theorem may want more steps
            return False

    R = 1
    while not reached(R):
        R *= 2
        if most_steps < K * R:
            return None
    return _fewest(reached, R)


def _fewest(enough: Callable[[int], bool], R: int) -> int:
    """Return the fewest rounds that are enough, knowing that R are."""
    few = 0
    while R - few > 1:
        middle = (few + R) // 2
        few, R = (few, middle) if enough(middle) else (middle, R)
    return R


def _has_step_size(theorem: str, constants: Constants, M: int, K: int, T: int) -> bool:
    """Say whether a theorem's step size means anything; FedAc-II's may not where mu is L."""
    try:
        _call(step_sizes, theorem, constants, M=M, K=K, T=T)
    except InputError:
        return False
    return True


def _choice(
    algorithm: str, theorem: str, constants: Constants, M: int, K: int, T: int, dim: int | None
) -> Choice:
    rounds = T // K
    bound: Bound = _call(bounds, theorem, constants, M=M, K=K, T=T)
    megabytes = None if dim is None else get(algorithm).megabytes(dim=dim, rounds=rounds)
    return Choice(
        algorithm=algorithm,
        theorem=theorem,
        M=M,
        K=K,
        T=T,
        rounds=rounds,
        hyperparameters=_call(step_sizes, theorem, constants, M=M, K=K, T=T),
        bound=bound,
        speedup_rounds=_speedup_rounds(theorem, constants, M, T),
        megabytes_per_worker=megabytes,
        vacuous=bound.total >= constants.Psi0,
    )


def _speedup_rounds(theorem: str, constants: Constants, M: int, T: int) -> int | None:
    def enough(R: int) -> bool:
        at = {"M": M, "K": T / R, "T": T}
        rate = _call(rates, theorem, constants, **at)
        # Of strongly convex objectives this term is no rate, and has no constant either.
        start = rate.optimization or _call(bounds, theorem, constants, **at).optimization
        return bool(rate.variance >= max(rate.noise, start))

    # Without noise there is nothing to average, and nothing to speed up.
    if constants.sigma == 0 or not enough(T):
        return None
    return _fewest(enough, T)
