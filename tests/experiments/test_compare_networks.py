"""Comparisons of methods on networks, also resumed."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedac import Network, compare, load, simulate
from fedac.algorithms import get
from fedac.errors import InputError

DATA = load("digits")
X, Y = DATA.X[:400], DATA.labels[:400]
HOSPITALS = np.arange(400) % 8
SMALL = {"K": 4, "rounds": 12, "tries": 5, "repeats": 2, "participation": 0.5, "jobs": 1}


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.fixture(scope="module")
def task() -> Network:
    return Network(make, X[:320], Y[:320], test=(X[320:], Y[320:]))


def test_a_network_is_compared_and_resumed(task, tmp_path):
    methods = ["fedavg", "scaffold", "fedac-i", "adamw"]
    options = SMALL | {"clients": HOSPITALS[:320], "out": tmp_path}
    found = compare(task, methods, target="accuracy 0.3", **options)
    again = compare(task, methods, target="accuracy 0.3", **options)
    assert again.frame.equals(found.frame)
    assert set(found.frame["method"]) == {get(name).name for name in methods}
    assert found.rows[0].reached
    assert found.frame.loc[found.frame.method == "fedac-i", "mu"].notna().all()
    assert "To run it on batches of 16 rows in PyTorch (fedac.torch):\n" in found.verdict
    # What the winner did, once more by hand.
    best, seed = found.rows[0], found.question.fresh_seeds[0]
    alone = simulate(
        task, best.algorithm, clients=HOSPITALS[:320], participation=0.5, K=4, rounds=12, batch=16,
        eta=best.eta, mu=best.mu, seed=seed, record_every=4,
    )  # fmt: skip
    np.testing.assert_allclose(best.curves[0].suboptimality, alone.runs[0].loss, rtol=1e-4)


def test_a_run_of_fewer_methods_is_a_part_of_the_whole(task, tmp_path):
    options = SMALL | {"clients": HOSPITALS[:320]}
    whole = compare(task, ["fedavg", "fedadam"], **options)
    part = compare(task, ["fedadam"], **options)
    row = next(row for row in whole.rows if row.method == "fedadam")
    assert (part.rows[0].eta, part.rows[0].algorithm) == (row.eta, row.algorithm)
    np.testing.assert_allclose(part.rows[0].suboptimality.middle, row.suboptimality.middle, 1e-4)


def test_costs_count_averaged_buffers():
    norm = Network(nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)), X, Y)
    options = {"clients": HOSPITALS, "K": 2, "rounds": 4}
    found = compare(norm, ["scaffold"], **options, tries=4, repeats=2, jobs=1)
    alone = simulate(norm, "scaffold", **options, eta=0.1, batch=16)
    curve = found.rows[0].curves[0]
    assert curve.megabytes[-1] == alone.megabytes_of(alone.runs[0])[-1]
    # w and c, and two statistics of 10 numbers and their count.
    assert alone.runs[0].bytes_up == 4 * (2 * norm.dim + 21)


def test_epochs_instead_of_local_steps(task):
    options = {"clients": HOSPITALS[:320], "epochs": 2, "rounds": 4}
    found = compare(task, ["fedavg"], **options, tries=4, repeats=2, jobs=1)
    (row,) = found.rows
    assert row.K == 6  # 40 rows in batches of 16, twice
    seed = found.question.fresh_seeds[0]
    alone = simulate(task, "fedavg", **options, batch=16, eta=row.eta, seed=seed, record_every=6)
    np.testing.assert_allclose(row.curves[0].suboptimality, alone.runs[0].loss, rtol=1e-4)
    with pytest.raises(InputError, match="epochs and K both give the steps of a round"):
        compare(task, ["fedavg"], K=4, **options)


def test_targets_on_a_loss_and_on_the_worst_clients(task):
    options = SMALL | {"clients": HOSPITALS[:320]}
    found = compare(task, ["fedavg"], target=1.5, **options)
    assert "it reached a training loss of 1.5 in" in found.verdict
    assert {"training_loss", "training_loss_low"} <= {*found.frame}
    found = compare(task, ["fedavg"], target="client-loss-worst 2", **options)
    assert "it reached a worst-client loss of 2 in" in found.verdict
    with pytest.raises(InputError, match="client-loss-worst 2 is for networks and clients"):
        compare("synthetic", ["fedavg"], target="client-loss-worst 2")


def test_a_baseline_needs_a_linear_model(task):
    with pytest.raises(InputError, match="the baseline agd is for linear models"):
        compare(task, ["agd", "fedavg"], **SMALL)


def test_held_out_clients_of_a_network_are_refused(task):
    with pytest.raises(InputError, match=r"pass the rows of some clients to the Network"):
        compare(task, "fedavg", clients=HOSPITALS[:320], test_clients=0.2, **SMALL)
