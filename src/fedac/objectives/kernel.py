"""The kernel of a linear model: its derivative as the fast engine computes it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedac.errors import InputError, look_up
from fedac.objectives.formulas import FORMULAS

if TYPE_CHECKING:
    from fedac.objectives.linear_model import LinearModel

# Margins at which a kernel is compared with the derivative; odd ones, to miss kinks.
PROBES = (-29.3, -3.1, -0.97, -0.52, -0.11, 0.013, 0.13, 0.48, 1.03, 2.9, 31.7)


def has_kernel(kind: type[LinearModel]) -> bool:
    """Say whether there is a kernel for this derivative, not for one it overrides."""
    for base in kind.__mro__:
        if "kernel" in vars(base):
            return vars(base)["kernel"] is not None
        if "derivative" in vars(base) or "stochastic_gradients" in vars(base):
            return False
    return False


def check_kernel(model: LinearModel) -> None:
    """Refuse a kernel that does not compute `derivative`, by trying some margins."""
    if not has_kernel(type(model)):
        return
    name, kernel = type(model).__name__, type(model).kernel
    if isinstance(kernel, str):
        kernel = look_up("kernel", kernel, FORMULAS).derivative
    function = getattr(kernel, "py_func", kernel)  # Numba's functions, uncompiled
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
