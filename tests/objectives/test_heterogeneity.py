# SPDX-License-Identifier: Apache-2.0
"""How far clients are from their mean: by hand, and against an objective for every client."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedac.data import Clients, load, split
from fedac.errors import InputError, NoOptimumError
from fedac.federation.federation import minimized
from fedac.objectives import (
    LOSSES,
    Augmented,
    ConvexObjective,
    Heterogeneity,
    LeastSquares,
    LogisticRegression,
    NoisyQuadratic,
    optimum,
)
from fedac.objectives import heterogeneity as module


def test_two_clients_by_hand():
    """F_1 = (w - 1)^2 / 2 over one row, F_2 = ((2w - 2)^2 + (2w - 6)^2) / 4 = 2 (w - 2)^2 + 2.

    By examples, F' = (w - 1)/3 + 8/3 (w - 2) vanishes at 17/9, where F_1' = 8/9 and F_2' = -4/9:
    1/3 64/81 + 2/3 16/81 = 32/81. F'' = 1/3 + 2/3 4 = 3, so the distances are 2 and 1.

    All the same, F' = (w - 1)/2 + 2 (w - 2) vanishes at 9/5, where F_1' = 4/5 and F_2' = -4/5.
    F'' = 5/2, and both distances are 3/2.
    """
    F = LeastSquares([[1.0], [2.0], [2.0]], [1.0, 2.0, 6.0])
    found = F.heterogeneity(["a", "b", "b"])
    assert found.gradients == pytest.approx(32 / 81, rel=1e-12)
    assert found.hessians == pytest.approx(2, rel=1e-12)
    found = F.heterogeneity(["a", "b", "b"], weighting="uniform")
    assert found.gradients == pytest.approx(16 / 25, rel=1e-12)
    assert found.hessians == pytest.approx(3 / 2, rel=1e-12)


def problem(loss="logistic", *, sparse=True, n=60, d=7, l2=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)
    y = rng.choice([-1.0, 1.0], n)
    if loss == "poisson":
        y = rng.poisson(1.5, n)
    if loss == "softmax":
        y = rng.integers(0, 3, n)
    return LOSSES[loss](sp.csr_array(X) if sparse else X, y, l2=l2)


def brute_force(F, clients, weighting):
    """Compute it from an objective of its own for every client."""
    own = [
        # A client may lack a class, but its parameters are those of all classes.
        F.derived(X=F.X[rows], y=F.y[rows], n_samples=len(rows))
        for rows in map(clients.rows_of, range(len(clients)))
    ]
    p = clients.sizes / len(clients.rows)
    if weighting == "uniform":
        p = np.full(len(clients), 1 / len(clients))
        F = F.weighted(1 / clients.sizes[clients.owners])
    w = optimum(F).w

    def hessian(objective):
        return np.array([objective.hessian_product(w, e) for e in np.eye(F.dim)])

    gradients = np.array([objective.gradient(w) for objective in own])
    np.testing.assert_allclose(p @ gradients, F.gradient(w), atol=1e-12)
    distances = [np.linalg.norm(hessian(objective) - hessian(F), 2) for objective in own]
    return Heterogeneity(float(p @ ((gradients - p @ gradients) ** 2).sum(axis=1)), max(distances))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("by", ["iid", "label", "dirichlet(0.1)", "power(1)"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("loss", LOSSES)
def test_equals_brute_force(loss, sparse, by, weighting, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 20)  # two clients at a time
    F = problem(loss, sparse=sparse)
    clients = split(F, 9, by)
    found, expected = F.heterogeneity(clients, weighting), brute_force(F, clients, weighting)
    assert found.gradients == pytest.approx(expected.gradients, rel=1e-9)
    if loss == "softmax":
        assert found.hessians is None
    else:
        assert found.hessians == pytest.approx(expected.hessians, rel=1e-9)


def test_what_is_added_for_all_does_not_count():
    """An l2 term in another guise: equal constants, at the same optimum."""
    with_l2, without = problem(l2=0.3), problem(l2=0.0)
    clients = split(with_l2, 6, "label")
    found = Augmented(without, lam=0.3, center=np.zeros(7)).heterogeneity(clients)
    expected = with_l2.heterogeneity(clients)
    assert found.gradients == pytest.approx(expected.gradients, rel=1e-9)
    assert found.hessians == pytest.approx(expected.hessians, rel=1e-9)


class Wrapped(ConvexObjective):
    """A linear model that does not show its rows."""

    def __init__(self, base):
        self.base, self.dim, self.n_samples = base, base.dim, base.n_samples

    def value(self, w):
        return self.base.value(w)

    def gradient(self, w):
        return self.base.gradient(w)

    def hessian_product(self, w, v):
        return self.base.hessian_product(w, v)

    def stochastic_gradients(self, W, rows):
        return self.base.stochastic_gradients(W, rows)

    def noise(self, w):
        return self.base.noise(w)

    def fingerprint(self):
        return self.base.fingerprint()

    smoothness = strong_convexity = 1.0


def test_other_objectives_have_gradients_only(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 20)
    F = problem()
    clients = split(F, 9, "power(1)")
    found = Wrapped(F).heterogeneity(clients)
    assert found.gradients == pytest.approx(F.heterogeneity(clients).gradients, rel=1e-9)
    assert found.hessians is None
    with pytest.raises(InputError, match="the rows of Wrapped cannot be weighted"):
        Wrapped(F).heterogeneity(clients, "uniform")


def test_equal_data_give_zero():
    F = problem(n=20)
    X, y = np.tile(F.X.toarray(), (5, 1)), np.tile(F.y, 5)
    for kind in (LogisticRegression, LeastSquares):
        found = kind(X, y, l2=0.1).heterogeneity(np.repeat(np.arange(5), 20))
        assert found.gradients < 1e-24
        assert found.hessians < 1e-12


def test_one_client_is_like_itself():
    F = problem()
    found = F.heterogeneity(np.zeros(60))
    assert found.gradients < 1e-24
    assert found.hessians < 1e-12


@pytest.mark.slow
def test_sorted_rows_differ_more_than_shuffled_ones():
    data = load("a9a")
    F = LogisticRegression(data.X, data.y, l2=1e-3)
    shuffled, mixed, by_label = (
        F.heterogeneity(split(data, 100, by)) for by in ("iid", "dirichlet(10)", "label")
    )
    # 325 rows of a client: E ||grad F_m - grad F||^2 = sigma^2 (1/325 - 1/n). The mean of 100 such
    # squares has a relative deviation of 0.073, as the gradients of rows have 3.75 effective
    # dimensions; four of these, so another seed fails with probability 6e-5.
    noise = F.noise(optimum(F).w)
    assert shuffled.gradients == pytest.approx(noise * (1 / 325.61 - 1 / 32561), rel=0.29)
    assert 1.5 * shuffled.gradients < mixed.gradients < by_label.gradients / 5
    assert shuffled.hessians < by_label.hessians


def test_one_row_each_is_the_noise():
    """Every row a client: the gradients differ by sigma^2 of the paper's assumption."""
    F = problem()
    assert F.heterogeneity(np.arange(60)).gradients == pytest.approx(
        F.noise(optimum(F).w), rel=1e-9
    )


