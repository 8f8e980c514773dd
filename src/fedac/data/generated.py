# SPDX-License-Identifier: Apache-2.0
"""Generated data sets, in the shapes of published ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedac.data.dataset import Dataset
from fedac.validate import require_count

# Columns per categorical attribute in a9a: age, workclass, ..., native country.
GROUP_SIZES = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
# Share of rows in which an attribute is unknown: a9a has 13.9 ones a row, not 14.
MISSING = (0, 0.056, 0, 0, 0, 0, 0.057, 0, 0, 0, 0, 0, 0, 0.018)
POSITIVE_SHARE = 0.2408

# Chosen to be as hard as a9a for a logistic model: the largest eigenvalue of X'X/n is near 6 and
# the optimal loss at l2 = 1e-3 is near 0.33.
ZIPF_EXPONENT = 1.5
SHARED_DRAWS = 0.5
WEIGHT_SCALE = 1.9


def synthetic(n_samples: int = 32561, n_features: int = 123, seed: int = 0) -> Dataset:
    """Generate sparse one-hot data in the shape of a9a.

    Each row has one category of each of 14 attributes, with Zipf frequencies and correlated
    columns. Labels come from a logistic model whose weights do not depend on the seed; 24% are
    positive. Other numbers of features keep the relative sizes of attributes.

    Examples
    --------
    >>> data = synthetic()
    >>> data.X.shape, round(data.X.nnz / data.n_samples, 1), int((data.y > 0).sum())
    ((32561, 123), 13.9, 7841)
    """
    from scipy.sparse import csr_array

    require_count("n_samples", n_samples, least=2)  # one of each class
    require_count("n_features", n_features)
    # Only uniform draws: they are the least likely to change in a new version of NumPy.
    rng = np.random.default_rng(seed)
    relative = np.cumsum((0, *GROUP_SIZES)) / sum(GROUP_SIZES)
    edges = np.unique(np.rint(relative * n_features).astype(np.int32))
    groups = len(edges) - 1

    shared = rng.random((n_samples, groups)) < SHARED_DRAWS
    draws = np.where(shared, rng.random((n_samples, 1)), rng.random((n_samples, groups)))
    columns = np.empty((n_samples, groups), dtype=np.int32)
    for g in range(groups):
        frequency = np.arange(1, edges[g + 1] - edges[g] + 1) ** -ZIPF_EXPONENT
        steps = np.cumsum(frequency)[:-1] / frequency.sum()
        columns[:, g] = edges[g] + np.searchsorted(steps, draws[:, g])
    present = rng.random((n_samples, groups)) >= np.array(MISSING[:groups])
    indptr = np.append(0, np.cumsum(present.sum(axis=1))).astype(np.int32)
    X = csr_array((np.ones(indptr[-1]), columns[present], indptr), shape=(n_samples, n_features))

    w = WEIGHT_SCALE * np.random.default_rng(0).uniform(-1, 1, n_features)
    u = rng.random(n_samples)
    # P(w'x + logit(u) > c) is the logistic model with intercept -c.
    return Dataset("synthetic", X, _top(X @ w + np.log(u / (1 - u)), POSITIVE_SHARE))


def dense(n_samples: int = 4000, n_features: int = 2000, seed: int = 0) -> Dataset:
    """Generate dense data in the shape of epsilon: rows of unit length, balanced classes.

    Rows are uniform on the sphere; labels are the sign of a noisy linear model.

    Examples
    --------
    >>> data = dense(n_samples=10, n_features=3)
    >>> bool(np.allclose((data.X**2).sum(axis=1), 1)), float(data.y.sum())
    (True, 0.0)
    """
    require_count("n_samples", n_samples, least=2)  # one of each class
    require_count("n_features", n_features)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    # Margins w'x then have variance 1, against noise of variance 1/4.
    w = rng.standard_normal(n_features)
    return Dataset("synthetic-dense", X, _top(X @ w + 0.5 * rng.standard_normal(n_samples), 0.5))


def _top(scores: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Label the given share of the highest scores +1: at least one, but not all of them."""
    n = len(scores)
    positives = min(max(round(share * n), 1), n - 1)
    signs = np.full(n, -1.0)
    signs[np.argpartition(scores, n - positives)[n - positives :]] = 1.0
    return signs


GENERATED: dict[str, Callable[[], Dataset]] = {"synthetic": synthetic, "synthetic-dense": dense}
