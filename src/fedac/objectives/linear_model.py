# SPDX-License-Identifier: Apache-2.0
"""Generalized linear models: a scalar loss of the margin x.w, plus l2 regularization.

F(w) = 1/n sum_i loss(x_i.w, y_i) + l2/2 ||w||^2. A new loss is a subclass with three scalar
functions and a bound on its curvature; data, constants and noise are handled here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh

from fedac.data.dataset import encode_target
from fedac.errors import InputError
from fedac.objectives.base import ConvexObjective, RowNumbers
from fedac.validate import Array, as_data, content_hash, require_nonnegative

Matrix: TypeAlias = "Array | sp.csr_array"
AnyMatrix: TypeAlias = "npt.ArrayLike | sp.sparray | sp.spmatrix"

# Maximum number of columns for which all eigenvalues of the Gram matrix are computed.
EXACT_SPECTRUM = 1000
# What the margins of a model predict.
PROBABILITIES, TARGETS = "probabilities", "targets"


class DataObjective(ConvexObjective):
    """The rows of a linear model, and everything that depends on them alone."""

    X: Matrix
    y: Array
    l2: float
    intercept: bool
    classes: tuple[Any, ...]  # the labels of the classes; () for real targets
    weights: Array | None  # of the rows, 1 on average; None: all the same
    # What margins predict: probabilities, the target itself, or neither (an empty string).
    predicts: ClassVar[str] = ""

    @abstractmethod
    def loss(self, z: Array, y: Array) -> Array:
        """Return the loss of rows with margins `z`."""

    @abstractmethod
    def encode(self, y: npt.ArrayLike) -> Array:
        """Return labels as `self.y` has them."""

    def margins(self, w: Array, X: Matrix | None = None) -> Array:
        """Return x.w for the rows of X (default: the model's own rows)."""
        margins: Array = (self.X if X is None else X) @ w
        return margins

    def mean_loss(self, z: Array, y: Array) -> float:
        """Return the mean loss over margins `z` of all rows."""
        return float(self._weigh(self.loss(z, y)).mean())

    def predict(self, z: Array) -> Array:
        """Return the expected targets of rows with margins `z`."""
        return z

    def __repr__(self) -> str:
        n, d = self.X.shape
        return f"{type(self).__name__}({n} rows, {d} columns, l2={self.l2:g})"

    def fingerprint(self) -> str:
        """Return a hash of class, data and l2."""
        header = f"{type(self).__name__} {self.X.shape} {self.l2!r}"
        if self.dim != self.X.shape[1]:  # by class, though some may have no row
            header += f" dim {self.dim}"
        if self.weights is not None:
            header += f" weights {content_hash('', self.weights)}"
        if not isinstance(self.X, sp.csr_array):
            return content_hash(header, self.X, self.y)
        # The same data may come with 32-bit or 64-bit indices.
        indptr, indices = self.X.indptr.astype(np.int64), self.X.indices.astype(np.int64)
        return content_hash(header, indptr, indices, self.X.data, self.y)

    def weighted(self, weights: Array) -> Self:
        """Return F with rows weighted in proportion to `weights`, all above 0."""
        return self.derived(weights=weights * (self.n_samples / weights.sum()))

    def derived(self, **changes: Any) -> Self:
        """Return a copy with some attributes replaced; it shares the rest of the data."""
        twin = copy(self)
        for name in ("smoothness", "third_order_smoothness", "_squared_norms", "_top_eigenvalue"):
            vars(twin).pop(name, None)
        vars(twin).update(changes)
        return twin

    def _weigh(self, values: Array) -> Array:
        """Multiply values, one or several per row, by the weights of the rows."""
        return values if self.weights is None else (values.T * self.weights).T

    @cached_property
    def _squared_norms(self) -> Array:
        if isinstance(self.X, sp.csr_array):
            return np.asarray(self.X.multiply(self.X).sum(axis=1), dtype=np.float64).ravel()
        return np.asarray(np.einsum("nd,nd->n", self.X, self.X))

    @cached_property
    def _top_eigenvalue(self) -> float:
        """lambda_max(X'X/n)."""
        d = self.X.shape[1]
        if d <= EXACT_SPECTRUM:
            weights = sp.diags_array(self._weigh(np.ones(self.n_samples)))
            product: Any = self.X.T @ (self.X if self.weights is None else weights @ self.X)
            gram = product if isinstance(product, np.ndarray) else product.toarray()
            return float(np.linalg.eigvalsh(gram)[-1]) / self.n_samples
        if not self._squared_norms.any():
            return 0.0
        if self.n_samples == 1:
            return float(self._squared_norms[0])
        # X'X and XX' have the same eigenvalues: products of the shorter vectors are cheaper.
        roots = np.sqrt(self._weigh(np.ones(self.n_samples)))

        def gram_product(v: Array) -> Any:
            if self.n_samples < d:
                return roots * (self.X @ (self.X.T @ (roots * v)))
            return self.X.T @ self._weigh(self.X @ v)

        size = min(self.n_samples, d)
        operator: Any = LinearOperator((size, size), matvec=gram_product, dtype=np.float64)
        # With a fixed start vector the same data gives the same L in every process.
        v0 = np.random.default_rng(0).standard_normal(size)
        top = eigsh(operator, k=1, v0=v0, return_eigenvectors=False)
        return float(top[0]) / self.n_samples


class LinearModel(DataObjective):
    """A data set, a loss of the margin and an l2 term.

    Parameters
    ----------
    X : ndarray or scipy.sparse matrix, shape (n, d)
        The rows. Sparse data stays sparse.
    y : array of shape (n,)
        The targets; any two labels where the loss needs two classes.
    l2 : float
        Regularization strength, at least 0.
    intercept : bool
        Append a column of ones (regularized like all columns).
    """

    # Upper bounds on the first, second and third derivative of the loss in the margin.
    slope: ClassVar[float | None] = None
    curvature: ClassVar[float]
    third_derivative: ClassVar[float | None] = None
    # Whether the targets must be -1 or +1.
    needs_signs: ClassVar[bool] = False
    # How the fast engine computes `derivative`: the name of a built-in loss, or a scalar function
    # (z, y) -> float compiled by `numba.njit`; None leaves the objective to the reference engine.
    kernel: ClassVar[Any] = None

    def __init__(
        self, X: AnyMatrix, y: npt.ArrayLike, *, l2: float = 0.0, intercept: bool = False
    ) -> None:
        self.l2 = require_nonnegative("l2", l2)
        self.X = as_rows(X, intercept=intercept)
        self.intercept = intercept
        self.weights = None
        self.n_samples, self.dim = self.X.shape
        if np.shape(y) != (self.n_samples,):
            raise InputError(f"X has {self.n_samples} rows but y has shape {np.shape(y)}")
        self.classes = self._find_classes(y) if self.needs_signs else ()
        self.y = self.encode(y)
        from fedac.objectives.losses import check_kernel  # which imports this module

        # A subclass may set its loss's parameters later, so the fast engine checks again.
        with suppress(AttributeError):
            check_kernel(self)

    def _find_classes(self, y: npt.ArrayLike) -> tuple[Any, ...]:
        if np.isin(np.asarray(y), (-1.0, 1.0)).all():  # perhaps only one of them
            return (-1.0, 1.0)
        name = type(self).__name__
        _, classes = encode_target(y, f"the targets of {name}")
        if len(classes) != 2:
            what = f"{len(classes)} classes" if classes else "real targets"
            raise InputError(f"{name} needs two classes, but y has {what}")
        return classes

    def encode(self, y: npt.ArrayLike) -> Array:
        """Return labels as -1 and +1, and real targets as they are."""
        return encode_target(y, "y", self.classes)[0] if self.classes else as_data("y", y)

    @abstractmethod
    def derivative(self, z: Array, y: Array) -> Array:
        """Return the derivative of the loss in the margin."""

    @abstractmethod
    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return the second derivative of the loss in the margin."""

    def value(self, w: Array) -> float:
        """Return F(w)."""
        return float(self.values(w[None, :])[0])

    def values(self, W: Array) -> Array:
        """Return F(W[k]) for every k in one pass over the data."""
        Z = self.X @ np.ascontiguousarray(W.T)
        losses = [self.mean_loss(z, self.y) for z in np.ascontiguousarray(Z.T)]
        return np.asarray(np.array(losses) + self.l2 / 2 * np.einsum("kd,kd->k", W, W))

    def gradient(self, w: Array) -> Array:
        """Return the gradient of F at w."""
        s = self._weigh(self.derivative(self.X @ w, self.y))
        return np.asarray(self.X.T @ s / self.n_samples + self.l2 * w)

    def hessian_product(self, w: Array, v: Array) -> Array:
        """Return the Hessian of F at w, times v."""
        s = self._weigh(self.second_derivative(self.X @ w, self.y))
        return np.asarray(self.X.T @ (s * (self.X @ v)) / self.n_samples + self.l2 * v)

    def stochastic_gradients(self, W: Array, rows: RowNumbers) -> Array:
        """Return the gradient of row rows[m] at W[m] for every m."""
        X = self.X[rows]
        if isinstance(X, sp.csr_array):
            X = X.toarray()
        s = self.derivative(np.einsum("md,md->m", X, W), self.y[rows])
        return np.asarray(s[:, None] * X + self.l2 * W)

    def noise(self, w: Array) -> float:
        """Return sigma^2 at w; the l2 term is the same for every row and cancels."""
        s = self.derivative(self.X @ w, self.y)
        mean = self.X.T @ self._weigh(s) / self.n_samples
        second_moment = float(self._weigh(s**2) @ self._squared_norms) / self.n_samples
        # Rounding may make it slightly negative if all rows agree.
        return max(second_moment - float(mean @ mean), 0.0)

    def fourth_moment(self, w: Array) -> float:
        """Return sigma4^4 at w; the l2 term is the same for every row and cancels."""
        s = self.derivative(self.X @ w, self.y)
        mean = self.X.T @ self._weigh(s) / self.n_samples
        deviations = s**2 * self._squared_norms - 2 * s * (self.X @ mean) + mean @ mean
        return float(self._weigh(deviations**2).mean())

    @property
    def noise_bound(self) -> float | None:
        """Mean ||x_i||^2 times the squared bound on the slope; None without such a bound."""
        if self.slope is None:
            return None
        return self.slope**2 * float(self._weigh(self._squared_norms).mean())

    @property
    def fourth_moment_bound(self) -> float | None:
        """8 mean ||x_i||^4 times the bound on the slope to the fourth; None without a bound."""
        if self.slope is None:
            return None
        # With m = E X, E ||X - m||^4 = E ||X||^4 + 4 E (X.m)^2 + 2 ||m||^2 E ||X||^2 - 3 ||m||^4
        # - 4 E ||X||^2 X.m. As a share of E ||X||^4 this is at most 1 + 6 t^2 + 4 t - 3 t^4, where
        # t = ||m|| / (E ||X||^4)^(1/4) is at most 1.
        return 8 * self.slope**4 * float(self._weigh(self._squared_norms**2).mean())

    @cached_property
    def smoothness(self) -> float:
        """L = curvature * lambda_max(X'X/n) + l2."""
        return self.curvature * self._top_eigenvalue + self.l2

    @property
    def strong_convexity(self) -> float:
        """The l2 strength; curvature from the data is ignored, as in the paper's experiments."""
        return self.l2

    @cached_property
    def third_order_smoothness(self) -> float | None:
        """Q <= max|loss'''| * lambda_max(X'X/n) * max_i ||x_i||."""
        if self.third_derivative is None:
            return None
        # The third derivative of F along a unit vector u is a mean of loss''' (x_i.u)^3, and
        # |x_i.u|^3 <= ||x_i|| (x_i.u)^2.
        longest = math.sqrt(self._squared_norms.max())
        return self.third_derivative * self._top_eigenvalue * longest


def as_rows(X: AnyMatrix, *, intercept: bool) -> Matrix:
    """Return X as float64, CSR or C-contiguous, with the intercept column appended."""
    rows: Matrix
    if sp.issparse(X):
        rows = sp.csr_array(X, dtype=np.float64)
        if not rows.has_canonical_format:
            rows = rows.copy()  # do not change the caller's matrix
            rows.sum_duplicates()
        as_data("X", rows.data)
    else:
        rows = as_data("X", X)
    if rows.ndim != 2 or 0 in rows.shape:
        raise InputError(f"X must be a matrix with rows and columns, got shape {rows.shape}")
    if intercept:
        ones = np.ones((rows.shape[0], 1))
        if isinstance(rows, sp.csr_array):
            return sp.csr_array(sp.hstack([rows, ones], format="csr"))
        return np.hstack([rows, ones])
    return rows
