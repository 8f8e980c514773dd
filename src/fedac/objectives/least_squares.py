"""l2-regularized least squares (ridge regression)."""

from __future__ import annotations

import numpy as np

from fedac.arrays import Array
from fedac.objectives.formulas import Squares
from fedac.objectives.linear_model import LinearModel


class LeastSquares(LinearModel):
    """F(w) = 1/(2n) sum_i (x_i.w - y_i)^2 + l2/2 ||w||^2.

    Parameters
    ----------
    X, y, l2, intercept
        See `LinearModel`.

    Examples
    --------
    >>> F = LeastSquares([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.value(np.zeros(2))
    0.5
    >>> F.smoothness, F.third_order_smoothness
    (2.5, 0.0)
    """

    curvature = 1.0
    kernel = "squares"
    third_derivative = 0.0

    def loss(self, z: Array, y: Array) -> Array:
        """Return (z - y)^2 / 2."""
        loss: Array = Squares.split(z, y)[0]
        return loss

    def derivative(self, z: Array, y: Array) -> Array:
        """Return z - y."""
        derivative: Array = Squares.derivative(z, y)
        return derivative

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1."""
        return np.ones_like(z)
