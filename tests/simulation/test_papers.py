# SPDX-License-Identifier: Apache-2.0
"""The wider family against NumPy programs typed from the papers, on linear models.

The programs share nothing with fedac but the draw of each round's clients. Gradients are full, the
clients unequal, and half of them take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from fedac import LogisticRegression, simulate
from fedac.algorithms import get
from fedac.federation.sampling import participants

Array = npt.NDArray[np.float64]
SIZES, L2, SEED, ROUNDS = (1, 2, 3, 5, 20, 30), 0.05, 4, 6
M = len(SIZES)
OWNERS = np.repeat(np.arange(M), SIZES)
RNG = np.random.default_rng(7)
X = RNG.standard_normal((len(OWNERS), 5)) + OWNERS[:, None] % 3 / 2  # clients differ
Y = np.where(RNG.random(len(OWNERS)) < 0.2 + 0.1 * OWNERS, -1.0, 1.0)
START = RNG.standard_normal(5)
ETAS = (0.3, 0.1)
STEPS = {"equal steps": (3,) * M, "own steps": (1, 7, 2, 5, 3, 4)}


def gradient(m: int, w: Array) -> Array:
    rows, labels = X[m == OWNERS], Y[m == OWNERS]
    return L2 * w - rows.T @ (labels / (1 + np.exp(labels * (rows @ w)))) / len(labels)


@dataclass(frozen=True)
class Federation:
    weighting: str
    steps: tuple[int, ...]
    eta: float
    count: int = M // 2

    @property
    def p(self) -> Array:
        """Return the weights of all clients, whose sum is 1."""
        sizes = np.array(SIZES if self.weighting == "examples" else [1] * M)
        return sizes / sizes.sum()

    def rounds(self) -> Iterator[tuple[list[tuple[int, float]], float]]:
        """Yield the members of every round with their weights among them, and their total p."""
        for r in range(ROUNDS):
            S = participants(SEED, r, M, self.count).tolist()
            total = float(self.p[S].sum())
            yield [(m, float(self.p[m]) / total) for m in S], total


def feddyn(of: Federation, alpha: float = 0.3) -> Array:
    """Run algorithm 1 of arXiv 2111.04263, with local steps for its exact minimization."""
    theta, h, L = START, np.zeros(5), np.zeros((M, 5))  # L[k] is the gradient of L_k
    for S, total in of.rounds():
        mean = np.zeros(5)
        for k, p in S:
            local = theta
            for _ in range(of.steps[k]):
                local = local - of.eta * (gradient(k, local) - L[k] + alpha * (local - theta))
            L[k] = L[k] - alpha * (local - theta)
            mean = mean + p * local
        h = h - alpha * total * (mean - theta)  # with equal weights alpha/M times the sum
        theta = mean - h / alpha
    return theta


def fedcm(of: Federation, alpha: float = 0.4, eta_g: float = 1.0) -> Array:
    """Run FedCM (arXiv 2106.10874); its server step is eta_g times that of the mean."""
    x, Delta = START, np.zeros(5)
    for S, _ in of.rounds():
        K = sum(p * of.steps[i] for i, p in S)
        pseudo = np.zeros(5)
        for i, p in S:
            y = x
            for _ in range(of.steps[i]):
                y = y - of.eta * (alpha * gradient(i, y) + (1 - alpha) * Delta)
            pseudo = pseudo + p * (x - y)
        Delta = pseudo / (of.eta * K)
        x = x - eta_g * of.eta * K * Delta
    return x


def scaffold_m(of: Federation, beta: float = 0.4) -> Array:
    """Run SCAFFOLD-M (arXiv 2306.16504) from zeros, with gamma = K eta."""
    x, g, c, own = START, np.zeros(5), np.zeros(5), np.zeros((M, 5))
    for S, total in of.rounds():
        K = sum(p * of.steps[i] for i, p in S)
        pseudo, change = np.zeros(5), np.zeros(5)
        for i, p in S:
            y, taken = x, []
            for _ in range(of.steps[i]):
                taken.append(gradient(i, y))
                y = y - of.eta * (beta * (taken[-1] - own[i] + c) + (1 - beta) * g)
            pseudo = pseudo + p * (x - y)
            change = change + p * (np.mean(taken, axis=0) - own[i])
            own[i] = np.mean(taken, axis=0)
        g = pseudo / (of.eta * K)
        x, c = x - K * of.eta * g, c + total * change
    return x


def fednova(of: Federation) -> Array:
    """x <- x - tau_eff eta sum of p_i d_i, d_i the mean of i's gradients (arXiv 2007.07481)."""
    x = START
    for S, _ in of.rounds():
        tau_eff, d = 0.0, np.zeros(5)
        for i, p in S:
            y, taken = x, []
            for _ in range(of.steps[i]):
                taken.append(gradient(i, y))
                y = y - of.eta * taken[-1]
            tau_eff, d = tau_eff + p * of.steps[i], d + p * np.mean(taken, axis=0)
        x = x - tau_eff * of.eta * d
    return x


