# SPDX-License-Identifier: Apache-2.0
"""Names of data sets and algorithms: one name never means two things."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

from fedac.data import Dataset, load
from fedac.experiments.summary import A9A, A9A_ROWS, with_unique_names
from fedac.experiments.workload import rows_hash
from fedac.objectives import LogisticRegression

DEFAULTS = {
    "dataset": "train",
    "data_hash": "a" * 64,
    "rows_hash": "",
    "l2": 1e-3,
    "objective": "logistic",
    "intercept": False,
    "algorithm": "fedavg",
    "fingerprint": "",
    "mu": 1e-3,
    "model": "",
    "M": 4,
    "split": "",
    "split_seed": 0,
    "split_hash": "",
    "participation": 1.0,
    "batch": "1",
    "weighting": "examples",
    "decay": "",
    "wire": "float32",
}


def named(*runs):
    """Return the names of some runs, which do not depend on the order of the runs."""
    frame = pd.DataFrame([DEFAULTS | run for run in runs])
    result = with_unique_names(frame)
    for order in itertools.permutations(frame.index):
        again = with_unique_names(frame.loc[list(order)])
        pd.testing.assert_frame_equal(again.sort_index(), result)
    return list(zip(result["dataset"], result["algorithm"], strict=True))


def datasets(*runs):
    return [dataset for dataset, _ in named(*runs)]


def algorithms(*runs):
    return [algorithm for _, algorithm in named(*runs)]


def test_one_data_set_keeps_its_name():
    assert datasets({}, {"l2": 1e-2, "data_hash": "b" * 64}) == ["train", "train"]


def test_two_data_sets_of_one_name():
    other = {"data_hash": "b" * 64}
    assert datasets({}, other) == ["train (aaaaaa)", "train (bbbbbb)"]
    both = ({"rows_hash": "1" * 64}, other | {"rows_hash": "2" * 64, "l2": 1e-2})
    assert datasets(*both) == ["train (111111)", "train (222222)"]
    assert datasets({"dataset": "test"}, *both)[0] == "test"


def test_losses_and_intercepts_are_told_apart():
    rows = {"rows_hash": "1" * 64}
    hinge = rows | {"objective": "squared-hinge", "data_hash": "b" * 64}
    both = hinge | {"intercept": True, "data_hash": "c" * 64}
    assert datasets(rows, hinge, both) == [
        "train", "train, squared-hinge", "train, squared-hinge, intercept",
    ]  # fmt: skip


def test_algorithms_that_changed_are_told_apart():
    first, second = {"fingerprint": "1" * 16}, {"fingerprint": "2" * 16}
    assert algorithms(first) == ["fedavg"]
    assert algorithms({}, first) == ["fedavg", "fedavg (111111)"]
    assert algorithms(first, second) == ["fedavg (111111)", "fedavg (222222)"]
    assert algorithms({}, {"mu": 0.01}) == ["fedavg", "fedavg, mu=0.01"]


def federations(*runs):
    """Return the names of the splits and of the federations."""
    named = with_unique_names(pd.DataFrame([DEFAULTS | run for run in runs]))
    return list(zip(named["split"], named["federation"], strict=True))


def test_federations_are_named_by_what_is_used():
    label = {"split": "label", "split_hash": "1" * 64}
    assert federations({}, label, label | {"participation": 0.1, "batch": "full"}) == [
        ("", ""),
        ("label", "split label"),
        ("label", "split label, participation 0.1, batch full"),
    ]
    other = {"split_seed": 2, "weighting": "uniform", "decay": "1/r", "participation": 20.0}
    assert federations(label | other) == [
        ("label", "split label, split seed 2, participation 20, weighting uniform, decay 1/r")
    ]


def test_two_splits_of_one_name_are_told_apart():
    first, second = ({"split": "users.txt", "split_hash": digit * 64} for digit in "12")
    assert federations(first, second) == [
        ("users.txt (111111)", "split users.txt (111111)"),
        ("users.txt (222222)", "split users.txt (222222)"),
    ]
    # Other clients or other data have other splits of course.
    for other in ({"M": 8}, {"dataset": "test"}, {"split_seed": 1}):
        assert [split for split, _ in federations(first, second | other)] == ["users.txt"] * 2


def test_no_file_passes_for_the_papers_a9a():
    paper = {"dataset": "a9a", "data_hash": A9A[1e-3]}
    old = {"dataset": "a9a"}
    new = old | {"rows_hash": "1" * 64, "l2": 0.5, "data_hash": "b" * 64}
    assert datasets(paper) == ["a9a"]
    assert datasets(paper | {"rows_hash": A9A_ROWS, "l2": 0.5, "data_hash": "c" * 64}) == ["a9a"]
    assert datasets(old) == ["a9a (aaaaaa)"]
    assert datasets(new) == ["a9a (111111)"]
    assert datasets(paper, old, new) == ["a9a", "a9a (aaaaaa)", "a9a (111111)"]


@pytest.mark.parametrize("l2", A9A)
def test_the_papers_a9a(l2):
    data = load("a9a")
    assert rows_hash(data) == A9A_ROWS
    assert LogisticRegression(data.X, data.y, l2=l2).fingerprint() == A9A[l2]
    flipped = data.y.copy()
    flipped[0] *= -1
    assert rows_hash(Dataset("a9a", data.X, flipped)) != A9A_ROWS