@pytest.mark.slow
def test_ten_thousand_clients():
    """Takes about 2 s; an objective for every client would take minutes."""
    data = load("a9a")
    F = LogisticRegression(data.X, data.y, l2=1e-3)
    optimum(F)
    clients = split(data, 10_000, "dirichlet(0.1)")
    assert F.heterogeneity(clients).hessians > 1


def test_too_expensive_hessians_are_left_out(monkeypatch):
    F = problem()
    clients = split(F, 9, "label")
    # 60 rows and 9 clients of 7 columns: 60 * 49 + 9 * 343.
    monkeypatch.setattr(module, "MOST_WORK", 6027)
    assert F.heterogeneity(clients).hessians is not None
    monkeypatch.setattr(module, "MOST_WORK", 6026)
    assert F.heterogeneity(clients).hessians is None


def test_a_result_with_uniform_weights_has_them_already():
    F = problem()
    clients = split(F, 9, "power(1)")
    weighted = F.weighted(1 / clients.sizes[clients.owners])
    assert weighted.heterogeneity(clients).gradients == pytest.approx(
        F.heterogeneity(clients, "uniform").gradients, rel=1e-9
    )


@pytest.mark.parametrize(
    ("clients", "options", "saying"),
    [
        ([0, 1], {}, "clients hold 2 rows, but the objective has 60"),
        (np.zeros(60), {"weighting": "size"}, "unknown weighting 'size'; known: examples, uniform"),
        ([None] * 60, {}, "clients must be an array"),
    ],
)
def test_bad_input(clients, options, saying):
    with pytest.raises(InputError, match=saying):
        problem().heterogeneity(clients, **options)


def test_without_an_optimum_or_rows_there_is_none():
    with pytest.raises(NoOptimumError):
        LogisticRegression([[1.0], [2.0]], [1.0, 1.0]).heterogeneity([0, 1])
    with pytest.raises(InputError, match="clients need rows"):
        NoisyQuadratic([1.0]).heterogeneity([0, 1])


def test_uniform_weights_give_the_mean_over_clients():
    F = LeastSquares([[1.0], [1.0], [1.0]], [0.0, 0.0, 3.0])
    two, w = Clients(["a", "a", "b"]), np.zeros(1)
    values = [minimized(F, two, by).value(w) for by in ("examples", "uniform")]
    assert values == [1.5, 2.25]
