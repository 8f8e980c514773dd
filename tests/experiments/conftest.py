"""What tests of reports share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedac.experiments.comparison import Budget, Comparison, Question
from fedac.experiments.comparison.rows import Curve, Row, find_costs, find_ratio
from fedac.experiments.comparison.study import Cell
from fedac.experiments.summary import predict


@pytest.fixture(scope="session")
def made_up():
    """Give a function that makes a comparison of what seeds had reached after each round.

    A round costs 0.5 megabytes and 2 seconds, with the second seed 4.
    """

    def made_up(reached, target=0.05, **values):
        """Make a comparison; `reached` has by method, K and wire a list per seed."""
        cells = [Cell(*cell) for cell in reached]
        (seeds,) = {len(each) for each in reached.values()}
        rounds = len(next(iter(reached.values()))[0]) - 1
        values = {
            "dataset": "mine", "clients": (10,), "algorithms": ("fedavg", "fedac-i"),
            "local_steps": tuple(dict.fromkeys(cell.K for cell in cells)),
            "wire": tuple(dict.fromkeys(cell.wire for cell in cells)), **values,
        }  # fmt: skip
        question = Question.ask(values, rounds=rounds, target=target, repeats=seeds)
        counts, budget = np.arange(rounds + 1.0), Budget(4.0, "seconds")
        curves = {
            cell: tuple(
                Curve(counts, counts * 0.5, counts * (4 if i == 1 else 2), np.array(each))
                for i, each in enumerate(values)
            )
            for cell, values in zip(cells, reached.values(), strict=True)
        }
        rows = []
        for cell, found in curves.items():
            costs = find_costs(found, target, 1)
            hits = sum(bool(curve.suboptimality[-1] <= (target or 0)) for curve in found)
            rows.append(
                Row(
                    **cell._asdict(), algorithm=cell.method, eta=0.5, server_step=None,
                    momentum=None, mu=None, edge="largest" if cell.method == "fedavg" else "",
                    server_edge="", all_clients=False,
                    reached=None if target is None else hits == seeds, seeds_reached=hits, **costs,
                    suboptimality=predict([curve.within(budget) for curve in found]),
                    smallest=predict([curve.smallest_within(budget) for curve in found]),
                )
            )  # fmt: skip
        rows.sort(key=lambda row: row.rank)
        of_rows = [curves[Cell(row.method, row.K, row.wire)] for row in rows]
        ordered = tuple(
            replace(row, ratio=find_ratio(found, of_rows[0], target, budget))
            for row, found in zip(rows, of_rows, strict=True)
        )
        return Comparison(
            question=question, rows=ordered, budget=budget, curves=curves, runs=7, disguised=2,
            f_star=0.25, dim=3,
        )  # fmt: skip

    return made_up
