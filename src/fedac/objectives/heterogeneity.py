"""How far the clients' objectives are from their mean: what theory assumes to be small.

F = sum_m p_m F_m, where F_m is the mean over the rows of client m. Clients count by their rows,
p_m = n_m/n, or all the same, p_m = 1/N.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from fedac.data.clients import Clients, as_clients
from fedac.federation.averaging import require_weighting
from fedac.objectives.augmented import Augmented
from fedac.objectives.base import ConvexObjective, Objective
from fedac.objectives.linear_model import LinearModel
from fedac.objectives.minimizer import optimum
from fedac.validate import Array

F = TypeVar("F", bound=Objective)

# Numbers in the gradients of the clients that are in memory at a time.
BLOCK = 10**7
# Hessians of clients that need more multiplications than this take many minutes: they are left out.
MOST_WORK = 10**12
# Relative to the Hessian of F: smaller distances are rounding errors.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """The distance of the clients' gradients and Hessians to those of F.

    Attributes
    ----------
    gradients : float
        sum_m p_m ||grad F_m(w*) - grad F(w*)||^2.
    hessians : float or None
        max_m ||F_m''(w*) - F''(w*)||, in the spectral norm. Least squares have it everywhere, other
        linear models at w* only. None for objectives of other kinds, and beyond `MOST_WORK`.
    """

    gradients: float
    hessians: float | None


def measure(
    objective: ConvexObjective, clients: Clients | npt.ArrayLike, weighting: str = "examples"
) -> Heterogeneity:
    """Compute `ConvexObjective.heterogeneity`."""
    require_weighting(weighting)
    clients = as_clients(clients, objective.n_samples)
    objective = minimized(objective, clients, weighting)
    w = optimum(objective).w
    while isinstance(objective, Augmented):  # what it adds is the same for every client
        objective = objective.base
    means = _means(objective, clients)
    hessians = None
    if isinstance(objective, LinearModel):
        n, d = objective.X.shape
        if n * d**2 + len(clients) * d**3 <= MOST_WORK:
            hessians = _furthest_hessian(objective, w, means)
    return Heterogeneity(_spread_of_gradients(objective, w, means), hessians)


@dataclass(frozen=True)
class _Means:
    """How the clients' means are taken over their rows, and F over the clients."""

    of_rows: sp.csr_array  # shape (N, n); a row adds up to 1
    of_clients: Array  # p_m


def _means(objective: Objective, clients: Clients) -> _Means:
    weights = getattr(objective, "weights", None)
    weights = np.ones(len(clients.rows)) if weights is None else weights[clients.rows]
    totals = np.add.reduceat(weights, clients.bounds[:-1])
    shares = weights / np.repeat(totals, clients.sizes)
    # Clients are in the format of sparse rows already.
    shape = (len(clients), len(clients.rows))
    of_rows = sp.csr_array((shares, clients.rows, clients.bounds), shape=shape)
    return _Means(of_rows, totals / totals.sum())


def _spread_of_gradients(objective: Objective, w: Array, means: _Means) -> float:
    center, done, total = objective.gradient(w), 0, 0.0
    for gradients in _client_gradients(objective, w, means.of_rows):
        p = means.of_clients[done : done + len(gradients)]
        total += float(p @ ((gradients - center) ** 2).sum(axis=1))
        done += len(gradients)
    return total


def _client_gradients(objective: Objective, w: Array, of_rows: sp.csr_array) -> Iterator[Array]:
    """Yield the gradients of all clients, some at a time."""
    at_once = max(1, BLOCK // objective.dim)
    blocks = (of_rows[first : first + at_once] for first in range(0, of_rows.shape[0], at_once))
    if isinstance(objective, LinearModel):
        slopes = objective.derivative(objective.X @ w, objective.y)
        for block in blocks:
            yield _dense(_scaled(block, slopes) @ objective.X) + objective.l2 * w
        return
    for block in blocks:
        W = np.broadcast_to(w, (block.nnz, objective.dim))
        of_each = objective.stochastic_gradients(W, block.indices.astype(np.int64))
        yield np.add.reduceat(block.data[:, None] * of_each, block.indptr[:-1])


def _furthest_hessian(objective: LinearModel, w: Array, means: _Means) -> float:
    """Return the largest spectral norm of a client's Hessian minus that of F; l2 cancels."""
    curvature = objective.second_derivative(objective.X @ w, objective.y)
    of_rows, bounds = _scaled(means.of_rows, curvature), means.of_rows.indptr
    # Those of the first client first; the Hessian of a client is the Gram matrix of its rows.
    rows: Any = _times(np.sqrt(of_rows.data), objective.X[of_rows.indices])
    of_f = _gram(_times(np.sqrt(of_rows.T @ means.of_clients), objective.X))
    tolerance, furthest = ROUNDING * float(np.linalg.norm(of_f)), 0.0
    with threadpool_limits(1):  # more threads slow down small matrices
        for first, last in pairwise(bounds):
            difference = _gram(rows[first:last]) - of_f
            # The Frobenius norm is never smaller, and spares most eigenvalues.
            if np.linalg.norm(difference) > furthest + tolerance:
                furthest = max(furthest, float(np.abs(np.linalg.eigvalsh(difference)).max()))
    return furthest


def _gram(rows: Any) -> Array:
    """Return rows' times rows, dense."""
    if rows.shape[0] < rows.shape[1]:
        rows = _dense(rows)  # faster while it is small
    return _dense(rows.T @ rows)


def _times(numbers: Array, rows: Any) -> Any:
    """Return each row multiplied by a number."""
    if isinstance(rows, np.ndarray):
        return numbers[:, None] * rows
    return (sp.diags_array(numbers) @ rows).tocsr()


def _scaled(matrix: sp.csr_array, columns: Array) -> sp.csr_array:
    """Return a matrix with its columns multiplied by some numbers; zeros stay in their places."""
    data = matrix.data * columns[matrix.indices]
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _dense(matrix: Any) -> Array:
    dense: Array = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return dense


# --- What F is where rows belong to clients.


def minimized(objective: F, clients: Clients | None, weighting: str) -> F:
    """Return F: the loss over all rows or, with uniform weights, the mean of the clients' losses.

    Examples
    --------
    >>> import numpy as np
    >>> from fedac.objectives import LeastSquares
    >>> F = LeastSquares([[1.0], [1.0], [1.0]], [0.0, 0.0, 3.0])
    >>> two = Clients(["a", "a", "b"])
    >>> w = np.zeros(1)
    >>> [minimized(F, two, weighting).value(w) for weighting in ("examples", "uniform")]
    [1.5, 2.25]
    """
    if clients is None or weighting != "uniform":
        return objective
    return objective.weighted(clients.row_weights)
