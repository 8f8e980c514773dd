# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy.optimize import minimize

from fedac.data import dense, load, synthetic
from fedac.errors import InputError

L2 = 1e-3


def optimal_loss(data):
    def loss(w):
        z = data.y * (data.X @ w)
        slopes = -data.y / (1 + np.exp(z))
        value = np.logaddexp(0, -z).mean() + L2 / 2 * w @ w
        return value, data.X.T @ slopes / data.n_samples + L2 * w

    return minimize(loss, np.zeros(data.n_features), jac=True, method="L-BFGS-B").fun


def test_synthetic_never_changes():
    data = synthetic()
    parts = data.X.indptr, data.X.indices, data.y.astype(np.int8)
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    assert digest == "3bd5b8cf1fb6c07fdb001086cb2f209c52d87dfc3e61d89422b5c43c4eb51880"
    assert data.X.indices.dtype == data.X.indptr.dtype == np.int32
    assert (data.X.data == 1).all()


def test_synthetic_resembles_a9a():
    data = synthetic()
    ones = np.diff(data.X.indptr)
    assert (data.n_samples, data.n_features) == (32_561, 123)
    assert ones.min() >= 11
    assert ones.max() == 14
    assert 13.8 < ones.mean() < 13.95
    assert 0.30 < optimal_loss(data) < 0.35


def test_synthetic_loss_is_that_of_a9a(a9a):
    assert optimal_loss(synthetic()) == pytest.approx(optimal_loss(a9a), abs=0.01)


def test_seeds_differ_and_repeat():
    one, again, two = synthetic(seed=1), synthetic(seed=1), synthetic(seed=2)
    assert (one.X != again.X).nnz == 0
    assert (one.X != two.X).nnz > 0
    np.testing.assert_array_equal(dense(9, 3, seed=1).X, dense(9, 3, seed=1).X)
    assert not np.array_equal(dense(9, 3, seed=1).X, dense(9, 3, seed=2).X)


@pytest.mark.parametrize("make", [synthetic, dense])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 5), (50, 14), (10, 1000)])
def test_any_size(make, n, d):
    data = make(n, d)
    assert data.X.shape == (n, d)
    assert set(data.y) == {-1.0, 1.0}


@pytest.mark.parametrize("make", [synthetic, dense])
def test_impossible_sizes(make):
    with pytest.raises(InputError, match="n_samples must be a whole number, at least 2, got 0"):
        make(n_samples=0)
    with pytest.raises(InputError, match="n_features must be a whole number, at least 1, got 0"):
        make(n_features=0)


def test_dense_has_unit_rows_and_balanced_labels():
    data = dense()
    assert data.X.shape == (4000, 2000)
    assert data.X.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(data.X, axis=1), 1)
    assert data.y.sum() == 0
    assert data.X[0, :2] == pytest.approx([0.002809755326, -0.002952212602])
    assert optimal_loss(data) < np.log(2)


def test_both_load_by_name():
    assert load("synthetic").name == "synthetic"
    assert load("synthetic-dense").X.shape == (4000, 2000)
