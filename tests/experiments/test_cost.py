"""The cost of a sweep: the model, and its calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS
from fedac.experiments import cost
from fedac.experiments.grid import Config, Grid
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

rng = np.random.default_rng(0)
F = LogisticRegression(rng.standard_normal((60, 12)), rng.choice([-1.0, 1.0], 60), l2=1e-2)
CONFIG = Config(
    dataset="tiny",
    data_hash="0" * 64,
    l2=1e-2,
    algorithm="fedavg",
    M=4,
    K=2,
    T=8,
    eta=0.1,
    seed=1,
    record_every=4,
    precision="float32",
)


@pytest.mark.parametrize(
    "values", [{}, {"algorithms": ("mb-sgd",)}, {"local_steps": (1,)}, {"local_steps": (4,)}]
)
def test_calibration(monkeypatch, values):
    defaults = {
        "name": "small",
        "dataset": "tiny",
        "l2": 1e-2,
        "algorithms": ("fedac-i", "mb-sgd"),
        "workers": (4, 8),
        "local_steps": (1, 4),
        "steps": 16,
        "eta": (0.1, 0.5),
    }
    monkeypatch.setattr(cost, "CALIBRATION_SECONDS", 0.0)
    # The engine that need not be compiled.
    monkeypatch.setattr(
        cost, "simulate", lambda *of, **how: simulate(*of, engine="reference", **how)
    )
    measured = cost.calibrate(Grid(**defaults | values), F)
    assert min(measured.record, measured.group) >= 0
    for coefficients in (measured.local, measured.batch):
        assert min(coefficients) >= 0
        assert max(coefficients) > 0


def test_seconds_by_hand():
    model = cost.Cost(
        algorithms=ALGORITHMS, n_samples=60, group=100.0, record=10.0,
        local=(1.0, 0.1, 0.01), batch=(2.0, 0.2, 0.0),
    )  # fmt: skip
    # Records at 0, 4 and 8; four rounds of 4 workers and 8 local steps.
    assert model.seconds([CONFIG]) == pytest.approx(100 + 3 * 10 + 4 * (1 + 0.4 + 0.08))
    minibatch = replace(CONFIG, algorithm="mb-sgd")
    assert model.seconds([minibatch]) == pytest.approx(100 + 3 * 10 + 4 * (2 + 1.6))
    # Another step size costs its records, another algorithm its rounds as well.
    more = model.seconds([CONFIG, replace(CONFIG, eta=0.5)]) - model.seconds([CONFIG])
    assert more == pytest.approx(3 * 10)


def test_a_fit_finds_the_coefficients():
    truth = (1e-4, 3e-7, 5e-8)
    points = [(1.0, M, M * K) for M, K in ((8, 4), (1000, 4), (100, 64))]
    found = cost._fit({point: float(np.dot(truth, point)) for point in points})
    assert found == pytest.approx(truth)


def test_longer_rows_and_slower_engines_cost_more():
    class Slow(LogisticRegression):
        kernel = None

    wide = LogisticRegression(rng.standard_normal((60, 1200)), F.y, l2=1e-2)
    prices = [cost.typical(G, ALGORITHMS).seconds([CONFIG]) for G in (F, wide, Slow(wide.X, F.y))]
    assert prices == sorted(prices)
    assert prices[0] < prices[-1]
