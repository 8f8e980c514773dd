# SPDX-License-Identifier: Apache-2.0
"""Control variates of clients that differ in size: c is always the weighted mean of all c_m.

The oracle is a program of its own, typed from the papers (SCAFFOLD, arXiv 1910.06378, option II;
FedAc-I, alg:fedac): it shares with the engines only who takes part in a round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import fedac
from fedac.federation.sampling import participants

N, HALF, SEED, L2 = 10, 5, 3, 0.05
METHODS = ("scaffold", "fedac-i+cv")
both_engines = pytest.mark.parametrize("engine", ["reference", "fast"])
both_weightings = pytest.mark.parametrize("weighting", ["examples", "uniform"])


def mushrooms(n: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of one-hot columns, their labels, and clients of very different sizes."""
    rng = np.random.default_rng(0)
    X = np.concatenate([np.eye(k)[rng.integers(0, k, n)] for k in (6, 4, 3)], axis=1)
    y = np.where(X @ rng.standard_normal(X.shape[1]) + 0.3 * rng.standard_normal(n) > 0, 1.0, -1.0)
    owners = fedac.split(y, clients=N, by="dirichlet(0.3)", seed=1).owners
    return X, y, owners


X, Y, OWNERS = mushrooms()
SIZES = np.bincount(OWNERS)
F = fedac.LogisticRegression(X, Y, l2=L2)


def weights(weighting: str) -> np.ndarray:
    return SIZES / SIZES.sum() if weighting == "examples" else np.full(N, 1 / N)


def gradient(w: np.ndarray, m: int) -> np.ndarray:
    """The full gradient of client m."""
    mine = np.flatnonzero(m == OWNERS)
    A, b = X[mine], Y[mine]
    return A.T @ (-b / (1 + np.exp(b * (A @ w)))) / len(b) + L2 * w


def oracle(
    method: str, eta: float, K: int, rounds: int, p: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the output, c and all c_m after every round."""
    gamma = max(np.sqrt(eta / (L2 * K)), eta)  # FedAc-I
    alpha, beta = 1 / (gamma * L2), 1 / (gamma * L2) + 1
    d = X.shape[1]
    w, w_ag, c, c_m = np.ones(d), np.ones(d), np.zeros(d), np.zeros((N, d))
    for r in range(rounds):
        members = participants(SEED, r, N, HALF)
        mean, mean_ag, change = np.zeros(d), np.zeros(d), np.zeros(d)
        for m in members:
            share = p[m] / p[members].sum()
            y, y_ag, total = w.copy(), w_ag.copy(), np.zeros(d)
            for _ in range(K):
                if method == "scaffold":
                    g = gradient(y, m)
                    y = y - eta * (g - c_m[m] + c)
                else:
                    middle = y / beta + (1 - 1 / beta) * y_ag
                    g = gradient(middle, m)
                    corrected = g - c_m[m] + c
                    y_ag = middle - eta * corrected
                    y = (1 - 1 / alpha) * y + middle / alpha - gamma * corrected
                total += g
            mean, mean_ag = mean + share * y, mean_ag + share * y_ag
            change += p[m] * (total / K - c_m[m])
            c_m[m] = total / K
        w, w_ag, c = mean, mean_ag, c + change
        yield (w if method == "scaffold" else w_ag), c, c_m


def run(method: str, engine: str, weighting: str, rounds: int, **options) -> fedac.Run:
    usual = {"K": 4, "eta": [0.5], "mu": L2, "precision": "float64"}
    given = usual | options
    result = fedac.simulate(
        F, method, clients=OWNERS, participation=HALF, batch="full", weighting=weighting,
        T=rounds * given["K"], seed=SEED, engine=engine, start=np.ones(X.shape[1]), **given,
    )  # fmt: skip
    return result.runs[0]


@both_engines
@both_weightings
@pytest.mark.parametrize("method", METHODS)
def test_c_is_the_mean_of_all_c_m_after_every_round(method, weighting, engine):
    p = weights(weighting)
    for r, (w, c, c_m) in enumerate(oracle(method, 0.5, 4, 12, p), start=1):
        found = run(method, engine, weighting, r)
        size = max(1.0, np.abs(found.state["c"]).max())
        np.testing.assert_allclose(found.state["c"], p @ c_m, rtol=0, atol=1e-12 * size)
        np.testing.assert_allclose(found.state["c"], c, rtol=0, atol=1e-12 * size)
        np.testing.assert_allclose(found.w, w, rtol=0, atol=1e-11)


@both_weightings
@pytest.mark.parametrize("method", METHODS)
def test_in_float32_it_is_to_rounding(method, weighting):
    p = weights(weighting)
    *_, (_, _, c_m) = oracle(method, 0.5, 4, 12, p)
    found = run(method, "fast", weighting, 12, precision="float32")
    np.testing.assert_allclose(found.state["c"], p @ c_m, rtol=0, atol=1e-5)


@pytest.mark.slow
@both_engines
@both_weightings
@pytest.mark.parametrize("method", METHODS)
def test_the_pooled_optimum_is_reached_with_half_of_the_clients_a_round(method, weighting, engine):
    eta = 0.5 if method == "scaffold" else 0.1
    w = run(method, engine, weighting, 3000, eta=[eta]).w
    at_w = sum(p * gradient(w, m) for m, p in enumerate(weights(weighting)))
    assert np.abs(at_w).max() < 1e-9


@both_weightings
def test_with_int8_it_is_the_mean_of_what_was_decoded(weighting):
    """A client's c_m moves by what the server decoded, so the mean of all c_m is c itself."""
    from fedac.algorithms import get
    from fedac.data import Clients
    from fedac.federation.federation import make_federation
    from fedac.federation.schedule import Span
    from fedac.federation.spec import Spec
    from fedac.simulation.engines.reference import Memory, run_round
    from fedac.simulation.problem import Lane

    scaffold, p = get("scaffold"), weights(weighting)
    lane = Lane(scaffold, scaffold.couple(eta=0.5, mu=L2, K=2))
    spec = Spec(seed=SEED, participation=HALF, batch="full", weighting=weighting)
    federation = make_federation(F, spec, Clients(OWNERS))
    memory = Memory(scaffold, N, F.dim)
    state = scaffold.start(np.ones(F.dim))
    for r in range(30):
        this_round = Span(r, t=2 * r, gap=2)
        state = run_round(F, lane, state, federation, this_round, memory, wire="int8")
        c_m = memory.load(np.arange(N), (state[0][None].repeat(N, 0), state[1][None].repeat(N, 0)))
        np.testing.assert_allclose(state[1], p @ c_m[0], rtol=0, atol=1e-12)
