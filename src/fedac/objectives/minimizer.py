# SPDX-License-Identifier: Apache-2.0
"""The optimum of an objective, to a relative gradient norm below 1e-12.

L-BFGS gets close; Newton steps, solved by conjugate gradients on Hessian products, do the rest.
Results are cached on disk by the objective's fingerprint, and checked when they are read.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from fedac.errors import NoOptimumError
from fedac.objectives.base import ConvexObjective, Objective
from fedac.paths import cache_dir, write_atomically
from fedac.validate import Array

# Relative to `_large_gradient`.
GRADIENT_TOLERANCE = 1e-12
NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class Optimum:
    """The minimizer ``w`` = w* of an objective and its ``value`` F*."""

    w: Array
    value: float


def optimum(objective: Objective) -> Optimum:
    """Find w* and F* = F(w*).

    Raises
    ------
    NoOptimumError
        If there is no minimum or it cannot be located, as can happen with l2 = 0, and for
        objectives without ``hessian_product``, such as networks.

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> best = optimum(NoisyQuadratic([4.0, 1.0], optimum=[1.0, 2.0]))
    >>> best.w, best.value
    (array([1., 2.]), 0.0)
    """
    if not hasattr(objective, "hessian_product"):
        raise NoOptimumError(
            f"{type(objective).__name__} has no hessian_product, which finding its optimum needs"
        )
    convex = cast(ConvexObjective, objective)
    path = cache_dir() / "optimum" / f"{convex.fingerprint()}.npy"
    w = _read(path, convex)
    if w is None:
        w = _minimize(convex)
        with suppress(OSError):  # a cache that cannot be written is no reason to fail
            write_atomically(path, partial(np.save, arr=w, allow_pickle=False))
    return Optimum(w, convex.value(w))


def _minimize(objective: ConvexObjective) -> Array:
    from scipy.optimize import minimize
    from scipy.sparse.linalg import LinearOperator, cg

    large = _large_gradient(objective)
    tolerance = GRADIENT_TOLERANCE * large
    w: Array = minimize(
        objective.value,
        np.zeros(objective.dim),
        jac=objective.gradient,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": 1e-8 * large},
    ).x
    for _ in range(NEWTON_STEPS):
        g = objective.gradient(w)
        product = partial(objective.hessian_product, w)
        hessian = LinearOperator((objective.dim,) * 2, matvec=product, dtype=np.float64)
        step, _ = cg(hessian, -g, rtol=1e-6, maxiter=10 * objective.dim)
        # With the infimum at infinity the gradient vanishes too, but the steps stay long.
        if _norm(g) <= tolerance and _norm(step) <= 1e-3 * (1 + _norm(w)):
            return w
        # Close to the optimum only the gradient, not the value, is precise enough to compare.
        scale = 1.0
        while scale > 1e-3 and _norm(objective.gradient(w + scale * step)) >= _norm(g):
            scale /= 2
        if scale <= 1e-3:
            break
        w = w + scale * step
    slope = _norm(objective.gradient(w))
    if slope <= tolerance:
        raise NoOptimumError(
            f"no optimum found: the objective is too flat; at norm {_norm(w):.2g} the gradient is "
            f"nearly zero ({slope:.2g}) but the next step has norm {_norm(step):.2g}. l2 is too "
            "small for this data: use a larger one"
        )
    raise NoOptimumError(
        f"no optimum found: at norm {_norm(w):.2g} the gradient norm is still {slope:.2g}, and "
        f"must be under {tolerance:.2g}. Standardize the data (--standardize), or use a larger l2"
    )


def _read(path: Path, objective: ConvexObjective) -> Array | None:
    """Return the cached optimum, or None if there is none or it is not optimal."""
    try:
        w: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if w.shape != (objective.dim,) or w.dtype != np.float64:
        return None
    tolerance = GRADIENT_TOLERANCE * _large_gradient(objective)
    return w if _norm(objective.gradient(w)) <= tolerance else None


def _large_gradient(objective: ConvexObjective) -> float:
    """Return a large gradient norm of the objective, relative to which rounding errors are small.

    It is the norm at zero or, because the gradients of rows may be large where their mean is not,
    the largest that a nonnegative function with this L and F(0) can have.
    """
    zero = np.zeros(objective.dim)
    by_value = math.sqrt(2 * objective.smoothness * abs(objective.value(zero)))
    return max(_norm(objective.gradient(zero)), by_value)


def _norm(g: Array) -> float:
    return float(np.linalg.norm(g))
