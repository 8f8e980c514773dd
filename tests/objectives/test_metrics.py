# SPDX-License-Identifier: Apache-2.0
"""The metrics of test sets against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn import metrics as theirs

import fedac
from fedac.objectives import (
    HeldOut,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
    SquaredHinge,
)
from fedac.objectives.metrics import auc

rng = np.random.default_rng(5)
X, TEST = rng.standard_normal((50, 3)), np.round(rng.standard_normal((40, 3)), 1)
w = np.array([1.0, -0.5, 2.0])


def test_two_classes():
    y, test_y = (rng.choice(["no", "yes"], n) for n in (50, 40))
    z = TEST @ w
    found = HeldOut.of(LogisticRegression(X, y), TEST, test_y).evaluate(w)
    assert list(found) == ["loss", "accuracy", "auc", "log-loss"]
    probability = 1 / (1 + np.exp(-z))
    assert found["accuracy"] == theirs.accuracy_score(test_y == "yes", z > 0)
    assert found["auc"] == pytest.approx(theirs.roc_auc_score(test_y == "yes", z))
    assert found["log-loss"] == pytest.approx(theirs.log_loss(test_y == "yes", probability))
    assert found["loss"] == found["log-loss"]
    # A margin of a support vector machine is not the logarithm of odds.
    assert list(HeldOut.of(SquaredHinge(X, y), TEST, test_y).evaluate(w)) == list(found)[:3]
    alone = HeldOut.of(LogisticRegression(X, y), TEST[:2], ["yes", "yes"]).evaluate(w)
    assert "auc" not in alone  # there is none of a single class


def test_many_classes():
    y, test_y = (rng.choice(["ash", "elm", "fir"], n) for n in (50, 40))
    W = rng.standard_normal((3, 3))
    found = HeldOut.of(SoftmaxRegression(X, y), TEST, test_y).evaluate(W.ravel())
    scores = np.exp(TEST @ W)
    shares = scores / scores.sum(axis=1, keepdims=True)
    predicted = np.array(["ash", "elm", "fir"])[shares.argmax(axis=1)]
    assert found["accuracy"] == theirs.accuracy_score(test_y, predicted)
    assert found["log-loss"] == pytest.approx(theirs.log_loss(test_y, shares))
    assert "auc" not in found


def test_real_targets():
    y, test_y = X @ w + rng.standard_normal(50), TEST @ w + rng.standard_normal(40)
    found = HeldOut.of(LeastSquares(X, y), TEST, test_y).evaluate(w)
    assert list(found) == ["loss", "r2", "mae"]
    assert found["r2"] == pytest.approx(theirs.r2_score(test_y, TEST @ w))
    assert found["mae"] == pytest.approx(theirs.mean_absolute_error(test_y, TEST @ w))
    counts, test_counts = rng.poisson(2, 50), rng.poisson(2, 40)
    found = HeldOut.of(PoissonRegression(X, counts), TEST, test_counts).evaluate(w / 4)
    expected = np.exp(TEST @ w / 4)
    assert found["mae"] == pytest.approx(theirs.mean_absolute_error(test_counts, expected))
    assert found["r2"] == pytest.approx(theirs.r2_score(test_counts, expected))


def test_at_every_record():
    y, test_y = (rng.choice(["ash", "elm", "fir"], n) for n in (50, 40))
    F = SoftmaxRegression(X, y, l2=0.1)
    result = fedac.simulate(
        F, ["fedavg", "scaffold"], clients=np.arange(50) % 5, K=2, T=16, eta=0.1,
        record_every=4, test=(TEST, test_y), engine="reference",
    )  # fmt: skip
    test = HeldOut.of(F, TEST, test_y)
    for run in result.runs:
        assert set(run.metrics) == {"loss", "accuracy", "log-loss"}
        assert len(run.metrics["accuracy"]) == len(run.steps) == 5
        assert run.metrics["accuracy"][-1] == test.evaluate(run.w)["accuracy"]
        np.testing.assert_array_equal(run.test_accuracy, run.metrics["accuracy"])
    assert "test_log_loss" in result.to_frame()


@pytest.mark.parametrize("rows", [np.asarray, scipy.sparse.csr_array])
def test_many_models_at_once(rows):
    """Each has the same bits whether it is evaluated alone or with others."""
    classes, real = rng.choice(["ash", "elm", "fir"], 50), rng.standard_normal(50)
    for model in (LeastSquares(rows(X), real), SoftmaxRegression(rows(X), classes)):
        y = real[:40] if isinstance(model, LeastSquares) else classes[:40]
        test, W = HeldOut.of(model, rows(TEST), y), rng.standard_normal((7, model.dim))
        together = test.evaluate_all(W)
        for place, one in enumerate(W):
            alone = test.evaluate(one)
            assert alone == {name: values[place] for name, values in together.items()}


def test_metrics_that_do_not_exist_are_left_out():
    F = LeastSquares(X, rng.standard_normal(50))
    assert list(HeldOut.of(F, TEST[:2], [1.0, 1.0]).evaluate(w)) == ["loss", "mae"]


def test_the_auc_counts_a_tie_half():
    rng = np.random.default_rng(0)
    z, y = rng.integers(0, 6, 60).astype(float), np.where(rng.random(60) < 0.3, 1.0, -1.0)
    differences = z[y > 0][:, None] - z[y <= 0]
    assert auc(z, y) == ((differences > 0) + (differences == 0) / 2).mean()
