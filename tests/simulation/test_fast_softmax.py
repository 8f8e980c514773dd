# SPDX-License-Identifier: Apache-2.0
"""Softmax regression in the fast engine: the reference engine, logistic regression, plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedac import (
    Augmented,
    Clients,
    Decay,
    LogisticRegression,
    Schedule,
    SoftmaxRegression,
    simulate,
)
from fedac.errors import InputError
from fedac.objectives import Objective

N, C = 90, 6
METHODS = [
    "fedac-i", "fedac-ii", "fedac-vanilla", "fedavg", "fedavg-weighted", "mb-sgd", "mb-ac-sgd",
    "scaffold", "fedac-i+cv+nesterov(1,0.3)", "fedac-i+local", "fedprox(0.1)", "fedadam(0.1)",
    "fedavg+nesterov(1,0.5)",
]  # fmt: skip


def make_data(kind: str, d: int, n: int = N) -> tuple[np.ndarray | sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) / 2
    y = (X[:, :2] @ rng.standard_normal((2, C)) + rng.gumbel(size=(n, C))).argmax(axis=1)
    if kind == "dense":
        return X, y
    X *= rng.random((n, d)) < min(1.0, 6 / d)
    X[7] = 0.0  # a row without nonzeros
    return sp.csr_array((X != 0).astype(float) if kind == "ones" else X), y


def make_objective(kind: str, d: int, n: int = N) -> SoftmaxRegression:
    return SoftmaxRegression(*make_data(kind, d, n), l2=0.01)


def unequal(count: int, n: int = N) -> Clients:
    """Return clients of different sizes."""
    owners = np.random.default_rng(1).integers(0, count, (n, 2)).min(axis=1)
    owners[:count] = np.arange(count)
    return Clients(owners)


def assert_same(objective: Objective, methods: list[str], rel: float = 1e-9, **options) -> None:
    slow, quick = (
        simulate(objective, methods, engine=engine, precision="float64", **options)
        for engine in ("reference", "fast")
    )
    assert slow.gradient_queries == quick.gradient_queries
    for one, other in zip(slow.runs, quick.runs, strict=True):
        size = np.abs(one.w).max()
        assert other.loss == pytest.approx(one.loss, rel=rel), one.algorithm
        assert other.w == pytest.approx(one.w, rel=rel, abs=rel * size), one.algorithm


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("batch", [1, 4, "full"])
@pytest.mark.parametrize(("kind", "d"), [("dense", 8), ("numbers", 8), ("ones", 400)])
def test_every_method_on_unequal_clients(kind, d, batch, weighting) -> None:
    assert_same(
        make_objective(kind, d), METHODS, K=5, T=15, eta=[0.1, 0.3], clients=unequal(10),
        participation=0.3, weighting=weighting, batch=batch,
    )  # fmt: skip


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_unequal_clients(kind, weighting) -> None:
    assert_same(
        make_objective(kind, 8), ["fedac-i", "scaffold", "mb-sgd"], K=5, T=15, eta=[0.1, 0.3],
        clients=unequal(10), participation=0.3, weighting=weighting,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_an_l2_term_with_a_center(kind) -> None:
    F = make_objective(kind, 8)
    centered = Augmented(F, lam=0.02, center=np.linspace(-1, 1, F.dim))
    methods = ["fedac-i", "scaffold", "mb-sgd"]
    assert_same(centered, methods, K=5, T=15, eta=[0.1, 0.3], clients=unequal(10))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4, "full"])
def test_matrix_products_of_dense_rows(batch) -> None:
    F = make_objective("dense", 8)
    centered = Augmented(F, lam=0.02, center=np.linspace(-1, 1, F.dim))
    methods = ["fedac-i", "fedavg", "fedac-i+cv"]
    options = {"K": 5, "T": 15, "clients": unequal(10), "participation": 0.3, "batch": batch}
    for objective in (F, centered):  # with many lanes
        assert_same(objective, methods, eta=np.geomspace(0.05, 0.3, 10), **options)


# How workers' moves are collected: over all coordinates, over touched ones, in a large state, and
# by row, where few rows are drawn many times.
COLLECTED = {
    "sweep": ("numbers", 8, N, 20),
    "touched": ("numbers", 120, N, 5),
    "far": ("numbers", 900, 200, 5),
    "by row": ("ones", 900, 40, 40),
    "by row, dense": ("dense", 8, 40, 40),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", COLLECTED)
def test_every_way_to_collect_moves(how) -> None:
    kind, d, n, M = COLLECTED[how]
    etas = np.geomspace(0.1, 0.3, 10 if kind == "dense" else 2)
    assert_same(make_objective(kind, d, n), ["fedac-i", "fedavg"], M=M, K=4, T=12, eta=etas)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_folds_blocks_and_falling_step_sizes(kind) -> None:
    F = make_objective(kind, 8)
    F = SoftmaxRegression(F.X, F.y, l2=0.5)  # A^t is soon ill-conditioned
    for etas in ([0.3, 0.9], np.geomspace(0.1, 0.9, 10)):
        assert_same(F, ["fedac-i", "fedavg"], M=3, K=70, T=140, eta=etas, mu=0.01)
    falling = [Decay(0.3, "1/sqrt(r)"), Decay(0.2, "1/r")]
    assert_same(F, ["fedac-i", "scaffold"], M=3, K=Schedule([4, 1, 3]), eta=falling)
    assert_same(F, ["fedac-i", "fedavg", "mb-sgd"], M=3, K=1, T=4, eta=[0.1, 0.3])


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_rounded_messages(kind, wire) -> None:
    assert_same(
        make_objective(kind, 50), ["fedavg", "scaffold", "fedac-i+cv"], K=4, T=12, eta=[0.1, 0.3],
        clients=unequal(10), participation=0.3, wire=wire,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_two_classes_are_logistic_regression(kind) -> None:
    X, y = make_data(kind, 8)
    y = y > 2
    start = np.random.default_rng(2).standard_normal((X.shape[1], 2))
    options = {"K": 4, "T": 12, "clients": unequal(10), "participation": 0.3,
               "precision": "float64", "engine": "fast"}  # fmt: skip
    methods = ["fedac-i", "fedavg", "scaffold"]
    softmax = simulate(
        SoftmaxRegression(X, y, l2=0.02), methods, eta=[0.1, 0.2], start=start.ravel(), **options
    )
    logistic = simulate(
        LogisticRegression(X, 2.0 * y - 1, l2=0.01), methods, eta=[0.2, 0.4],
        start=start[:, 1] - start[:, 0], **options,
    )  # fmt: skip
    for two, one in zip(softmax.runs, logistic.runs, strict=True):
        w = two.w.reshape(-1, 2)
        assert w[:, 1] - w[:, 0] == pytest.approx(one.w, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_plain_numpy(kind, weighting) -> None:
    X, y = make_data(kind, 8)
    rows, clients = X if kind == "dense" else X.toarray(), unequal(4)
    W = np.random.default_rng(2).standard_normal((8, C))
    result = simulate(
        SoftmaxRegression(X, y, l2=0.01), "fedavg", K=3, T=6, eta=0.3, clients=clients,
        weighting=weighting, batch="full", start=W.ravel(), precision="float64", engine="fast",
    )  # fmt: skip
    owned = [clients.rows_of(m) for m in range(4)]
    for _ in range(2):
        ends = []
        for mine in owned:
            w = W.copy()
            for _ in range(3):
                p = np.exp(rows[mine] @ w)
                p /= p.sum(axis=1, keepdims=True)
                w -= 0.3 * (rows[mine].T @ (p - np.eye(C)[y[mine]]) / len(mine) + 0.01 * w)
            ends.append(w)
        weights = [len(mine) for mine in owned] if weighting == "examples" else None
        W = np.average(ends, axis=0, weights=weights)
    assert result.runs[0].w == pytest.approx(W.ravel(), rel=1e-10, abs=1e-12)
    margins = rows @ W
    loss = np.log(np.exp(margins).sum(axis=1)) - margins[np.arange(N), y]
    weights = np.concatenate([np.full(len(mine), 1 / len(mine)) for mine in owned])
    by_row = loss[np.concatenate(owned)]
    mean = loss.mean() if weighting == "examples" else by_row @ weights / 4
    assert result.runs[0].loss[-1] == pytest.approx(mean + 0.005 * (W**2).sum(), rel=1e-12)


@pytest.mark.parametrize("kind", ["dense", "numbers"])
def test_the_fast_engine_is_the_default_and_threads_change_nothing(kind) -> None:
    F = make_objective(kind, 8)
    options = {"M": 70, "K": 5, "T": 15, "eta": [0.1, 0.3]}
    one, two = (simulate(F, ["fedac-i", "scaffold"], threads=k, **options) for k in (1, 2))
    exact = simulate(F, ["fedac-i", "scaffold"], engine="reference", **options)
    for a, b, c in zip(one.runs, two.runs, exact.runs, strict=True):
        assert (a.w == b.w).all()
        assert (a.loss == b.loss).all()
        assert a.w == pytest.approx(c.w, abs=2e-5)


def test_margins_far_apart_do_not_overflow() -> None:
    X, y = np.eye(3) * 1e4, [0, 1, 2]
    options = {"M": 2, "K": 2, "T": 4, "eta": 5e-8, "start": np.arange(9.0)}
    slow, quick = (
        simulate(SoftmaxRegression(X, y), "fedavg", engine=engine, precision="float64", **options)
        for engine in ("reference", "fast")
    )
    assert quick.runs[0].loss == pytest.approx(slow.runs[0].loss, rel=1e-9)


def test_a_subclass_with_its_own_gradient_is_refused() -> None:
    class Mine(SoftmaxRegression):
        def stochastic_gradients(self, W, rows):
            return 2 * super().stochastic_gradients(W, rows)

    with pytest.raises(InputError, match="compiled loss, not Mine"):
        simulate(Mine(*make_data("dense", 8)), "fedavg", M=2, K=2, T=2, eta=0.1, engine="fast")
