# SPDX-License-Identifier: Apache-2.0
"""The authors' numbers, as the package carries them."""

from __future__ import annotations

import pandas as pd
import pytest

from fedac.experiments.grid import read_grid, shipped
from fedac.experiments.reproduction.published import F_STAR, paper_datasets, published_runs
from fedac.experiments.summary import A9A
from fedac.objectives import LogisticRegression, optimum

CELL = ["dataset", "l2", "algorithm", "M", "K"]


@pytest.fixture(scope="module")
def table():
    return published_runs().set_index(CELL)


def test_every_cell_once(table):
    assert table.index.is_unique
    assert table.index.is_monotonic_increasing
    counts = table.groupby(["dataset", "l2"]).size().to_dict()
    assert counts == {("a9a", 1e-4): 840, ("a9a", 1e-3): 810, ("epsilon", 1e-4): 532}


@pytest.mark.parametrize(
    ("cell", "eta", "loss"),
    [
        (("a9a", 0.001, "fedac-i", 8192, 128), 0.1, 0.3343814553),
        (("a9a", 0.001, "fedavg", 8192, 1), 1.0, 0.3333647456),
        (("a9a", 0.001, "mb-sgd", 4, 256), 2.0, 0.491566679),
        (("a9a", 0.0001, "fedac-vanilla", 1024, 64), 0.005, 0.3274497135),
        (("a9a", 0.0001, "mb-ac-sgd", 64, 1), 0.005, 0.3310269194),
        (("a9a", 0.0001, "fedac-ii", 8192, 512), 0.1, 0.3366491444),
        (("epsilon", 0.0001, "fedac-i", 2048, 64), 1.0, 0.4713924846),
        (("epsilon", 0.0001, "mb-sgd", 8192, 256), 20.0, 0.798325198),
    ],
)
def test_pinned(table, cell, eta, loss):
    row = table.loc[cell]
    assert (row["eta"], row["best_loss"]) == (eta, loss)


@pytest.mark.parametrize("sweep", ["a9a-l2-1e-3", "a9a-l2-1e-4", "epsilon-l2-1e-4"])
def test_tuned_over_the_step_sizes_of_our_sweep(table, sweep):
    grid = read_grid(shipped(sweep))
    etas = set(table.loc[grid.dataset, grid.l2]["eta"])
    assert etas <= set(grid.eta)


def test_suboptimality_where_the_optimum_is_known(table):
    a9a, epsilon = table.loc["a9a"], table.loc["epsilon"]
    assert (a9a["suboptimality"] > 0).all()
    assert epsilon["suboptimality"].isna().all()
    # The paper's "32 rounds to 1e-3".
    assert table.loc[("a9a", 1e-3, "fedac-i", 8192, 128), "suboptimality"] == pytest.approx(
        1.04e-3, abs=5e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("l2", [1e-3, 1e-4])
def test_the_optimum_of_a9a(a9a, l2):
    value = optimum(LogisticRegression(a9a.X, a9a.y, l2=l2)).value
    assert value == pytest.approx(F_STAR["a9a", l2], abs=2e-12)


def test_a9a_is_identified_by_its_content(a9a):
    hashes = [LogisticRegression(a9a.X, a9a.y, l2=l2).fingerprint() for l2 in (1e-2, 1e-3, 1e-4)]
    assert list(A9A.values()) == hashes
    frame = pd.DataFrame(
        [
            ("a9a", hashes[1], 32_561, 123),
            ("renamed", hashes[2], 32_561, 123),
            ("a9a", "0" * 64, 32_561, 123),
            ("epsilon", "0" * 64, 400_000, 2_000),
            ("epsilon", "0" * 64, 400_000, 3),
        ],
        columns=["dataset", "data_hash", "n_samples", "n_features"],
    )
    assert list(paper_datasets(frame)) == ["a9a", "a9a", "", "epsilon", ""]
