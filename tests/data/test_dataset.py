from __future__ import annotations

import re

import numpy as np
import pytest

from fedac.data.dataset import Dataset, labels_to_signs
from fedac.errors import DataError, InputError
from fedac.objectives import LogisticRegression


@pytest.mark.parametrize(
    "labels", [[-1, 1, 1], [0, 1, 1], [1, 2, 2], np.array([0, 1, 1], dtype=np.int8)]
)
def test_accepted_pairs_become_signs(labels):
    signs = labels_to_signs(labels, "x")
    assert signs.dtype == np.float64
    assert signs.tolist() == [-1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 1], "x: two classes are needed, found 1: 1"),
        ([1, 2, 3], "x: two classes are needed, found 3: 1, 2, 3"),
        (range(10), "x: two classes are needed, found 10: 0, 1, 2, 3, 4, 5, ..."),
        ([], "x: two classes are needed, found 0"),
        ([0.5, 2], "x: labels are {0.5, 2}; accepted pairs: {-1, +1}, {0, 1}, {1, 2}"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(DataError, match=re.escape(message)):
        labels_to_signs(list(labels), "x")


def test_dataset_checks_its_parts():
    X = np.eye(2)
    with pytest.raises(DataError, match=re.escape("mine: 2 rows but labels of shape (3,)")):
        Dataset("mine", X, np.ones(3))
    with pytest.raises(DataError, match=r"mine: labels must be -1 and \+1$"):
        Dataset("mine", X, np.zeros(2))


@pytest.mark.parametrize("labels", [[0, 1], [2, 1], [-0.1, 1 / 3]])
@pytest.mark.parametrize(
    "make", [lambda y: Dataset("mine", np.eye(2), y), lambda y: LogisticRegression(np.eye(2), y)]
)
def test_the_advice_on_labels_runs_as_printed(labels, make):
    here = {"np": np, "y": np.array(labels, float)}
    with pytest.raises(InputError) as caught:
        make(here["y"])
    advice = str(caught.value).partition(" by ")[2]
    exec(advice, here)
    assert make(here["y"]).y.tolist() == np.where(np.array(labels) == max(labels), 1, -1).tolist()
