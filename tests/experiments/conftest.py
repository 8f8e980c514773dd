# SPDX-License-Identifier: Apache-2.0
"""What tests of reports share."""

from __future__ import annotations

import numpy as np
import pytest

from fedac.experiments.comparison import Budget, Comparison, Question
from fedac.experiments.comparison.table import Curve, Variant, make_row, rank_rows


@pytest.fixture(scope="session")
def made_up():
    """Give a function that makes a comparison of what seeds had reached after each round.

    A round costs 0.5 megabytes and 2 seconds, with the second seed 4.
    """

    def made_up(reached, target=0.05, **values):
        """Make a comparison; `reached` has by method, K and wire a list per seed."""
        variants = [Variant(*variant) for variant in reached]
        (seeds,) = {len(each) for each in reached.values()}
        rounds = len(next(iter(reached.values()))[0]) - 1
        values = {
            "dataset": "mine", "clients": 10, "methods": ("fedavg", "fedac-i"), "rounds": rounds,
            "target": target, "repeats": seeds,
            "local_steps": tuple(dict.fromkeys(variant.K for variant in variants)),
            "wire": tuple(dict.fromkeys(variant.wire for variant in variants)), **values,
        }  # fmt: skip
        question = Question.ask(values)
        counts, budget = np.arange(rounds + 1.0), Budget(4.0, "seconds")
        curves = {
            variant: tuple(
                Curve(counts, counts * 0.5, counts * (4 if i == 1 else 2), np.array(each))
                for i, each in enumerate(values)
            )
            for variant, values in zip(variants, reached.values(), strict=True)
        }
        rows = [
            make_row(
                variant, found, question.target, budget, every=1, eta=0.5,
                edge="largest" if variant.method == "fedavg" else "",
            )
            for variant, found in curves.items()
        ]  # fmt: skip
        return Comparison(
            question=question, rows=rank_rows(rows, question.target, budget), budget=budget,
            runs=7, disguised=2, f_star=0.25, dim=3,
            model="2 classes: ill, well; logistic regression",
        )  # fmt: skip

    return made_up
