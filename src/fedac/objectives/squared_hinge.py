"""l2-regularized squared hinge loss: a support vector machine with a smooth objective."""

from __future__ import annotations

import numpy as np

from fedac.arrays import Array
from fedac.objectives.formulas import SquaredHinge as Hinge
from fedac.objectives.linear_model import LinearModel


class SquaredHinge(LinearModel):
    """F(w) = 1/(2n) sum_i max(0, 1 - y_i x_i.w)^2 + l2/2 ||w||^2 with y_i = -1 or +1.

    Its second derivative jumps, so no Q exists.

    Parameters
    ----------
    X, y, l2, intercept
        See `LinearModel`.

    Examples
    --------
    >>> F = SquaredHinge([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.value(np.zeros(2))
    0.5
    >>> F.gradient(np.zeros(2))
    array([-0.5,  1. ])
    """

    curvature = 1.0
    kernel = "squared-hinge"
    needs_signs = True

    def loss(self, z: Array, y: Array) -> Array:
        """Return max(0, 1 - y z)^2 / 2."""
        loss: Array = Hinge.split(z, y)[0]
        return loss

    def derivative(self, z: Array, y: Array) -> Array:
        """Return -y max(0, 1 - y z)."""
        derivative: Array = Hinge.derivative(z, y)
        return derivative

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1 inside the margin, 0 outside."""
        return (y * z < 1).astype(np.float64)
