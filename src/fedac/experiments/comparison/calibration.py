# SPDX-License-Identifier: Apache-2.0
"""Calibration of a plan: a comparison of the paper's algorithms on the data.

It translates a plan (M workers that draw from all rows, T steps or a target, the cost of a round in
gradients) into a question for `fedac.experiments.comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedac.errors import InputError
from fedac.experiments.comparison import Comparison, Question
from fedac.experiments.comparison.table import Row
from fedac.federation.link import Link
from fedac.federation.spec import COMPARE
from fedac.theory.planner import SLACK, divisors

METHODS = ("fedac-i", "fedac-ii", "fedavg", "mb-sgd", "mb-ac-sgd")
TRIES, REPEATS = 9, 3
# Number of divisors of T to try as K; with a target instead of T, these K and these rounds.
MOST_K = 5
TARGET_K, TARGET_ROUNDS = (1, 8, 64, 512), 200
# Total number of gradients, about half a minute on two cores. Fewer workers save time.
QUERIES = 4e9
FEWEST_WORKERS = 16
# Steps may replace rounds.
PLANNER = replace(
    COMPARE,
    without=tuple(name for name in COMPARE.without if name != "steps"),
    defaults={name: value for name, value in COMPARE.defaults.items() if name != "rounds"},
)


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
    """Return the question for `problem`: ``dataset``, ``loss``, ``l2`` and ``intercept`` of a grid.

    M, T, target and round_cost are as in `fedac.theory.planner.plan`. Without a link, costs are
    counted in gradients: one gradient is one second.

    >>> question = planners_question({"dataset": "synthetic", "l2": 1e-2}, M=64, T=256, target=None)
    >>> question.spec.local_steps, question.spec.steps
    ((1, 4, 16, 64, 256), 256)
    """
    Ks = _spread(divisors(T), MOST_K) if T is not None else TARGET_K
    steps = [T if T is not None else K * TARGET_ROUNDS for K in Ks]
    given = problem | {
        "methods": METHODS, "local_steps": tuple(Ks), "workers": _affordable(M, sum(steps)),
        "steps": T, "rounds": TARGET_ROUNDS if T is None else None, "target": target,
        "link": link or Link(latency=round_cost, row=1.0), "tries": TRIES, "repeats": REPEATS,
        "seed": seed,
    }  # fmt: skip
    return Question.ask(given, PLANNER)


def recommended(comparison: Comparison) -> Row:
    """Return the cheapest row that reaches the target or, for T steps, the one with fewest rounds.

    As in the planner, only rows within twice the best result qualify.
    """
    rows = [row for row in comparison.rows if not row.diverged]
    if not rows:
        raise InputError("every run diverged; use a larger l2 or scale the data")
    if comparison.spec.target is not None:
        return rows[0]
    enough = SLACK * min(row.suboptimality.middle for row in rows)
    good = [row for row in rows if row.suboptimality.middle <= enough]
    return min(good, key=lambda row: (-row.K, row.suboptimality.middle))


def _affordable(M: int, steps: int) -> int:
    """Halve the workers until all runs together fit into `QUERIES`."""
    each = QUERIES / (len(METHODS) * (TRIES + REPEATS) * steps)
    while each < M and M >= 2 * FEWEST_WORKERS:
        M //= 2
    return M


def _spread(candidates: Sequence[int], count: int) -> list[int]:
    """Return up to `count` evenly spaced candidates, including the first and the last."""
    places = np.unique(np.linspace(0, len(candidates) - 1, count).round().astype(int))
    return [candidates[place] for place in places]
