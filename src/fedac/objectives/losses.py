"""The built-in losses: logistic regression, least squares and squared hinge, all l2-regularized.

They take the parameters of `LinearModel`.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from scipy.special import expit

from fedac.errors import InputError
from fedac.objectives.base import ConvexObjective, Objective
from fedac.objectives.linear_model import LinearModel
from fedac.objectives.loss_functions import FACTORS, FORMULAS
from fedac.validate import Array, import_named, look_up


class _BuiltIn(LinearModel):
    """A linear model whose `kernel` names one of the formulas."""

    def loss(self, z: Array, y: Array) -> Array:
        loss: Array = FORMULAS[self.kernel].split(z, y)[0]
        return loss

    def derivative(self, z: Array, y: Array) -> Array:
        derivative: Array = FORMULAS[self.kernel].derivative(z, y)
        return derivative


class LogisticRegression(_BuiltIn):
    """F(w) = 1/n sum_i log(1 + exp(-y_i x_i.w)) + l2/2 ||w||^2 with y_i = -1 or +1.

    The objective of the paper's experiments.

    Examples
    --------
    >>> F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> round(F.value(np.zeros(2)), 6)
    0.693147
    >>> F.gradient(np.zeros(2))
    array([-0.25,  0.5 ])
    >>> F.smoothness
    1.0
    """

    slope = 1.0
    curvature = 1 / 4
    kernel = "logistic"
    needs_signs = True
    third_derivative = 1 / (6 * math.sqrt(3))  # where sigmoid(z) = 1/2 +- 1/(2 sqrt 3)

    def loss(self, z: Array, y: Array) -> Array:
        """Return log(1 + exp(-y z)), without overflow."""
        return np.logaddexp(0.0, -y * z)

    def mean_loss(self, z: Array, y: Array) -> float:
        """Return the mean loss, with one logarithm for many margins."""
        if self.weights is not None:
            return super().mean_loss(z, y)
        values, some = FORMULAS[self.kernel].split(z, y)
        factors = np.ones(-(-len(some) // FACTORS) * FACTORS)
        factors[: len(some)] = some
        products = factors.reshape(-1, FACTORS).prod(axis=1)
        return float((values.sum() + np.log(products).sum()) / len(values))

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return sigmoid(z) sigmoid(-z)."""
        second: Array = expit(z) * expit(-z)
        return second


class LeastSquares(_BuiltIn):
    """F(w) = 1/(2n) sum_i (x_i.w - y_i)^2 + l2/2 ||w||^2 (ridge regression).

    Examples
    --------
    >>> F = LeastSquares([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.value(np.zeros(2)), F.smoothness, F.third_order_smoothness
    (0.5, 2.5, 0.0)
    """

    curvature = 1.0
    kernel = "squares"
    third_derivative = 0.0

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1."""
        return np.ones_like(z)


class SquaredHinge(_BuiltIn):
    """F(w) = 1/(2n) sum_i max(0, 1 - y_i x_i.w)^2 + l2/2 ||w||^2 with y_i = -1 or +1.

    A support vector machine with a smooth objective. Its second derivative jumps, so it has no Q.

    Examples
    --------
    >>> F = SquaredHinge([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.gradient(np.zeros(2))
    array([-0.5,  1. ])
    """

    curvature = 1.0
    kernel = "squared-hinge"
    needs_signs = True

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1 inside the margin, 0 outside."""
        return (y * z < 1).astype(np.float64)


LOSSES: dict[str, type[LinearModel]] = {
    "logistic": LogisticRegression,
    "least-squares": LeastSquares,
    "squared-hinge": SquaredHinge,
}
"""The losses by the names that commands and grids use."""


def find_loss(name: str) -> type[ConvexObjective]:
    """Return the class of a built-in loss, or import the user's ``module:name``.

    The user's class must take ``(X, y, l2=..., intercept=...)``, as `LinearModel` does.
    """
    if ":" not in name:
        return look_up("loss", name, LOSSES)
    found = import_named("loss", name, _is_objective)
    if not _is_objective(found):
        raise InputError(f"'{name}' must be a subclass of fedac.objectives.Objective")
    return cast(type[ConvexObjective], found)


def _is_objective(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Objective)


def make_objective(
    loss: str, X: Any, y: Any, *, l2: float, intercept: bool = False
) -> ConvexObjective:
    """Build an objective with a built-in or a user-defined loss.

    >>> make_objective("fedac:LeastSquares", [[1.0], [2.0]], [1.0, 3.0], l2=0.5).smoothness
    3.0
    """
    kind: Any = find_loss(loss)
    try:
        objective: ConvexObjective = kind(X, y, l2=l2, intercept=intercept)
        if ":" in loss:
            from fedac.testing import check_objective

            check_objective(objective)
    except InputError:
        raise
    except Exception as error:  # a user's class may fail in any way
        call = f"{loss}(X, y, l2={l2:g}, intercept={intercept})"
        raise InputError(f"{call} failed: {type(error).__name__}: {error}") from error
    return objective
