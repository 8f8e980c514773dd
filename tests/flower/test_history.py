# SPDX-License-Identifier: Apache-2.0
"""The history of a run as a table, a file and a figure."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from fedac.errors import InputError
from fedac.flower import History
from fedac.flower._arrays import count_bytes


@pytest.fixture(scope="module")
def history(federation):
    return federation.run(rounds=4).history


def test_one_row_per_round(history, tmp_path):
    frame = history.to_frame()
    assert frame["round"].tolist() == [1, 2, 3, 4]
    assert (frame["seconds"] > 0).all()
    assert frame["loss"].is_monotonic_decreasing
    history.to_csv(tmp_path / "history.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "history.csv"), frame)


def test_bytes_count_the_arrays(federation, history):
    grid = federation.grid(nodes=2)
    down, up = [], []
    answer = grid.answer

    def count(message):
        reply = answer(message)
        down.append(count_bytes([message]))
        up.append(count_bytes([reply]))
        return reply

    grid.answer = count
    row = federation.run(rounds=1, grid=grid, min_nodes=2).history.rounds[0]
    assert (row.bytes_down, row.bytes_up) == (sum(down), sum(up))
    # Two nodes: both sequences up; both and the output, for the evaluation, down.
    assert row.bytes_up >= 2 * 2 * federation.F.dim * 8
    assert row.bytes_down >= 2 * 3 * federation.F.dim * 8


def test_fedac_sends_twice_what_fedavg_does(federation):
    fedac = federation.run("fedac-i", rounds=1, evaluate_every=0).history.rounds[0]
    fedavg = federation.run("fedavg", rounds=1, evaluate_every=0).history.rounds[0]
    assert fedac.bytes_up == 2 * fedavg.bytes_up
    assert fedac.bytes_down == 2 * fedavg.bytes_down


@pytest.mark.parametrize("against", ["rounds", "megabytes"])
def test_plot(history, against):
    mpl.use("Agg")
    ax = history.plot(against=against)
    (line,) = ax.lines
    assert list(line.get_ydata()) == [loss for _, loss in history.metric("loss")]
    assert ax.get_xlabel().startswith(against)
    plt.close(ax.figure)


def test_plot_names_the_metrics_that_exist(history):
    with pytest.raises(InputError, match="no metric 'accuracy'; measured: loss"):
        history.plot("accuracy", ax=object())
    with pytest.raises(InputError, match="against must be"):
        history.plot(against="time")


def test_an_empty_history_is_an_empty_table():
    assert History().to_frame().empty
