# SPDX-License-Identifier: Apache-2.0
"""Simulations that exercise every way in which strands are shared out; drivers load this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedac import (
    Augmented,
    Decay,
    LeastSquares,
    LogisticRegression,
    Result,
    Schedule,
    SoftmaxRegression,
    simulate,
)

Simulation = Callable[..., Result]


def _sparse(n: int, d: int) -> LogisticRegression:
    rng = np.random.default_rng(1)
    # SciPy before 1.15 knows no `rng`; later ones still take `random_state`.
    X = sp.random_array((n, d), density=min(1.0, 6 / d), format="csr", random_state=rng)
    return LogisticRegression(X, np.where(rng.random(n) < 0.4, -1.0, 1.0), l2=0.01)


def _dense(n: int, d: int) -> LeastSquares:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n, d)) / d**0.5
    return LeastSquares(X, X @ np.ones(d) + rng.standard_normal(n), l2=0.01)


def _owners(n: int, clients: int) -> npt.NDArray[np.int64]:
    """Give clients rows, some of them many."""
    return np.minimum(np.random.default_rng(3).exponential(clients / 4, n), clients).astype(int)


def sparse_rows_and_a_lane_that_diverges(**options: Any) -> Result:
    rounds = Schedule((5, 1, 3, 5, 5))  # of one step, they are batches
    return simulate(
        _sparse(300, 40), ["fedac-i", "fedavg", "mb-sgd"],
        M=700, K=rounds, eta=[0.05, 0.5, 1e9], record_every=1, **options,
    )  # fmt: skip


def few_sparse_rows_that_workers_share(**options: Any) -> Result:
    return simulate(
        _sparse(40, 600), ["fedac-i", "fedavg"], M=500, K=4, T=12, eta=[0.1, 0.5], **options
    )


def dense_rows_shared_and_not(**options: Any) -> Result:
    rounds = Schedule((8, 70, 8))  # within a block of steps, and beyond
    F = _dense(60, 30)
    return simulate(F, ["fedac-i", "fedavg"], M=300, K=rounds, eta=[0.05, 0.2], **options)


def large_batches_whose_rows_all_nodes_count(**options: Any) -> Result:
    F = _sparse(300, 40)
    return simulate(F, ["mb-sgd", "fedavg"], M=2**22, K=1, T=2, eta=[0.1, 0.5], **options)


def clients_that_remember_and_change_nodes(**options: Any) -> Result:
    F = _sparse(2000, 40)
    return simulate(
        F, ["scaffold", "fedac-i+cv+nesterov(1,0.3)", "fedavg"], clients=_owners(2000, 250),
        participation=0.3, K=4, T=40, eta=[0.05, 0.2, 1e9], record_every=1, **options,
    )  # fmt: skip


def clients_that_round_their_messages(**options: Any) -> Result:
    F = _sparse(2000, 40)
    return simulate(
        F, ["scaffold", "fedac-i", "mb-sgd"], clients=_owners(2000, 250),
        participation=0.3, K=4, T=24, eta=[0.05, 0.2, 1e9], wire="int8", **options,
    )  # fmt: skip


def dense_clients_that_remember(**options: Any) -> Result:
    return simulate(
        _dense(400, 8), "scaffold", clients=_owners(400, 80),
        participation=0.4, batch=2, K=4, T=24, eta=0.1, **options,
    )  # fmt: skip


def step_sizes_that_fall_and_a_centre(**options: Any) -> Result:
    F = Augmented(_sparse(300, 40), lam=0.02, center=np.ones(40))
    eta = [Decay(0.5, "1/sqrt(r)"), Decay(0.1, "1/sqrt(r)")]
    return simulate(
        F, ["fedac-i", "scaffold"], M=200, K=4, T=16, eta=eta, precision="float64", **options
    )


def sparse_rows_of_several_classes(**options: Any) -> Result:
    F = SoftmaxRegression(_sparse(300, 40).X, np.arange(300) % 4, l2=0.01)
    rounds = Schedule((5, 1, 5))
    return simulate(F, ["fedac-i", "mb-sgd"], M=300, K=rounds, eta=[0.1, 1e9], **options)


def clients_of_several_classes_that_remember(**options: Any) -> Result:
    F = SoftmaxRegression(_dense(400, 8).X, np.arange(400) % 4, l2=0.01)
    return simulate(
        F, ["scaffold", "fedavg"], clients=_owners(400, 80),
        participation=0.4, batch=2, K=4, T=24, eta=0.1, **options,
    )  # fmt: skip


SCENARIOS: dict[str, Simulation] = {
    function.__name__: function
    for function in (
        sparse_rows_and_a_lane_that_diverges,
        few_sparse_rows_that_workers_share,
        dense_rows_shared_and_not,
        large_batches_whose_rows_all_nodes_count,
        clients_that_remember_and_change_nodes,
        clients_that_round_their_messages,
        dense_clients_that_remember,
        step_sizes_that_fall_and_a_centre,
        sparse_rows_of_several_classes,
        clients_of_several_classes_that_remember,
    )
}


def numbers(result: Result) -> dict[str, Any]:
    """Return all losses, final states and the count of queries of a result."""
    found: dict[str, Any] = {"queries": result.gradient_queries}
    for i, run in enumerate(result.runs):
        found |= {f"{i} loss": run.loss, f"{i} steps": run.steps}
        found |= {f"{i} {name}": vector for name, vector in run.state.items()}
    return found
