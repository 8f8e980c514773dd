# SPDX-License-Identifier: Apache-2.0
"""Huber and Poisson regression against SciPy, scikit-learn and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import check_grad
from scipy.special import huber
from sklearn.linear_model import PoissonRegressor

from fedac.data import Dataset
from fedac.errors import InputError
from fedac.objectives import HuberRegression, PoissonRegression, optimum
from fedac.objectives.losses import describe_target, find_loss
from fedac.simulation import simulate

rng = np.random.default_rng(11)
X = rng.standard_normal((80, 5)) * (rng.random((80, 5)) < 0.7)
REAL = X @ [1, -2, 0, 0.5, 3] + rng.standard_t(1.5, 80)
COUNTS = rng.poisson(np.exp(0.4 * X @ [1, -1, 0, 0.5, 0.2]))
MODELS = {"huber": (HuberRegression, REAL), "poisson": (PoissonRegression, COUNTS)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", [None, rng.uniform(0.2, 2, 80)])
def test_values_and_derivatives(name, weights):
    kind, y = MODELS[name]
    F = kind(X, y, l2=0.03)
    F = F if weights is None else F.weighted(weights)
    w, v = 0.5 * rng.standard_normal((2, 5))
    z = X @ w
    losses = huber(1.0, z - y) if name == "huber" else np.exp(z) - y * z
    expected = np.average(losses, weights=weights) + 0.015 * (w @ w)
    np.testing.assert_allclose(F.value(w), expected, rtol=1e-12)
    assert check_grad(F.value, F.gradient, w, epsilon=1e-7) < 2e-6
    slope = (F.gradient(w + 1e-7 * v) - F.gradient(w - 1e-7 * v)) / 2e-7
    np.testing.assert_allclose(F.hessian_product(w, v), slope, atol=1e-6)


def test_the_optimum_of_scikit_learn():
    theirs = PoissonRegressor(alpha=0.03, fit_intercept=False, tol=1e-12, max_iter=10_000)
    theirs.fit(X, COUNTS)
    found = optimum(PoissonRegression(X, COUNTS, l2=0.03)).w
    np.testing.assert_allclose(found, theirs.coef_, atol=1e-6)


def test_outliers_move_huber_little():
    clean = X @ [1, -2, 0, 0.5, 3]
    spoiled = np.where(np.arange(80) == 7, 1e4, clean)
    near = optimum(HuberRegression(X, spoiled, l2=1e-6)).w
    np.testing.assert_allclose(near, [1, -2, 0, 0.5, 3], atol=0.1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sparse", [False, True])
def test_both_engines_agree(name, sparse):
    kind, y = MODELS[name]
    F = kind(sp.csr_array(X) if sparse else X, y, l2=0.03)
    owners = rng.choice(4, 80, p=[0.4, 0.3, 0.2, 0.1])
    settings = {
        "K": 5, "T": 30, "eta": [0.02, 0.05], "clients": owners, "participation": 0.5,
        "batch": 3, "start": np.zeros(5), "precision": "float64",
    }  # fmt: skip
    fast, reference = (
        simulate(F, ["fedac-i", "scaffold", "fedavg"], engine=engine, **settings)
        for engine in ("fast", "reference")
    )
    for one, other in zip(fast.runs, reference.runs, strict=True):
        np.testing.assert_allclose(one.w, other.w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-10)


def test_counts_are_needed():
    with pytest.raises(InputError, match="needs counts, at least 0, got -1"):
        PoissonRegression(X, COUNTS - 1)


@pytest.mark.parametrize("n", [1, 7, 1500])
@pytest.mark.parametrize("weighted", [False, True])
def test_smoothness_of_wide_data(n, weighted):
    wide = sp.random_array((n, 1200), density=0.01, rng=np.random.default_rng(1), format="csr")
    F = HuberRegression(wide, np.arange(n), l2=0.5)
    weights = np.random.default_rng(2).uniform(0.1, 3, n) if weighted else np.ones(n)
    F = F.weighted(weights) if weighted else F
    scaled = np.sqrt(weights / weights.sum())[:, None] * wide.toarray()
    assert F.smoothness == pytest.approx(np.linalg.norm(scaled, 2) ** 2 + 0.5)


@pytest.mark.parametrize("name", ["l1", "lasso", "elastic-net"])
def test_l1_is_refused_in_words(name):
    with pytest.raises(
        InputError, match=f"no loss {name}: an L1 penalty belongs to a method: use l2, or"
    ):
        find_loss(name)


def test_classes_that_are_used_as_numbers_are_described_as_numbers():
    counts = Dataset("visits", np.eye(15), [0, 1, 2] * 5)
    assert describe_target(counts, "poisson") == "numbers from 0 to 2; Poisson regression"
    assert describe_target(counts, "softmax") == "3 classes: 0, 1, 2; softmax regression"
