# SPDX-License-Identifier: Apache-2.0
"""Data heterogeneity: how far the clients' objectives F_m are from F = sum_m p_m F_m."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from fedac.data.clients import Clients
from fedac.data.splits import as_clients
from fedac.federation.round import require_weighting
from fedac.objectives.base import Augmented, ConvexObjective, Objective
from fedac.objectives.linear_model import LinearModel
from fedac.objectives.minimizer import optimum
from fedac.validate import Array

# Maximum number of gradient entries in memory at a time.
BLOCK = 10**7
# Multiplications beyond which Hessians are not computed, because that would take many minutes.
MOST_WORK = 10**12
# Relative to the Hessian of F: smaller distances are rounding errors.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """Distances between the gradients and Hessians of the clients and of F.

    Attributes
    ----------
    gradients : float
        sum_m p_m ||grad F_m(w*) - grad F(w*)||^2.
    hessians : float or None
        max_m ||F_m''(w*) - F''(w*)||, in the spectral norm. For least squares it is the same at
        every w. None for objectives other than linear models, and if it would take too long.
    """

    gradients: float
    hessians: float | None


def measure(
    objective: ConvexObjective, clients: Clients | npt.ArrayLike, weighting: str = "examples"
) -> Heterogeneity:
    """Compute `ConvexObjective.heterogeneity`."""
    require_weighting(weighting)
    clients = as_clients(clients, objective)
    if weighting == "uniform":
        objective = objective.weighted(clients.row_weights)
    w = optimum(objective).w
    while isinstance(objective, Augmented):  # the added term is the same for every client
        objective = objective.base
    weights = getattr(objective, "weights", None)
    weights = np.ones(len(clients.rows)) if weights is None else weights[clients.rows]
    totals = np.add.reduceat(weights, clients.bounds[:-1])
    # `means` averages over each client's rows; the rows are already grouped as CSR needs them.
    shares = weights / np.repeat(totals, clients.sizes)
    shape = (len(clients), len(clients.rows))
    means = sp.csr_array((shares, clients.rows, clients.bounds), shape=shape)
    p = totals / totals.sum()

    center, done, spread = objective.gradient(w), 0, 0.0
    for gradients in _client_gradients(objective, w, means):
        weight = p[done : done + len(gradients)]
        spread += float(weight @ ((gradients - center) ** 2).sum(axis=1))
        done += len(gradients)
    hessians = None
    if isinstance(objective, LinearModel):
        n, d = objective.X.shape
        if n * d**2 + len(clients) * d**3 <= MOST_WORK:
            hessians = _hessian_distance(objective, w, means, p)
    return Heterogeneity(spread, hessians)


def _client_gradients(objective: Objective, w: Array, means: sp.csr_array) -> Iterator[Array]:
    """Yield the gradients of all clients, a block at a time."""
    at_once = max(1, BLOCK // objective.dim)
    blocks = (means[first : first + at_once] for first in range(0, means.shape[0], at_once))
    if isinstance(objective, LinearModel):
        slopes = objective.derivative(objective.X @ w, objective.y)
        for block in blocks:
            yield _dense(_scale_columns(block, slopes) @ objective.X) + objective.l2 * w
        return
    for block in blocks:
        W = np.broadcast_to(w, (block.nnz, objective.dim))
        of_rows = objective.stochastic_gradients(W, block.indices.astype(np.int64))
        yield np.add.reduceat(block.data[:, None] * of_rows, block.indptr[:-1])


def _hessian_distance(objective: LinearModel, w: Array, means: sp.csr_array, p: Array) -> float:
    """Return the largest spectral norm of F_m'' - F'' over all clients; l2 cancels."""
    curvature = objective.second_derivative(objective.X @ w, objective.y)
    scaled = _scale_columns(means, curvature)
    # A client's Hessian is the Gram matrix of its scaled rows; the first client's rows come first.
    rows: Any = _scale_rows(np.sqrt(scaled.data), objective.X[scaled.indices])
    of_f = _gram(_scale_rows(np.sqrt(scaled.T @ p), objective.X))
    tolerance, furthest = ROUNDING * float(np.linalg.norm(of_f)), 0.0
    with threadpool_limits(1):  # more threads slow down small matrices
        for first, last in pairwise(means.indptr):
            difference = _gram(rows[first:last]) - of_f
            # The Frobenius norm is never smaller, and saves computing most eigenvalues.
            if np.linalg.norm(difference) > furthest + tolerance:
                furthest = max(furthest, float(np.abs(np.linalg.eigvalsh(difference)).max()))
    return furthest


def _gram(rows: Any) -> Array:
    if rows.shape[0] < rows.shape[1]:
        rows = _dense(rows)  # faster while it is small
    return _dense(rows.T @ rows)


def _scale_rows(factors: Array, rows: Any) -> Any:
    if isinstance(rows, np.ndarray):
        return factors[:, None] * rows
    return (sp.diags_array(factors) @ rows).tocsr()


def _scale_columns(matrix: sp.csr_array, factors: Array) -> sp.csr_array:
    # Not a product with a diagonal matrix: stored zeros must stay stored.
    data = matrix.data * factors[matrix.indices]
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _dense(matrix: Any) -> Array:
    dense: Array = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return dense
