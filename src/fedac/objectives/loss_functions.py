"""Loss formulas of linear models, written once for NumPy and for the compiled kernels.

A loss is a type without values, and each kernel is compiled for one loss. Its functions use
operators and the few functions below, which call NumPy and SciPy on arrays and are overloaded for
the vectors of the fast engine (`simulation/engines/linear/kernels/losses.py`). The margin is
``z = x.w``, the target ``y``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit

from fedac.errors import InputError
from fedac.validate import look_up

if TYPE_CHECKING:
    from fedac.objectives.linear_model import LinearModel

# Factors of at most 2 in one product: 2^512 is far from overflow.
FACTORS = 512
# Margins at which a kernel is compared with the derivative; odd ones, to miss kinks.
PROBES = (-29.3, -3.1, -0.97, -0.52, -0.11, 0.013, 0.13, 0.48, 1.03, 2.9, 31.7)


def exp(x: Any) -> Any:
    """Return e^x."""
    return np.exp(x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return expit(x)


def positive_part(x: Any) -> Any:
    """Return max(x, 0)."""
    return np.maximum(x, 0.0)


class LogisticLoss(NamedTuple):
    """The loss log(1 + exp(-y z)), with y = -1 or +1."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, Any]:
        """Return a value and a factor in [1, 2]; the loss is the value plus log(factor).

        log(1 + exp(m)) = max(m, 0) + log(1 + exp(-|m|)). Many factors are multiplied before the
        logarithm is taken.
        """
        m = -y * z
        return positive_part(m), exp(-abs(m)) + 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return -y / (1 + exp(y z))."""
        return -y * sigmoid(-y * z)


class SquaredLoss(NamedTuple):
    """The loss (z - y)^2 / 2."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        return (z - y) * (z - y) * 0.5, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return z - y."""
        return z - y


class SquaredHingeLoss(NamedTuple):
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
    "logistic": LogisticLoss(),
    "squares": SquaredLoss(),
    "squared-hinge": SquaredHingeLoss(),
}


def has_kernel(kind: type[LinearModel]) -> bool:
    """Return whether a class has a kernel for its own derivative, not just for one it overrides."""
    for base in kind.__mro__:
        if "kernel" in vars(base):
            return vars(base)["kernel"] is not None
        if "derivative" in vars(base) or "stochastic_gradients" in vars(base):
            return False
    return False


def check_kernel(model: LinearModel) -> None:
    """Raise `InputError` if the kernel and `derivative` differ at some margins."""
    if not has_kernel(type(model)):
        return
    name, kernel = type(model).__name__, type(model).kernel
    if isinstance(kernel, str):
        kernel = look_up("kernel", kernel, FORMULAS).derivative
    function = getattr(kernel, "py_func", kernel)  # without Numba's compiler
    targets = model.y[:: -(-model.n_samples // 4)]
    z, y = np.tile(PROBES, len(targets)), np.repeat(targets, len(PROBES))
    for z_i, y_i, expected in zip(z, y, model.derivative(z, y), strict=True):
        try:
            found = float(function(z_i, y_i))
        except Exception as error:
            raise InputError(
                f"{name}.kernel must be a function (z, y) -> float; it fails: {error}"
            ) from error
        if not math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9):
            raise InputError(
                f"{name}.kernel must compute what {name}.derivative does; at z={z_i:g}, "
                f"y={y_i:g} it gives {found:.6g} instead of {expected:.6g}"
            )
