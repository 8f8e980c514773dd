"""The planner's second opinion: a comparison of the paper's algorithms on the data.

It asks `fedac.experiments.comparison` in the planner's words: M workers that draw from all rows, T
steps or a target, and what a round costs in gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedac.errors import InputError
from fedac.experiments.comparison import Comparison, Question
from fedac.experiments.comparison.table import Row
from fedac.federation.link import Link
from fedac.theory.planner import SLACK, divisors

METHODS = ("fedac-i", "fedac-ii", "fedavg", "mb-sgd", "mb-ac-sgd")
TRIES, REPEATS = 9, 3
# With T: so many divisors of it. With a target: these K, and the rounds of each run.
MOST_K = 5
TARGET_K, TARGET_ROUNDS = (1, 8, 64, 512), 200
# Gradients to spend: about half a minute on two cores. Fewer workers than asked for save time.
QUERIES = 4e9
FEWEST_WORKERS = 16


def planners_question(
    problem: dict[str, Any],
    *,
    M: int,
    T: int | None,
    target: float | None,
    round_cost: float = 1000.0,
    link: Link | None = None,
    seed: int = 1,
) -> Question:
    """Return the question that a planner asks.

    Parameters
    ----------
    problem : dict
        ``dataset``, ``loss``, ``l2`` and ``intercept`` of a `Grid`.
    M, T, target, round_cost
        As of `fedac.theory.planner.plan`.
    link : Link, optional
        What a round costs in seconds; without, a second is a gradient.
    seed : int
        Of the draws while tuning.

    Examples
    --------
    >>> question = planners_question({"dataset": "synthetic", "l2": 1e-2}, M=64, T=256, target=None)
    >>> question.grid.local_steps, question.steps
    ((1, 4, 16, 64, 256), 256)
    """
    Ks = _spread(divisors(T), MOST_K) if T is not None else TARGET_K
    steps = [T if T is not None else K * TARGET_ROUNDS for K in Ks]
    values = problem | {
        "algorithms": METHODS, "local_steps": tuple(Ks), "seeds": (seed,),
        "workers": (_affordable(M, sum(steps)),),
    }  # fmt: skip
    how: dict[str, Any] = {"steps": T} if T is not None else {"rounds": TARGET_ROUNDS}
    return Question.ask(
        values,
        target=target,
        link=link or Link(latency=round_cost, row=1.0),
        tries=TRIES,
        repeats=REPEATS,
        **how,
    )


def recommended(comparison: Comparison) -> Row:
    """Return the cheapest way to the target or, for T steps, the fewest rounds that are good.

    As of the planner's bounds, good is what is at most twice the best.
    """
    rows = [row for row in comparison.rows if not row.diverged]
    if not rows:
        raise InputError("every run diverged; use a larger l2 or scale the data")
    if comparison.question.target is not None:
        return rows[0]
    enough = SLACK * min(row.suboptimality.middle for row in rows)
    good = [row for row in rows if row.suboptimality.middle <= enough]
    return min(good, key=lambda row: (-row.K, row.suboptimality.middle))


def _affordable(M: int, steps: int) -> int:
    """Halve the workers until all runs together are affordable."""
    each = QUERIES / (len(METHODS) * (TRIES + REPEATS) * steps)
    while each < M and M >= 2 * FEWEST_WORKERS:
        M //= 2
    return M


def _spread(candidates: Sequence[int], count: int) -> list[int]:
    """Return up to `count` evenly spaced candidates, including the first and the last."""
    places = np.unique(np.linspace(0, len(candidates) - 1, count).round().astype(int))
    return [candidates[place] for place in places]