def fedexp(of: Federation, eps: float = 1e-3) -> Array:
    """Run FedExP (arXiv 2301.09604), with weights p_i as in its published code."""
    w, steps = START, []
    for S, _ in of.rounds():
        Delta = np.zeros((len(S), 5))
        for place, (i, _) in enumerate(S):
            local = w
            for _ in range(of.steps[i]):
                local = local - of.eta * gradient(i, local)
            Delta[place] = w - local
        p = np.array([p for _, p in S])
        mean = p @ Delta
        steps.append(max(1.0, p @ (Delta**2).sum(axis=1) / (2 * (mean @ mean + eps))))
        w = w - steps[-1] * mean
    assert max(steps) > 1.05  # else it is FedAvg
    return w


def mimelite(of: Federation, beta: float = 0.8) -> Array:
    """Run algorithm 1 of arXiv 2008.03606, MimeLite with SGD and momentum."""
    x, s = START, np.zeros(5)
    for S, _ in of.rounds():
        mean, full = np.zeros(5), np.zeros(5)
        for i, p in S:
            y = x
            for _ in range(of.steps[i]):
                y = y - of.eta * ((1 - beta) * gradient(i, y) + beta * s)
            mean, full = mean + p * y, full + p * gradient(i, x)
        x, s = mean, (1 - beta) * full + beta * s
    return x


def dualavg(of: Federation, l1: float = 0.02) -> Array:
    """Run FedDualAvg (arXiv 2011.08474) with h = |w|^2/2, psi = l1 |w|_1 and eta_s = 1."""

    def primal(z: Array, spent: float) -> Array:
        return np.sign(z) * np.maximum(np.abs(z) - l1 * spent, 0)

    z, spent = START, 0.0
    for S, _ in of.rounds():
        mean, steps = np.zeros(5), 0.0
        for m, p in S:
            local = z
            for k in range(of.steps[m]):
                local = local - of.eta * gradient(m, primal(local, spent + of.eta * k))
            mean, steps = mean + p * local, steps + p * of.steps[m]
        z, spent = mean, spent + of.eta * steps
    return primal(z, spent)


def led(of: Federation) -> Array:
    """Run LED (arXiv 2302.00620) in a star: phi <- phi - eta grad - beta y, y <- y + phi - x.

    beta is 1/K, K the most steps of any client.
    """
    x, y, beta = START, np.zeros((M, 5)), 1 / max(of.steps)
    for S, _ in of.rounds():
        phi = np.tile(x, (M, 1))
        for i, _ in S:
            for _ in range(of.steps[i]):
                phi[i] = phi[i] - of.eta * gradient(i, phi[i]) - beta * y[i]
        x = of.p @ phi
        y = y + phi - x
    return x


PROGRAMS: dict[str, Callable[[Federation], Array]] = {
    "feddyn(0.3)": feddyn,
    "fedcm(0.4)": fedcm,
    "fedcm(0.4)+step(1.5)": lambda of: fedcm(of, eta_g=1.5),
    "scaffold-m(0.4)": scaffold_m,
    "fednova": fednova,
    "fedexp": fedexp,
    "mimelite(0.8)": mimelite,
    "dualavg(0.02)": dualavg,
    "led": led,
}


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("rows", [X, sp.csr_array(X)], ids=["dense", "sparse"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_the_program_of_the_paper_gives_the_same_point(steps, weighting, rows, engine) -> None:
    F = LogisticRegression(rows, Y, l2=L2)
    for name, program in PROGRAMS.items():
        if engine == "fast" and name.startswith("dualavg"):
            continue  # not linear
        count = M if get(name).everybody else M // 2
        found = simulate(
            F, name, clients=OWNERS, batch="full", K=list(steps), rounds=ROUNDS, eta=ETAS,
            participation=count, weighting=weighting, seed=SEED, start=START, engine=engine,
            precision="float64", mu=L2,
        )  # fmt: skip
        of = Federation(weighting, steps, 0.0, count)
        for run, eta in zip(found.runs, ETAS, strict=True):
            wanted = program(replace(of, eta=eta))
            assert np.abs(wanted - START).max() > 0.1
            np.testing.assert_allclose(run.w, wanted, rtol=0, atol=1e-9, err_msg=name)


def test_no_two_programs_agree() -> None:
    of = Federation("examples", STEPS["own steps"], 0.3)
    found = [program(of) for name, program in PROGRAMS.items() if name != "led"]
    for i, one in enumerate(found):
        assert all(np.abs(one - other).max() > 1e-3 for other in found[:i])
