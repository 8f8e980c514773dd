# SPDX-License-Identifier: Apache-2.0
"""Softmax regression against formulas typed from its definition and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import check_grad
from sklearn.linear_model import LogisticRegression as ScikitLearn

from fedac.errors import InputError
from fedac.objectives import LogisticRegression, SoftmaxRegression, optimum

rng = np.random.default_rng(3)
X = rng.standard_normal((60, 4)) * [1, 2, 0.5, 1]
Y = rng.choice(["ash", "elm", "fir", "oak"], 60, p=[0.4, 0.3, 0.2, 0.1])
L2 = 0.02


def plain_value(w: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> float:
    """The definition, row by row."""
    names = sorted(set(Y))
    W, total = w.reshape(4, 4), 0.0
    for x, label, weight in zip(rows, Y, weights, strict=True):
        scores = [sum(x[j] * W[j, c] for j in range(4)) for c in range(4)]
        probability = np.exp(scores[names.index(label)]) / sum(np.exp(s) for s in scores)
        total -= weight * np.log(probability)
    return total / weights.sum() + L2 / 2 * sum(w**2)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weights", [None, rng.uniform(0.2, 2, 60)])
def test_value_and_derivatives(sparse, weights):
    F = SoftmaxRegression(sp.csr_array(X) if sparse else X, Y, l2=L2)
    F = F if weights is None else F.weighted(weights)
    given = np.ones(60) if weights is None else weights
    w, v = rng.standard_normal((2, F.dim))
    np.testing.assert_allclose(F.value(w), plain_value(w, X, given), rtol=1e-12)
    np.testing.assert_allclose(F.values(np.stack([w, v]))[1], F.value(v), rtol=1e-14)
    assert check_grad(F.value, F.gradient, w, epsilon=1e-6) < 1e-6
    step = 1e-6
    by_differences = (F.gradient(w + step * v) - F.gradient(w - step * v)) / (2 * step)
    np.testing.assert_allclose(F.hessian_product(w, v), by_differences, atol=1e-8)
    rows = np.arange(60)
    of_rows = F.stochastic_gradients(np.tile(w, (60, 1)), rows)
    mean = given @ of_rows / given.sum()
    np.testing.assert_allclose(mean, F.gradient(w), rtol=1e-12)
    noise = given @ ((of_rows - mean) ** 2).sum(axis=1) / given.sum()
    np.testing.assert_allclose(F.noise(w), noise, rtol=1e-10)
    assert F.noise(w) <= F.noise_bound
    np.testing.assert_allclose(
        F.fourth_moment(w) if weights is None else 0,
        ((of_rows - mean) ** 2).sum(axis=1).__pow__(2).mean() if weights is None else 0,
    )


def test_smoothness_bounds_the_largest_curvature():
    F = SoftmaxRegression(X, Y, l2=L2)
    for size in (0.0, 0.1, 1.0):
        w = size * rng.standard_normal(F.dim)
        H = np.stack([F.hessian_product(w, unit) for unit in np.eye(F.dim)])
        eigenvalues = np.linalg.eigvalsh(H)
        assert L2 * (1 - 1e-9) <= eigenvalues[0] <= eigenvalues[-1] <= F.smoothness
    # Half of it belongs to p = (1/2, 1/2): two classes at zero reach the bound.
    two = SoftmaxRegression(X, Y == "ash", l2=L2)
    H = np.stack([two.hessian_product(np.zeros(8), unit) for unit in np.eye(8)])
    np.testing.assert_allclose(np.linalg.eigvalsh(H)[-1], two.smoothness)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_optimum_of_scikit_learn(intercept):
    F = SoftmaxRegression(X, Y, l2=L2, intercept=intercept)
    rows = np.hstack([X, np.ones((60, 1))]) if intercept else X
    theirs = ScikitLearn(C=1 / (60 * L2), fit_intercept=False, tol=1e-12, max_iter=10_000)
    theirs.fit(rows, Y)
    np.testing.assert_allclose(optimum(F).w.reshape(-1, 4), theirs.coef_.T, atol=1e-6)
    assert F.classes == tuple(theirs.classes_)


def test_two_classes_are_logistic_regression():
    two = Y == "ash"
    # The matrix (-w/2, w/2) has the margins -z/2 and z/2, and half the squared norm of w.
    F, G = SoftmaxRegression(X, two, l2=2 * L2), LogisticRegression(X, 2.0 * two - 1, l2=L2)
    for w in rng.standard_normal((3, 4)):
        half = np.stack([-w / 2, w / 2], axis=1).ravel()
        np.testing.assert_allclose(F.value(half), G.value(w), rtol=1e-12)
    best = optimum(F).w.reshape(4, 2)
    np.testing.assert_allclose(best[:, 1] - best[:, 0], optimum(G).w, atol=1e-8)


def test_clients_differ_as_measured_by_hand():
    owners = rng.choice(["a", "b", "c"], 60, p=[0.5, 0.3, 0.2])
    F = SoftmaxRegression(X, Y, l2=L2)
    for weighting in ("examples", "uniform"):
        sizes = np.array([(owners == name).sum() for name in "abc"])
        p = sizes / 60 if weighting == "examples" else np.ones(3) / 3
        whole = (
            F
            if weighting == "examples"
            else F.weighted((p / sizes)[np.searchsorted(["a", "b", "c"], owners)])
        )
        w = optimum(whole).w
        gradients = []
        for name in "abc":
            rows = np.flatnonzero(owners == name)
            gradients.append(F.stochastic_gradients(np.tile(w, (len(rows), 1)), rows).mean(axis=0))
        distance = p @ ((np.array(gradients) - whole.gradient(w)) ** 2).sum(axis=1)
        found = F.heterogeneity(owners, weighting)
        np.testing.assert_allclose(found.gradients, distance, rtol=1e-8)
        assert found.hessians is None


def test_what_is_refused():
    with pytest.raises(InputError, match="60 rows but y has shape"):
        SoftmaxRegression(X, Y[:3])
    with pytest.raises(InputError, match="every row has the target 'ash'"):
        SoftmaxRegression(X, ["ash"] * 60)


def test_classes_without_a_row_keep_their_parameters():
    everything = SoftmaxRegression(X, Y, l2=L2)
    some = np.flatnonzero(Y != "elm")
    F = SoftmaxRegression(X[some], Y[some], l2=L2, classes=everything.classes)
    assert F.dim == everything.dim
    w = rng.standard_normal(F.dim)
    rows = everything.stochastic_gradients(np.tile(w, (len(some), 1)), some)
    np.testing.assert_allclose(F.gradient(w), rows.mean(axis=0), rtol=1e-12)
    assert F.fingerprint() != SoftmaxRegression(X[some], Y[some], l2=L2).fingerprint()
