"""The losses of linear models, each formula written once for NumPy and for the compiled kernels.

A loss is a type without values: kernels are compiled for one of them. Its functions use operators
and the few functions below. On arrays these are NumPy's and SciPy's; the fast engine implements
them for its vectors (`simulation/_fast/losses.py`). The margin is ``z = x.w``, the target ``y``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

# Factors of at most 2 in one product: 2^512 is far from overflow.
FACTORS = 512


def exp(x: Any) -> Any:
    """Return e^x."""
    return np.exp(x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return expit(x)


def positive_part(x: Any) -> Any:
    """Return max(x, 0)."""
    return np.maximum(x, 0.0)


class Logistic(NamedTuple):
    """The loss log(1 + exp(-y z)), with y = -1 or +1."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, Any]:
        """Return a value and a factor in [1, 2]; the loss is the value plus log(factor).

        log(1 + exp(m)) = max(m, 0) + log(1 + exp(-|m|)). Logarithms of many factors are taken
        of their product.
        """
        m = -y * z
        return positive_part(m), exp(-abs(m)) + 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return -y / (1 + exp(y z))."""
        return -y * sigmoid(-y * z)


class Squares(NamedTuple):
    """The loss (z - y)^2 / 2."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        return (z - y) * (z - y) * 0.5, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return z - y."""
        return z - y


class SquaredHinge(NamedTuple):
    """The loss max(0, 1 - y z)^2 / 2, with y = -1 or +1."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        gap = positive_part(1.0 - y * z)
        return gap * gap * 0.5, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return -y max(0, 1 - y z)."""
        return -y * positive_part(1.0 - y * z)


FORMULAS: dict[str, Any] = {
    "logistic": Logistic(),
    "squares": Squares(),
    "squared-hinge": SquaredHinge(),
}
