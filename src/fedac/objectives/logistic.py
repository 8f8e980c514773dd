"""l2-regularized logistic regression, the objective of the paper's experiments."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from fedac.arrays import Array
from fedac.objectives.formulas import FACTORS, Logistic
from fedac.objectives.linear_model import LinearModel


class LogisticRegression(LinearModel):
    """F(w) = 1/n sum_i log(1 + exp(-y_i x_i.w)) + l2/2 ||w||^2 with y_i = -1 or +1.

    Parameters
    ----------
    X, y, l2, intercept
        See `LinearModel`.

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

    curvature = 1 / 4
    kernel = "logistic"
    needs_signs = True
    third_derivative = 1 / (6 * math.sqrt(3))  # where sigmoid(z) = 1/2 +- 1/(2 sqrt 3)

    def loss(self, z: Array, y: Array) -> Array:
        """Return log(1 + exp(-y z)), which overflows for no margin."""
        return np.logaddexp(0.0, -y * z)

    def mean_loss(self, z: Array, y: Array) -> float:
        """Return the mean loss, with one logarithm for many margins."""
        values, some = Logistic.split(z, y)
        factors = np.ones(-(-len(some) // FACTORS) * FACTORS)
        factors[: len(some)] = some
        products = factors.reshape(-1, FACTORS).prod(axis=1)
        return float((values.sum() + np.log(products).sum()) / len(values))

    def derivative(self, z: Array, y: Array) -> Array:
        """Return -y / (1 + exp(y z))."""
        derivative: Array = Logistic.derivative(z, y)
        return derivative

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return sigmoid(z) sigmoid(-z)."""
        second: Array = expit(z) * expit(-z)
        return second
