# SPDX-License-Identifier: Apache-2.0
"""The planner's second opinion is a comparison, in the planner's words."""

from __future__ import annotations

import math

import pytest

from fedac.errors import InputError
from fedac.experiments.comparison import Study, calibration, open_store
from fedac.experiments.comparison.calibration import METHODS, planners_question, recommended
from fedac.federation.link import Link

PROBLEM = {"dataset": "synthetic", "l2": 1e-2}


@pytest.fixture(scope="module")
def found():
    with open_store(None) as store:
        return Study(planners_question(PROBLEM, M=16, T=64, target=None)).answer(store)


def test_every_algorithm_is_measured_at_every_K(found):
    assert {(row.method, row.K) for row in found.rows} == {
        (name, K) for name in METHODS for K in (1, 4, 8, 16, 64)
    }
    lengths = {row.K: int(row.curves[0].rounds[-1]) for row in found.rows}
    assert lengths == {K: 64 // K for K in (1, 4, 8, 16, 64)}


def test_the_recommendation_has_the_fewest_rounds_that_are_good(found):
    best = min(row.suboptimality.middle for row in found.rows)
    mine = recommended(found)
    assert mine.suboptimality.middle <= 2 * best
    assert all(row.suboptimality.middle > 2 * best for row in found.rows if row.K > mine.K)
    rivals = [row for row in found.rows if row.K == mine.K]
    assert mine.suboptimality.middle == min(row.suboptimality.middle for row in rivals)


def test_a_second_is_a_gradient_unless_there_is_a_link():
    question = planners_question(PROBLEM, M=64, T=None, target=0.1, round_cost=50.0)
    # 50 for the round, and 8 gradients.
    assert question.link.round_seconds(up=1e9, down=1e9, steps=8) == 58.0
    link = Link(latency=1.0)
    assert planners_question(PROBLEM, M=64, T=64, target=None, link=link).link is link


def test_too_many_workers_are_reduced():
    M = planners_question(PROBLEM, M=10**6, T=2**12, target=None).spec.workers
    assert M < 10**6
    assert M * 2**12 * 5 * 5 * 12 <= calibration.QUERIES
    M = planners_question(PROBLEM, M=8, T=2**20, target=None).spec.workers
    assert M == 8


def test_if_all_diverge(found):
    from dataclasses import replace

    gone = found.rows[0].suboptimality._replace(middle=math.inf)
    nothing = replace(found, rows=tuple(replace(r, suboptimality=gone) for r in found.rows))
    with pytest.raises(InputError, match="every run diverged; use a larger l2"):
        recommended(nothing)
