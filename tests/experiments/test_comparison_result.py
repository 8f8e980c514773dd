# SPDX-License-Identifier: Apache-2.0
"""What `fedac.compare` returns: table, frame, verdict, curves, and how it is shown."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.stats import gmean

import fedac
from fedac.errors import InputError
from fedac.experiments.summary import Band

TEN = ["method", "K", "wire", "eta", "rounds", "megabytes", "seconds", "suboptimality", "ratio",
       "level"]  # fmt: skip
REACHED = {
    ("fedavg", 8, "float32"): [[1.0, 0.2, 0.06, 0.04], [1.0, 0.3, 0.06, 0.04]],
    ("fedac-i", 4, "float32"): [[1.0, 0.2, 0.05, 0.02], [1.0, 0.1, 0.03, 0.01]],
    ("fedac-i", 8, "float32"): [[1.0, 0.04, 0.02, 0.01], [1.0, 0.03, 0.01, 0.01]],
}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_the_table_has_ten_columns_and_each_method_at_its_best(made_up):
    found = made_up(REACHED, target=0.05)
    assert list(found.table) == TEN
    assert found.table[["method", "K"]].values.tolist() == [["fedac-i", 8], ["fedavg", 8]]
    assert len(found.frame) == 3
    best = found.frame.drop_duplicates("method").reset_index(drop=True)
    pd.testing.assert_frame_equal(found.table, best[TEN])
    assert {"rounds_low", "ratio_high", "server_step", "edge"} < set(found.frame)


def test_printed_it_is_title_table_and_verdict(made_up):
    found = made_up(REACHED, target=0.05)
    title, table, verdict = str(found).split("\n\n")
    assert title == (
        "mine (2 classes: ill, well; logistic regression), l2 = 0.001: 10 clients, split iid"
    )
    heads, first, second = table.splitlines()
    assert heads.split() == [name for name in TEN if name != "wire"]
    assert first.split()[:3] == ["fedac-i", "8", "0.5"]
    assert second.split()[0] == "fedavg"
    assert verdict == found.verdict
    assert verdict.startswith("FedAc-I (K = 8, step size 0.5) is the fastest on this link")
    assert verdict.count(".\n") >= 1  # a sentence per line
    assert repr(found) == str(found)


def test_columns_without_values_are_not_printed(made_up):
    # "rounds" is also a word of the verdict.
    without_target = str(made_up(REACHED, target=None)).split("\n\n")[1].splitlines()[0]
    assert without_target.split() == ["method", "K", "eta", "suboptimality", "ratio", "level"]
    wires = {
        (name, K, wire): v for (name, K, _), v in REACHED.items() for wire in ("float32", "int8")
    }
    assert "int8" in str(made_up(wires, target=0.05))


def test_notebooks_show_a_table_that_data_cannot_break(made_up):
    shown = made_up(REACHED, target=0.05, dataset="<script>&")._repr_html_()
    assert "&lt;script&gt;&amp; (2 classes: ill, well; logistic regression)" in shown
    assert "<script" not in shown
    assert shown.count("<tr") == 3
    assert shown.endswith("</p>")


@pytest.mark.parametrize("against", ["rounds", "megabytes", "seconds"])
def test_curves(made_up, against):
    found = made_up(REACHED, target=0.05)
    ax = found.plot(against=against)
    lines = {line.get_label(): line for line in ax.lines}
    (line,) = (lines[name] for name in lines if name.startswith("FedAc-I"))
    assert line.get_label() == "FedAc-I, K=8"
    seeds = list(REACHED["fedac-i", 8, "float32"])
    assert line.get_ydata() == pytest.approx(gmean(seeds, axis=0))
    # One round is half a megabyte, and two seconds on the first seed, four on the second.
    per_round = {"rounds": 1, "megabytes": 0.5, "seconds": 3}[against]
    assert line.get_xdata() == pytest.approx(per_round * np.arange(4))
    assert ax.get_legend().get_texts()[0].get_text() == "FedAc-I, K=8"
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "suboptimality")
    ax.figure.canvas.draw()


def test_grey_lines_are_counted(made_up):
    names = ("fedac-i", "mb-sgd", "mb-ac-sgd", "fedac-ii", "scaffold", "diloco", "fedavg")
    ends = {(name, 8, "float32"): [[1.0, 0.01 * 1.1**k]] * 2 for k, name in enumerate(names)}
    ax = made_up(ends, dataset="cost in $ or $").plot()
    assert not ax.get_legend().get_title().get_text()
    ax.figure.canvas.draw()
    ends["fedavgm", 8, "float32"] = ends["slowmo", 8, "float32"] = [[1.0, 0.03]] * 2
    ax = made_up(ends).plot()
    assert ax.get_legend().get_title().get_text() == "grey: 2 other methods"
    ax.figure.canvas.draw()


def test_axes_of_ones_own_and_bad_ones(made_up):
    found, mine = made_up(REACHED, target=0.05), plt.figure().add_subplot()
    assert found.plot(mine) is mine
    assert len(plt.get_fignums()) == 1
    with pytest.raises(InputError, match="unknown axis 'hours'"):
        found.plot(against="hours")


def test_nothing_to_plot(made_up):
    found = made_up({("fedavg", 8, "float32"): [[math.inf] * 4] * 2})
    found = replace(found, rows=tuple(replace(row, curves=()) for row in found.rows))
    assert found.verdict == "Every method diverged."
    with pytest.raises(InputError, match="every method diverged"):
        found.plot()


def test_it_speaks_in_the_labels_of_the_data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    data = fedac.Dataset("patients", X, np.where(X[:, 0] > 0, "ill", "well"))
    found = fedac.compare(data, ["fedavg"], K=2, rounds=3, clients=3, tries=4, repeats=2)
    assert found.title.startswith("patients (2 classes: ill, well; logistic regression), l2 =")


def test_a_few_bytes_more_on_every_seed_do_not_separate_methods(made_up):
    row = made_up(REACHED, target=0.05).rows[1]
    assert not row.level
    assert replace(row, ratio=Band(1.0002, 1.0002, 1.0002)).level
    assert not replace(row, ratio=Band(1.02, 1.01, 1.03)).level
