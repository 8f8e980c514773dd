# SPDX-License-Identifier: Apache-2.0
"""Softmax regression: linear models of several classes, l2-regularized."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import logsumexp, softmax

from fedac.data.dataset import encode_target
from fedac.errors import InputError
from fedac.objectives.base import RowNumbers
from fedac.objectives.linear_model import PROBABILITIES, DataObjective, Matrix, as_rows
from fedac.validate import Array, require_nonnegative


class SoftmaxRegression(DataObjective):
    """F(w) = 1/n sum_i [log sum_c exp(x_i.w_c) - x_i.w_{y_i}] + l2/2 ||w||^2.

    ``w.reshape(d, C)`` has a column w_c for each of the C classes, so the margins are
    ``X @ w.reshape(d, C)``. With two classes, the optimal w_2 - w_1 is that of `LogisticRegression`
    with half the l2.

    Parameters
    ----------
    X : ndarray or scipy.sparse matrix, shape (n, d)
        The rows. Sparse data stays sparse.
    y : array of shape (n,)
        The class of every row: numbers or names.
    l2 : float
        Regularization strength, at least 0.
    intercept : bool
        Append a column of ones (regularized like all columns).
    classes : sequence, optional
        All labels, if some may be missing from `y`, as in the rows of some clients. Default: the
        labels in `y`, sorted.

    Attributes
    ----------
    classes : tuple
        The labels of the classes, in the order of the columns of w.

    Examples
    --------
    >>> F = SoftmaxRegression([[1.0], [2.0], [3.0]], ["cat", "dog", "owl"], l2=0.5)
    >>> F.classes, F.dim
    (('cat', 'dog', 'owl'), 3)
    >>> round(F.value(np.zeros(3)), 6)  # log 3
    1.098612
    >>> F.gradient(np.zeros(3)).round(6)
    array([ 0.333333, -0.      , -0.333333])
    """

    predicts = PROBABILITIES
    # The fast engine has this loss; a subclass that overrides slopes goes to the reference engine.
    kernel: ClassVar[Any] = "softmax"

    def __init__(
        self,
        X: npt.ArrayLike | sp.sparray | sp.spmatrix,
        y: npt.ArrayLike,
        *,
        l2: float = 0.0,
        intercept: bool = False,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.l2 = require_nonnegative("l2", l2)
        self.X = as_rows(X, intercept=intercept)
        self.intercept = intercept
        self.weights = None
        self.n_samples, d = self.X.shape
        labels = np.asarray(y)
        if labels.shape != (self.n_samples,):
            raise InputError(f"X has {self.n_samples} rows but y has shape {labels.shape}")
        self.classes = tuple(np.unique(labels).tolist() if classes is None else classes)
        if len(self.classes) < 2:
            found = self.classes[0]
            raise InputError(f"every row has the target {found!r}; two classes are needed")
        self.y = self.encode(labels)
        self.dim = d * len(self.classes)

    def encode(self, y: npt.ArrayLike) -> Array:
        """Return labels as the numbers of their classes."""
        numbers, _ = encode_target(y, "y", self.classes)
        return np.maximum(numbers, 0.0)  # with two classes, -1 is the first

    def margins(self, w: Array, X: Matrix | None = None) -> Array:
        """Return x.w_c for every row and class."""
        return super().margins(w.reshape(-1, len(self.classes)), X)

    def loss(self, z: Array, y: Array) -> Array:
        """Return log sum_c exp(z_c) - z_y."""
        own = np.take_along_axis(z, y.astype(np.intp)[:, None], axis=1)[:, 0]
        losses: Array = logsumexp(z, axis=1) - own
        return losses

    def _slopes(self, margins: Array, y: Array) -> Array:
        """Return the derivatives of every row's loss in its margins: p - e_y."""
        slopes: Array = softmax(margins, axis=1)
        slopes[np.arange(len(slopes)), y.astype(np.intp)] -= 1.0
        return slopes

    def value(self, w: Array) -> float:
        """Return F(w)."""
        losses = self._weigh(self.loss(self.margins(w), self.y))
        return float(losses.mean() + self.l2 / 2 * (w @ w))

    def gradient(self, w: Array) -> Array:
        """Return the gradient of F at w."""
        slopes = self._weigh(self._slopes(self.margins(w), self.y))
        gradient: Array = (self.X.T @ slopes).ravel() / self.n_samples + self.l2 * w
        return gradient

    def hessian_product(self, w: Array, v: Array) -> Array:
        """Return the Hessian of F at w, times v."""
        p, u = softmax(self.margins(w), axis=1), self.margins(v)
        curved = self._weigh(p * (u - (p * u).sum(axis=1, keepdims=True)))
        product: Array = (self.X.T @ curved).ravel() / self.n_samples + self.l2 * v
        return product

    def stochastic_gradients(self, W: Array, rows: RowNumbers) -> Array:
        """Return the gradient of row rows[m] at W[m] for every m."""
        x: Any = self.X[rows]
        x = x.toarray() if isinstance(x, sp.csr_array) else x
        margins = np.einsum("md,mdc->mc", x, W.reshape(len(rows), -1, len(self.classes)))
        slopes = self._slopes(margins, self.y[rows])
        gradients: Array = np.einsum("md,mc->mdc", x, slopes).reshape(W.shape) + self.l2 * W
        return gradients

    def noise(self, w: Array) -> float:
        """Return sigma^2 at w; the l2 term is the same for every row and cancels."""
        slopes = self._slopes(self.margins(w), self.y)
        mean = self.X.T @ self._weigh(slopes) / self.n_samples
        squares = (slopes**2).sum(axis=1) * self._squared_norms
        return max(float(self._weigh(squares).mean()) - float((mean**2).sum()), 0.0)

    @property
    def noise_bound(self) -> float:
        """2 mean ||x_i||^2, because ||p - e_y||^2 is at most 2."""
        return 2 * float(self._weigh(self._squared_norms).mean())

    @cached_property
    def smoothness(self) -> float:
        """L = lambda_max(X'X/n) / 2 + l2: diag(p) - pp' has no eigenvalue above 1/2."""
        return self._top_eigenvalue / 2 + self.l2

    @property
    def strong_convexity(self) -> float:
        """The l2 strength; curvature from the data is ignored, as in the paper's experiments."""
        return self.l2
