# SPDX-License-Identifier: Apache-2.0
"""L-BFGS and accelerated gradient descent: rounds counted, rules against the books."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from fedac import Link, LogisticRegression, load
from fedac.data import Clients
from fedac.experiments.comparison.baselines import agd_curve, lbfgs_curve
from fedac.federation.federation import Federation, minimized
from fedac.objectives import LeastSquares, NoisyQuadratic, optimum


class Counted(LogisticRegression):
    """Logistic regression that lists where it was asked for gradients."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[np.ndarray] = []

    def gradient(self, w):
        self.asked.append(w.copy())
        return super().gradient(w)


def breast_cancer(kind=LogisticRegression, l2=1e-2):
    from sklearn.datasets import load_breast_cancer  # slow to import

    X, y = load_breast_cancer(return_X_y=True)
    return kind((X - X.mean(axis=0)) / X.std(axis=0), 2.0 * y - 1, l2=l2)


def nesterov(F, start, rounds, eta, mu):
    """Constant step scheme II as in the book: x, y, alpha_k and beta_k."""
    q, alpha, x, y, values = eta * mu, 1.0, start, start, [F.value(start)]
    for _ in range(rounds):
        x_next = y - eta * F.gradient(y)
        # alpha_{k+1}^2 = (1 - alpha_{k+1}) alpha_k^2 + q alpha_{k+1}
        alpha_next = max(np.roots([1.0, alpha**2 - q, -(alpha**2)]).real)
        beta = alpha * (1 - alpha) / (alpha**2 + alpha_next)
        y = x_next + beta * (x_next - x)
        x, alpha = x_next, alpha_next
        values.append(F.value(x))
    return values


@pytest.mark.parametrize("l2", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("times", [0.3, 1.0, 1.5])
def test_agd_is_the_scheme_of_the_book(l2, times) -> None:
    F = breast_cancer(l2=l2)
    start = np.linspace(-1, 1, F.dim)
    eta = times / F.smoothness
    found = agd_curve(F, start, 60, eta=eta, mu=l2)
    assert found == pytest.approx(nesterov(F, start, 60, eta, l2), rel=1e-10)
    other = agd_curve(F, start, 60, eta=eta, mu=10 * l2)
    assert other == pytest.approx(nesterov(F, start, 60, eta, 10 * l2), rel=1e-10)
    assert other[-1] != found[-1]


def test_agd_without_strong_convexity_is_fista() -> None:
    F = LeastSquares(np.diag([1.0, 0.1, 0.01]), np.array([1.0, -1.0, 1.0]))
    eta, t, values = 1 / F.smoothness, 1.0, [F.value(np.zeros(3))]
    x = y = np.zeros(3)
    for _ in range(200):
        x_next = y - eta * F.gradient(y)
        t_next = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = x_next + (t - 1) / t_next * (x_next - x)
        x, t = x_next, t_next
        values.append(F.value(x))
    found = agd_curve(F, np.zeros(3), 200, eta=eta, mu=0.0)
    assert found == pytest.approx(values, rel=1e-9)


def test_agd_with_steps_up_to_divergence() -> None:
    F = NoisyQuadratic([2.0, 2.0])  # 1/mu = 1/L: one step of this size arrives
    start = np.array([1.0, 3.0])
    assert agd_curve(F, start, 3, eta=0.5, mu=2.0).tolist() == [10.0, 0.0, 0.0, 0.0]
    slow = agd_curve(F, start, 3, eta=0.75, mu=2.0)  # gradient descent: w becomes -w/2
    assert slow == pytest.approx(10 / 4.0 ** np.arange(4))
    far = agd_curve(F, start, 2000, eta=50.0, mu=2.0)
    assert far[-1] == math.inf
    assert not np.isnan(far).any()


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
def test_lbfgs_spends_its_rounds(rounds) -> None:
    """A record uses the gradients of its rounds only, and is F where one of them was taken."""
    F = breast_cancer(Counted, l2=1e-4)
    start = np.zeros(F.dim)
    longest = lbfgs_curve(F, start, 60)
    F.asked.clear()
    curve = lbfgs_curve(F, start, rounds)
    assert len(F.asked) == rounds
    assert np.array_equal(F.asked[0], start)
    assert curve.tolist() == longest[: rounds + 1].tolist()
    values = [F.value(w) for w in F.asked]
    for r in range(1, rounds + 1):
        assert curve[r] in values[:r]
    assert (np.diff(curve) <= 0).all()


def test_lbfgs_is_scipys() -> None:
    """Iterates by SciPy's own count of evaluations, with value and gradient apart."""
    F = breast_cancer(l2=1e-3)
    start, ends = np.full(F.dim, 0.5), {}
    for maxiter in range(1, 16):
        found = minimize(
            F.value, start, jac=F.gradient, method="L-BFGS-B",
            options={"maxiter": maxiter, "ftol": 0.0, "gtol": 0.0},
        )  # fmt: skip
        assert found.nfev == found.njev
        ends[found.nfev] = found.fun
    curve = lbfgs_curve(F, start, max(ends))
    last = F.value(start)
    for r, value in enumerate(curve):
        last = ends.get(r, last)
        assert value == pytest.approx(last, rel=1e-12)


def test_breast_cancer_in_dozens_of_rounds() -> None:
    F = breast_cancer()
    low = optimum(F).value
    quasi = lbfgs_curve(F, np.zeros(F.dim), 200) - low
    assert quasi[24] < 1e-6
    assert abs(quasi[-1]) < 1e-12  # it stops by itself, but not before
    tuned = [
        agd_curve(F, np.zeros(F.dim), 30, eta=times / F.smoothness, mu=1e-2)[-1] - low
        for times in 2.0 ** np.arange(-2, 5)
    ]
    assert min(tuned) < 1e-6


def test_clients_that_count_the_same() -> None:
    data = load("synthetic")
    F = LogisticRegression(data.X, data.y, l2=1e-2)
    clients = Clients(np.arange(F.n_samples) < 30)
    mine = minimized(F, clients, "uniform")
    end = lbfgs_curve(mine, np.zeros(F.dim), 100)[-1]
    assert end == pytest.approx(optimum(mine).value, abs=1e-12)
    assert end != pytest.approx(optimum(F).value, abs=1e-6)


def test_seconds_wait_for_the_client_with_the_most_rows() -> None:
    link = Link(latency=1.0, up=8.0, down=16.0, gradient=0.5, row=0.25)
    who = Federation(M=3, n=6, seed=1, clients=Clients([0, 1, 1, 2, 2, 2]), batch=None)
    seconds = link.elapsed(up=40, down=40, gaps=(1,) * 3, **who.timing())
    assert seconds == pytest.approx((1 + 40 + 20 + 0.5 + 3 * 0.25) * np.arange(4))
