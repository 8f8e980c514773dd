"""A linear model as the kernels see it: rows, targets, the loss and the l2 term."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedac.errors import InputError
from fedac.objectives import Augmented, LinearModel, Objective
from fedac.objectives.loss_functions import FORMULAS, check_kernel, has_kernel
from fedac.simulation.engines.linear.kernels.losses import Custom
from fedac.simulation.engines.linear.kernels.types import Rows
from fedac.validate import Array


@dataclass(frozen=True, slots=True)
class Regularizer:
    """l2/2 ||w - center||^2 + constant, all quadratic terms of an objective in one."""

    l2: float
    center: Array
    constant: float

    def values(self, W: Array) -> Array:
        """Return the value at W[k] for every k."""
        offsets = W - self.center
        values: Array = self.l2 / 2 * np.einsum("kd,kd->k", offsets, offsets) + self.constant
        return values


def split(objective: Objective) -> tuple[LinearModel, Regularizer]:
    """Split an objective into a linear model and one quadratic term.

    Examples
    --------
    >>> from fedac.objectives import LeastSquares
    >>> F = Augmented(LeastSquares([[1.0]], [1.0], l2=1.0), lam=3.0, center=[4.0])
    >>> split(F)[1]
    Regularizer(l2=4.0, center=array([3.]), constant=6.0)
    """
    strength, pull, squares = 0.0, np.zeros(objective.dim), 0.0
    while isinstance(objective, Augmented):
        strength += objective.lam
        squares += objective.lam * float(objective.center @ objective.center)
        pull += objective.lam * objective.center
        objective = objective.base
    if not isinstance(objective, LinearModel) or not has_kernel(type(objective)):
        raise InputError(
            f"the fast engine needs a linear model with a compiled loss, not "
            f"{type(objective).__name__}"
        )
    strength += objective.l2
    # Without any quadratic term the center does not matter.
    center = pull / strength if strength else pull
    constant = (squares - strength * float(center @ center)) / 2
    return objective, Regularizer(strength, center, constant)


def prepare(model: LinearModel, regularizer: Regularizer, dtype: npt.DTypeLike) -> Rows:
    """Arrange a model's data for the kernels, in the given precision."""
    X = model.X
    data: tuple[npt.NDArray[Any], ...]
    if isinstance(X, sp.csr_array):
        # Unsigned indices save the kernels a test for negative ones; short ones save cache. There
        # are too few row bounds for that, and every type of them would be compiled anew.
        bounds = X.indptr.astype(np.uint32 if X.nnz < 2**32 else np.uint64)
        data = (bounds, X.indices.astype(np.min_scalar_type(model.dim - 1)))
        if (X.data != 1.0).any():
            data = (*data, X.data.astype(dtype))
    else:
        data = (np.ascontiguousarray(X, dtype=dtype),)
    centred = regularizer.center.any()
    offsets = X @ regularizer.center if centred else np.zeros(0)
    check_kernel(model)
    loss = FORMULAS[model.kernel] if isinstance(model.kernel, str) else _custom(model.kernel)
    return Rows(data, model.y.astype(dtype), offsets.astype(dtype), loss)


@cache  # keeps the compiled code alive, without which its address is invalid
def _c_function(derivative: Any) -> Any:
    from numba import cfunc

    return cfunc("float64(float64, float64)")(getattr(derivative, "py_func", derivative))


def _custom(derivative: Any) -> Custom:
    """Make a loss of the user's compiled derivative."""
    from numba.core.errors import NumbaError

    try:
        return Custom(_c_function(derivative).address)
    except NumbaError as error:
        first_line = str(error).strip().splitlines()[0]
        raise InputError(
            f"the kernel must be a function (z, y) -> float that Numba can compile: {first_line}"
        ) from error
