# SPDX-License-Identifier: Apache-2.0
"""Modes in comparisons: tuned and ranked like methods, with the times of their timelines."""

from __future__ import annotations

import numpy as np
import pytest

from fedac import Link, LogisticRegression, compare, load, simulate, split
from fedac.errors import InputError
from fedac.experiments.comparison import Question, Study, open_store

LINK = Link(latency=0.05, gradient=0.02, speeds="lognormal(1)")
MODES = ("rounds", "deadline(0.3s)", "buffer(4)")
OPTIONS = {"K": 4, "rounds": 12, "clients": 8, "split": "label", "l2": 1e-2, "tries": 4,
           "repeats": 2, "target": 0.4, "link": LINK, "mode": MODES, "jobs": 1}  # fmt: skip


@pytest.mark.filterwarnings("ignore::fedac.errors.StepSizeWarning")
@pytest.mark.filterwarnings("ignore::fedac.errors.SlowEngineWarning")
def test_rows_of_every_mode_have_the_costs_of_simulate() -> None:
    found = compare("synthetic", ["fedavg", "scaffold"], oversample=1.5, **OPTIONS)
    assert {(row.method, row.mode) for row in found.rows} == {
        (method, mode) for method in ("fedavg", "scaffold") for mode in MODES
    }
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    for row in found.rows:
        # The same number of messages in all modes: 12 rounds of 8 clients.
        rounds = 24 if row.mode == "buffer(4)" else 12
        for seed, curve in zip(found.question.fresh_seeds, row.curves, strict=True):
            result = simulate(
                F, row.algorithm, clients=split(data, 8, "label"), K=4, rounds=rounds, eta=row.eta,
                link=LINK, mode=row.mode, seed=seed, record_every=4,
                oversample=1.5 if "deadline" in row.mode else 1.0,
            )  # fmt: skip
            np.testing.assert_allclose(curve.seconds, result.seconds_of(result.best), atol=1e-7)
            loss = result.suboptimality(result.best)
            np.testing.assert_allclose(curve.suboptimality, loss, rtol=1e-4)
            np.testing.assert_array_equal(curve.megabytes, result.megabytes_of(result.best))
    assert "mode" in found.table
    fastest = found.rows[0]
    assert fastest.seconds.middle == min(row.seconds.middle for row in found.rows if row.reached)


def test_the_link_is_part_of_a_run_only_where_it_decides_on_messages(tmp_path) -> None:
    def keys(link: Link, mode: str) -> set[str]:
        question = Question.ask(
            {"dataset": "synthetic", "l2": 1e-2, "clients": 8, "methods": ["fedavg"], "rounds": 6,
             "local_steps": 4, "tries": 4, "repeats": 2, "link": link, "mode": mode}
        )  # fmt: skip
        with open_store(tmp_path / f"{mode}{link.gradient}") as store:
            Study(question).answer(store, jobs=1)
            return set(store.frame()["key"])

    slow = Link(latency=0.05, gradient=0.04, speeds="lognormal(1)")
    assert keys(LINK, "rounds") == keys(slow, "rounds")
    assert not keys(LINK, "buffer(4)") & keys(slow, "buffer(4)")


def test_methods_that_a_mode_cannot_run_are_compared_in_the_others() -> None:
    found = compare(
        "synthetic", ["fedavg", "feddyn"], **OPTIONS | {"mode": ("rounds", "buffer(4)")}
    )
    assert {row.mode for row in found.rows if row.method == "feddyn"} == {"rounds"}
    with pytest.raises(InputError, match="'feddyn' does not run in mode='buffer"):
        compare("synthetic", ["fedavg", "feddyn"], **OPTIONS | {"mode": "buffer(4)"})


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ({"mode": "buffer(9)"}, "more messages than the 8 clients"),
        ({"mode": ("rounds", "deadline")}, "mode is rounds, until"),
        ({"mode": "rounds", "oversample": 1.5}, "oversample needs mode deadline"),
        ({"availability": "share(2)"}, "needs 0 < p <= 1"),
        ({"availability": "share(0.5)", "methods": ["fedavg", "lbfgs"]}, "lbfgs needs all clients"),
        ({"availability": "share(0.5)", "methods": ["fedavg", "scaffnew"]}, "needs all clients"),
    ],
)
def test_what_cannot_be_is_refused(options, saying) -> None:
    methods = options.pop("methods", ["fedavg"])
    with pytest.raises(InputError, match=saying):
        compare("synthetic", methods, **OPTIONS | options)


def test_absent_clients_lose_work_and_the_default_methods_need_nobody() -> None:
    question = Question.ask(
        {"dataset": "synthetic", "availability": "share(0.3, 1s)", "clients": 20, "link": LINK}
    )
    assert not question.baselines
    assert "scaffnew" not in question.methods
