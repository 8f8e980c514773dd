# SPDX-License-Identifier: Apache-2.0
"""A linear model as the kernels see it (rows, targets, loss, l2 term), and its evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import cfunc
from numba.core.errors import NumbaError

from fedac.errors import InputError
from fedac.objectives import Augmented, LinearModel, Objective, SoftmaxRegression
from fedac.objectives.linear_model import DataObjective
from fedac.objectives.losses import FORMULAS, check_kernel, has_kernel
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.interface import Rows
from fedac.simulation.engines.linear.kernels.losses import Custom, Softmax
from fedac.simulation.engines.linear.kernels.simd import Template, aligned, vector_width
from fedac.simulation.engines.linear.workers import Context, sum_strands
from fedac.validate import Array

# Points that a pass over the data evaluates together.
LANES = 16
STRANDS = 16
# Memory for records that wait to be evaluated together.
WAITING_BYTES = 2**26


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


def split(objective: Objective) -> tuple[DataObjective, Regularizer]:
    """Split an objective into a linear model and one quadratic term."""
    strength, pull, squares = 0.0, np.zeros(objective.dim), 0.0
    while isinstance(objective, Augmented):
        strength += objective.lam
        squares += objective.lam * float(objective.center @ objective.center)
        pull += objective.lam * objective.center
        objective = objective.base
    if not isinstance(objective, LinearModel | SoftmaxRegression) or not has_kernel(
        type(objective)
    ):
        raise InputError(
            f"the fast engine needs a linear model with a compiled loss, not "
            f"{type(objective).__name__}"
        )
    strength += objective.l2
    # Without any quadratic term the center does not matter.
    center = pull / strength if strength else pull
    constant = (squares - strength * float(center @ center)) / 2
    return objective, Regularizer(strength, center, constant)


def prepare(model: DataObjective, regularizer: Regularizer, dtype: npt.DTypeLike) -> Rows:
    """Arrange a model's data for the kernels, in the given precision."""
    X = model.X
    data: tuple[npt.NDArray[Any], ...]
    if isinstance(X, sp.csr_array):
        # Unsigned indices save the kernels a test for negative ones; short ones save cache. There
        # are too few row bounds for that, and every type of them would have to be compiled.
        bounds = X.indptr.astype(np.uint32 if X.nnz < 2**32 else np.uint64)
        data = (bounds, X.indices.astype(np.min_scalar_type(X.shape[1] - 1)))
        if (X.data != 1.0).any():
            data = (*data, X.data.astype(dtype))
    else:
        data = (np.ascontiguousarray(X, dtype=dtype),)
    centered = regularizer.center.any()
    offsets = model.margins(regularizer.center, X).ravel() if centered else np.zeros(0)
    return Rows(data, model.y.astype(dtype), offsets.astype(dtype), _loss(model))


def _loss(model: DataObjective) -> Any:
    """Return a model's loss for the kernels."""
    if isinstance(model, SoftmaxRegression):
        return Softmax(len(model.classes))
    assert isinstance(model, LinearModel)
    check_kernel(model)
    return FORMULAS[model.kernel] if isinstance(model.kernel, str) else _custom(model.kernel)


@cache  # keeps the compiled code alive, without which its address is invalid
def _c_function(derivative: Any) -> Any:
    return cfunc("float64(float64, float64)")(getattr(derivative, "py_func", derivative))


def _custom(derivative: Any) -> Custom:
    """Make a loss from the user's derivative."""
    try:
        return Custom(_c_function(derivative).address)
    except NumbaError as error:
        first_line = str(error).strip().splitlines()[0]
        raise InputError(
            f"the kernel must be a function (z, y) -> float that Numba can compile: {first_line}"
        ) from error


def records_at_once(context: Context) -> int:
    """Return how many records are evaluated together.

    A pass over the data costs little more for `LANES` points than for one.
    """
    problem = context.problem
    if problem.live:
        return 1
    states = sum(len(lane.algorithm.state_names) for lane in problem.lanes)
    return max(1, min(LANES, WAITING_BYTES // (8 * context.model.dim * states)))


def losses(context: Context, W: Array) -> Array:
    """Return F(W[k]) for every k, the outputs of lanes."""
    # One wide matrix product is faster than several: evaluate as many points as memory allows.
    evaluate: Callable[[Context, Array], Array] = _by_products
    rows = context.exact_rows
    most = max(1, WAITING_BYTES // (8 * len(rows.y) * rows.outputs))
    if _has_kernel(context):
        evaluate = partial(_by_kernel, Template(np.float64, _width(context)))
        most = LANES
    means = [evaluate(context, W[k : k + most]) for k in range(0, len(W), most)]
    return np.concatenate(means) + context.regularizer.values(W)


def compile_losses(context: Context) -> None:
    """Compile the kernel by running it on no rows."""
    if _has_kernel(context):
        V = _width(context)
        P, total = aligned((context.model.dim * V,), np.float64), aligned((STRANDS, V), np.float64)
        steps.sum_losses(Template(np.float64, V), context.exact_rows, P, total, 0, 0)


def _width(context: Context) -> int:
    """Return the number of points in a vector: always the same, so that one kernel is compiled."""
    problem = context.problem
    together = min(records_at_once(context), len(problem.records))
    return vector_width(min(LANES, len(problem.lanes) * together))


def _has_kernel(context: Context) -> bool:
    """Return whether a kernel computes losses: for sparse data or classes, with a built-in loss.

    For other dense data, matrix products are as fast. A user's own loss and weighted rows are known
    to the model only.
    """
    rows = context.exact_rows
    own = isinstance(rows.loss, Custom) or context.model.weights is not None
    return not own and (not rows.dense or rows.outputs > 1)


def _by_kernel(lanes: Template, context: Context, W: Array) -> Array:
    rows, n, V = context.exact_rows, len(context.exact_rows.y), len(lanes)
    P, total = aligned((W.shape[1], V), np.float64), aligned((STRANDS, V), np.float64)
    P[:, : len(W)] = W.T
    if rows.dense:  # the kernel takes their margins
        (X,) = rows.data
        P = _products(context, X, P.reshape(X.shape[1], -1))
    kernel = partial(steps.sum_losses, lanes, rows, P.reshape(-1), total)
    context.threads.run(kernel, strands=STRANDS, work=n * rows.outputs)
    return sum_strands(total)[: len(W)] / n


def _by_products(context: Context, W: Array) -> Array:
    model, n = context.model, context.model.n_samples
    columns = W.reshape(len(W), model.X.shape[1], -1).transpose(1, 0, 2)
    Z = _products(context, model.X, np.ascontiguousarray(columns).reshape(len(columns), -1))
    by_lane = Z.reshape(n, len(W), -1)
    means = np.empty(len(W))

    def average(first: int, last: int) -> None:
        for lane in range(first, last):
            z = np.ascontiguousarray(by_lane[:, lane])
            means[lane] = model.mean_loss(z if z.shape[1] > 1 else z[:, 0], model.y)

    context.threads.run(average, strands=len(W), work=n * len(W))
    return means


def _products(context: Context, X: Any, P: Array) -> Array:
    """Return X @ P, computed by all threads."""
    n = X.shape[0]
    Z = np.empty((n, P.shape[1]))

    def multiply(first: int, last: int) -> None:
        for strand in range(first, last):
            rows = slice(n * strand // STRANDS, n * (strand + 1) // STRANDS)
            Z[rows] = X[rows] @ P

    context.threads.run(multiply, strands=STRANDS, work=Z.size)
    return Z
