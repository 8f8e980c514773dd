# SPDX-License-Identifier: Apache-2.0
"""The planner: K, step size and number of rounds, by the paper's bounds.

Bounds are minimized over all step sizes. They are worst cases: they rank choices and show what
limits them, but real runs are usually orders of magnitude better;
`fedac.experiments.comparison.calibration` measures on the data instead. The bounds of FedAvg and
minibatch SGD are for an average of their iterates, and say nothing about the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fedac.algorithms import get
from fedac.errors import InputError
from fedac.federation.compression import bytes_up
from fedac.theory.bounds import Bound, min_max_lower_bound
from fedac.theory.constants import Constants
from fedac.theory.theorems import THEOREMS, StepSize, Theorem
from fedac.validate import require_count, require_nonnegative, require_positive

# To save rounds, accept a bound that is larger than the best by this factor.
SLACK = 2.0
# Longer runs are not considered.
MOST_STEPS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The recommendation of one theorem's bound.

    Attributes
    ----------
    theorem : Theorem
        The theorem, with its algorithm.
    M, K, T, rounds : int
        Workers, local steps per round, steps in total, and T/K.
    step_size : StepSize
        The hyperparameters with the least bound.
    bound : Bound
        The bound on the suboptimality, term by term.
    closed_form : Bound or None
        The theorem as printed, with its own step size; None if it needs more steps.
    floor : float or None
        The min-max lower bound for this M, K and T, with its constant set to 1. It holds for
        general convex objectives under asm1; otherwise None.
    speedup_rounds : int or None
        The fewest rounds (at this T) for which the noise of M T gradients is the largest term of
        the rate, without constants and logarithms, so that M workers are M times as good as one.
        None if no number of rounds is enough, if there is no noise, or for one worker.
    megabytes_per_worker : float or None
        Megabytes sent by one worker (without those it receives), if the dimension is known.
    vacuous : bool
        Whether the bound is no better than the known bound on the initial error.
    """

    theorem: Theorem
    M: int
    K: int
    T: int
    rounds: int
    step_size: StepSize
    bound: Bound
    closed_form: Bound | None
    floor: float | None
    speedup_rounds: int | None
    megabytes_per_worker: float | None
    vacuous: bool

    @property
    def megabytes(self) -> float | None:
        """Megabytes sent and received by one worker."""
        return self.megabytes_per_worker and 2 * self.megabytes_per_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choices, in the order of the theorems. A plan is also a sequence of its choices.

    Attributes
    ----------
    choices : tuple of Choice
        One per theorem that applies.
    left_out : dict
        Why each remaining theorem for this kind of objective has no choice, by label.
    already_reached : bool
        Whether the start is known to be within the target. If so, there are no choices.
    """

    choices: tuple[Choice, ...]
    left_out: dict[str, str]
    already_reached: bool = False

    @property
    def at_floor(self) -> Choice | None:
        """The smallest bound of several workers under asm1, for comparison with the floor."""
        bounds = (c for c in self if c.floor is not None and c.theorem.communicates)
        return min(bounds, key=lambda choice: choice.bound.total, default=None)

    @property
    def synchronizes_every_step(self) -> bool:
        """Whether every method that could take several local steps has K = 1."""
        several = (c for c in self if c.theorem.communicates and c.T > 1)
        local = [c.K for c in several if not get(c.theorem.algorithm).minibatch]
        return bool(local) and max(local) == 1

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __getitem__(self, index: int) -> Choice:
        return self.choices[index]


def plan(
    constants: Constants,
    *,
    M: int,
    T: int | None = None,
    target: float | None = None,
    round_cost: float = 1000.0,
    dim: int | None = None,
) -> Plan:
    """Choose K (and T) for every theorem that applies to the constants.

    Parameters
    ----------
    constants : Constants
        The problem; mu = 0 selects the theorems for general convex objectives.
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
    Plan
        One choice per theorem, except theorems that need an unknown Q, cannot reach the target in
        2^40 steps, or whose step size does not exist (FedAc-II at mu = L).

    Examples
    --------
    >>> constants = Constants(L=1.0, mu=1e-3, sigma=1.0, D0=1.0)
    >>> choice = plan(constants, M=64, T=2**20)[0]
    >>> choice.theorem.label, choice.K, choice.rounds
    ('fedaci:full', 64, 16384)
    """
    if (T is None) == (target is None):
        raise InputError("give either T (steps) or a target accuracy")
    M = require_count("M (workers)", M)
    if require_nonnegative("round_cost", round_cost) > MOST_STEPS:
        raise InputError(f"round_cost must be at most 2^40 gradients, got {round_cost:g}")
    T = None if T is None else require_count("T (steps)", T)
    if T is not None and T > MOST_STEPS:
        raise InputError(f"T (steps) must be at most 2^40, got {T}")
    if target is not None and require_positive("target", target) >= constants.start:
        return Plan(choices=(), left_out={}, already_reached=True)
    choices, left_out = [], {}
    for theorem in THEOREMS:
        if theorem.strongly_convex == (constants.mu > 0):
            found = _choice(theorem, constants, M, T, target, round_cost, dim)
            if isinstance(found, str):
                left_out[theorem.label] = found
            else:
                choices.append(found)
    return Plan(choices=tuple(choices), left_out=left_out)


def _choice(
    theorem: Theorem,
    constants: Constants,
    M: int,
    T: int | None,
    target: float | None,
    round_cost: float,
    dim: int | None,
) -> Choice | str:
    """Return the choice, or why there is none."""
    if theorem.assumption == 2 and constants.Q is None:
        return "needs Q, which is not known"
    M = M if theorem.communicates else 1

    def total(K: int, T: int) -> float:
        return theorem.best(**constants.letters, M=M, K=K, T=T).bound.total

    chosen: tuple[int, int] | None
    if theorem.communicates:
        chosen = choose(total, T=T, target=target, round_cost=round_cost)
    else:  # a single worker takes all its steps in one round, whose cost does not matter
        steps = T or _fewest(lambda steps: total(1, steps) <= (target or 0), MOST_STEPS)
        chosen = (steps, steps) if steps else None
    if chosen is None:
        return f"does not reach {target:g} within 2^40 steps"
    K, T = chosen
    letters = constants.letters | {"M": M, "K": K, "T": T}
    eta, lam, bound = theorem.best(**letters)
    try:
        step_size = theorem.coupled(eta, lam, **letters)
    except InputError as error:  # FedAc-II at mu = L has no hyperparameters
        return str(error)
    has_floor = theorem.assumption == 1 and not theorem.strongly_convex
    of_floor = {letter: letters[letter] for letter in ("L", "sigma", "M", "K", "T", "D0")}
    return Choice(
        theorem=theorem,
        M=M,
        K=K,
        T=T,
        rounds=T // K,
        step_size=step_size,
        bound=bound,
        closed_form=theorem.bound(**letters) if theorem.least_steps <= T else None,
        floor=min_max_lower_bound(**of_floor) if has_floor else None,
        speedup_rounds=_speedup_rounds(theorem, constants, M, T),
        megabytes_per_worker=dim and bytes_up(get(theorem.algorithm), dim) * (T // K) / 1e6,
        vacuous=bound.total >= constants.start,
    )


def choose(
    expected: Callable[[int, int], float],
    *,
    T: int | None,
    target: float | None,
    round_cost: float,
    most_steps: int = MOST_STEPS,
) -> tuple[int, int] | None:
    """Choose K and T: for a given T the fewest rounds within the slack, for a target the cheapest.

    `expected(K, T)` is the error after T steps with interval K. If a round costs as much as ten
    steps, two rounds of sixteen steps are cheapest:

    >>> choose(lambda K, T: K**0.5 / T, T=None, target=0.125, round_cost=10.0)
    (16, 32)
    """
    if T is not None:
        totals = {K: expected(K, T) for K in divisors(T)}
        enough = SLACK * min(totals.values())
        return max(K for K, total in totals.items() if total <= enough), T
    assert target is not None

    def reached(K: int, R: int) -> bool:
        return expected(K, K * R) <= target

    cheapest, best = math.inf, None
    for K in (2**power for power in range(most_steps.bit_length())):
        most = most_steps // K
        if cheapest < math.inf:  # more rounds than this would cost more than the best so far
            most = min(most, math.ceil(cheapest / (round_cost + K)) - 1)
        R = _fewest(partial(reached, K), most) if most >= 1 else None
        if R is not None:
            cheapest, best = R * (round_cost + K), (K, K * R)
    return best


def divisors(T: int) -> list[int]:
    """Return all divisors of T, the possible K."""
    small = [K for K in range(1, math.isqrt(T) + 1) if T % K == 0]
    return sorted({*small, *(T // K for K in small)})


def _fewest(enough: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number up to `most` that is enough, or None, by bisection."""
    if not enough(most):
        return None
    too_few = 0
    while most - too_few > 1:
        # The geometric mean until both ends are close: few tries, however large `most` is.
        middle = math.isqrt(too_few * most) if 2 * too_few < most else (too_few + most) // 2
        middle = max(middle, too_few + 1)
        too_few, most = (too_few, middle) if enough(middle) else (middle, most)
    return most


def _speedup_rounds(theorem: Theorem, constants: Constants, M: int, T: int) -> int | None:
    def enough(R: int) -> bool:
        letters = constants.letters | {"M": M, "K": T / R, "T": T}
        rate = theorem.rate(**letters)
        # For strongly convex objectives the term decays exponentially and is not in the rate.
        start = rate.optimization or theorem.bound(**letters).optimization
        return rate.variance >= max(rate.noise, start)

    # Without noise, or with one worker, there is nothing to average.
    return None if constants.sigma == 0 or M == 1 else _fewest(enough, T)
