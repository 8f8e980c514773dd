# SPDX-License-Identifier: Apache-2.0
"""The model of what a sweep costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS
from fedac.experiments import workload
from fedac.federation.spec import RunSpec
from fedac.objectives import LogisticRegression, SoftmaxRegression
from fedac.simulation import simulate

rng = np.random.default_rng(0)
F = LogisticRegression(rng.standard_normal((60, 12)), rng.choice([-1.0, 1.0], 60), l2=1e-2)
CONFIG = RunSpec(
    dataset="tiny",
    data_hash="0" * 64,
    l2=1e-2,
    algorithm="fedavg",
    M=4,
    local_steps=2,
    steps=8,
    eta=0.1,
    seed=1,
    record_every=4,
    precision="float32",
)


def test_seconds_by_hand(monkeypatch):
    for name, value in {
        "GROUP": 100.0, "RECORD": 10.0, "ROUND": 1.0, "WORKER": 0.1, "DRAW": 0.2, "GRADIENT": 0.01,
        "A9A_ROWS": 60, "A9A_NONZEROS": 12,
    }.items():  # fmt: skip
        monkeypatch.setattr(workload, name, value)

    def seconds(configs):
        return workload.predict_cost(F, ALGORITHMS, configs).seconds()

    # Records at 0, 4 and 8; four rounds of 4 workers and 8 local steps.
    assert seconds([CONFIG]) == pytest.approx(100 + 3 * 10 + 4 * (1 + 0.4 + 0.08))
    rows = 60 * (1 - math.exp(-8 / 60))  # expected among 8 draws
    minibatch = replace(CONFIG, algorithm="mb-sgd")
    assert seconds([minibatch]) == pytest.approx(100 + 3 * 10 + 4 * (1 + 1.6 + 0.01 * rows))
    # Another step size costs its records, another algorithm its rounds as well.
    assert seconds([CONFIG, replace(CONFIG, eta=0.5)]) - seconds([CONFIG]) == pytest.approx(3 * 10)


def test_participation_and_batches_by_hand(monkeypatch):
    prices = {"GROUP": 0.0, "RECORD": 0.0, "ROUND": 1.0, "WORKER": 0.1, "DRAW": 0.0,
              "GRADIENT": 0.01, "A9A_NONZEROS": 12}  # fmt: skip
    for name, value in prices.items():
        monkeypatch.setattr(workload, name, value)

    def seconds(**changes):
        return workload.predict_cost(F, ALGORITHMS, [replace(CONFIG, **changes)]).seconds()

    # Four rounds of 2 steps: who takes part, and the rows of all of them.
    assert seconds() == pytest.approx(4 * (1 + 0.4 + 0.01 * 4 * 2))
    assert seconds(participation=0.5) == pytest.approx(4 * (1 + 0.2 + 0.01 * 2 * 2))
    assert seconds(participation=3.0, batch=5) == pytest.approx(4 * (1 + 0.3 + 0.01 * 15 * 2))
    clients = {"split": "iid", "batch": "full"}
    assert seconds(**clients) == pytest.approx(4 * (1 + 0.4 + 0.01 * 60 * 2))
    assert seconds(**clients, participation=0.25) == pytest.approx(4 * (1 + 0.1 + 0.01 * 15 * 2))


@pytest.mark.parametrize("batch", [1, 3, "full"])
@pytest.mark.parametrize("participation", [0.5, 1.0, 3])
@pytest.mark.parametrize("clients", [None, np.arange(60) % 4])
def test_queries_are_those_of_the_simulator(clients, participation, batch):
    how = {"participation": participation, "batch": batch}
    M = 4 if clients is None else None
    result = simulate(F, "fedavg", M=M, K=2, T=8, eta=0.1, clients=clients, engine="reference",
                      **how)  # fmt: skip
    config = replace(CONFIG, **how, split="" if clients is None else "by hand")
    assert workload.queries(config, 60) == result.gradient_queries


def test_longer_rows_and_slower_engines_cost_more():
    class Slow(LogisticRegression):
        kernel = None

    wide = LogisticRegression(rng.standard_normal((60, 1200)), F.y, l2=1e-2)
    many = replace(CONFIG, M=10_000)
    objectives = (F, wide, Slow(wide.X, F.y))
    prices = [workload.predict_cost(G, ALGORITHMS, [many]).seconds() for G in objectives]
    assert 10 * prices[0] < prices[1]
    assert 10 * prices[1] < prices[2]


def test_softmax_costs_as_much_as_its_classes():
    wide = LogisticRegression(rng.standard_normal((60, 1200)), F.y, l2=1e-2)
    classes = SoftmaxRegression(wide.X, np.arange(60) % 10, l2=1e-2)
    many = replace(CONFIG, M=10_000)
    one, ten = (workload.predict_cost(G, ALGORITHMS, [many]).seconds() for G in (wide, classes))
    assert 5 * one < ten < 20 * one


def test_threads_share_long_rounds_and_evaluations_only():
    few = workload.predict_cost(F, ALGORITHMS, [CONFIG])
    assert few.shared == 0
    assert few.seconds(2) == few.seconds(1)
    many = workload.predict_cost(F, ALGORITHMS, [replace(CONFIG, M=10**6)])
    assert many.seconds(2) == pytest.approx(many.seconds(1) / 2, rel=0.1)
