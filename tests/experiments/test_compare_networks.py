# SPDX-License-Identifier: Apache-2.0
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


def test_other_test_rows_and_metrics_are_other_runs(tmp_path):
    options = SMALL | {"clients": HOSPITALS[:320], "methods": ["fedavg"], "tries": 4}
    right = (X[320:], Y[320:])
    wrong = (X[320:], (Y[320:] + 1) % 10)
    given = [
        {"test": right}, {"test": wrong},
        {"test": right, "metrics": {"recall": lambda output, target: 0.25}},
        {"test": right, "metrics": {"recall": lambda output, target: 0.5}},
    ]  # fmt: skip
    found = [compare(Network(make, X[:320], Y[:320], **one), **options, out=tmp_path).table
             for one in given]  # fmt: skip
    assert found[0]["test_accuracy"][0] > found[1]["test_accuracy"][0] + 0.1
    assert [table["test_recall"][0] for table in found[2:]] == [0.25, 0.5]


def test_functions_of_the_user_are_columns_and_targets():
    def three(output, target):
        """Return the share of threes that are found."""
        return float((output.argmax(1) == target)[target == 3].double().mean())

    def error(output, target):
        return -float((output.argmax(1) != target).double().mean())

    mine = Network(
        make, X[:320], Y[:320], test=(X[320:], Y[320:]), metrics={"Three": three, "error": error}
    )
    options = SMALL | {"clients": HOSPITALS[:320]}
    found = compare(mine, ["fedavg", "scaffold"], target="Three 0.8", **options)
    assert {"test_Three", "test_error"} <= {*found.table}
    assert "it reached a Three of 0.8 on the test set in" in found.verdict
    assert found.rows[0].metrics["Three"] > 0.6
    curve = found.rows[0].curves[0]
    first = next(r for r, value in zip(curve.rounds, curve.metrics["Three"], strict=True)
                 if value >= 0.8)  # fmt: skip
    assert curve.cost_of(found.question.target, "rounds") == first
    assert compare(mine, ["fedavg"], target="error -0.6", **options).rows[0].reached
    with pytest.raises(InputError, match=r"worst, Three, error\), got 'four 0[.]5'"):
        compare(mine, ["fedavg"], target="four 0.5", **options)


def test_a_comparison_in_which_nothing_was_learned_has_no_winner():
    def flat() -> nn.Module:
        layer = nn.Linear(2, 2)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    clients = np.repeat(np.arange(5), 8)
    dead = Network(flat, np.zeros((40, 2)), np.arange(40) % 2)  # nothing tells the classes apart
    options = {"K": 2, "rounds": 3, "tries": 4, "repeats": 2, "batch": "full", "jobs": 1}
    said = compare(dead, ["fedavg", "fedavgm"], clients=clients, **options).verdict
    assert said == (
        "No method learned anything: the training loss is 0.693 at the start and 0.693 at the end. "
        "Check the data and the model, or use more rounds."
    )


def test_a_target_that_some_seeds_reach_at_the_start(task):
    """Every seed has a network of its own, and the check before the runs knows only the first."""
    first = [task.evaluate(task.start(seed))["accuracy"] for seed in range(1, 12)]
    value = np.nextafter(first[0], 1)
    assert max(first) > value
    found = compare(task, ["fedavg", "fedavgm"], target=f"accuracy {value}",
                    **SMALL | {"clients": HOSPITALS[:320], "repeats": 10})  # fmt: skip
    assert 0 in [curve.cost_of(found.question.target, "rounds") for curve in found.rows[0].curves]
    assert " are level: " in found.verdict
