# SPDX-License-Identifier: Apache-2.0
"""Speed of the fast engine with few workers, compared with a plain NumPy loop.

The loop below was typed from the paper. From fedac come only the draws, so that both compute the
same numbers: in double precision they agree to 1e-6. It runs in two forms, worker by worker and
all workers at once; ratios are to the faster one, in the same precision. Both take turns, and
lines report medians.

    python benchmarks/bench_few_workers.py          # lines whose name contains a word: ... a9a
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac import load
from fedac.federation.sampling import sample_index
from fedac.objectives import losses
from fedac.simulation import simulate

Array = npt.NDArray[Any]

L2, ETA = 1e-3, 1e-3
REPEATS = 5
SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "LogisticRegression": lambda z, y: -y / (1 + np.exp(y * z)),
    "LeastSquares": lambda z, y: z - y,
    "HuberRegression": lambda z, y: np.clip(z - y, -1, 1),
    "SquaredHinge": lambda z, y: -y * np.maximum(0, 1 - y * z),
    "PoissonRegression": lambda z, y: np.exp(z) - y,
}


class Case(NamedTuple):
    """One line of the table."""

    data: str
    loss: str
    method: str
    M: int
    K: int
    rounds: int


def cases() -> Iterator[Case]:
    """Return all cases."""
    for method in ("fedavg", "fedac-i"):
        yield Case("dense 500 x 20000", "LogisticRegression", method, 4, 16, 32)
        yield Case("a9a", "LogisticRegression", method, 4, 1, 1000)
        for loss in SLOPES:
            for M in (4, 16):
                yield Case("a9a", loss, method, M, 8, 60)
                yield Case("dense 2000 x 500", loss, method, M, 8, 60)


def problem(case: Case) -> tuple[Any, Array, Array]:
    """Return the objective, and its rows and targets as arrays."""
    if case.data == "a9a":
        data = load("a9a")
        given, X, y = data.X, np.asarray(data.X @ np.eye(data.X.shape[1])), data.y
    else:
        n, d = map(int, case.data.removeprefix("dense ").split(" x "))
        rng = np.random.default_rng(0)
        given = X = rng.normal(size=(n, d)) / np.sqrt(d)
        y = rng.choice([-1.0, 1.0], size=n)
    if case.loss == "PoissonRegression":
        y = y + 1
    return getattr(losses, case.loss)(given, y, l2=L2), X, y


def by_worker(case: Case, X: Array, y: Array, draws: Array, start: Array) -> Array:
    """Return the output of a run, one worker after the other."""
    slope = SLOPES[case.loss]
    w_ag = w = start
    gamma, alpha, beta = couple(case.K)
    for r in range(case.rounds):
        total, total_ag = np.zeros_like(w), np.zeros_like(w)
        for m in range(case.M):
            v, v_ag = w.copy(), w_ag.copy()
            for i in draws[m, r * case.K : (r + 1) * case.K]:
                x = X[i]
                if case.method == "fedavg":
                    s = ETA * slope(x @ v, y[i])
                    v *= 1 - ETA * L2
                    v -= s * x
                else:
                    v_md = v / beta + (1 - 1 / beta) * v_ag
                    s = slope(x @ v_md, y[i])
                    v_ag = (1 - ETA * L2) * v_md - (ETA * s) * x
                    v *= 1 - 1 / alpha
                    v += (1 / alpha - gamma * L2) * v_md
                    v -= (gamma * s) * x
            total += v
            total_ag += v_ag
        w, w_ag = total / case.M, total_ag / case.M
    return w if case.method == "fedavg" else w_ag


def at_once(case: Case, X: Array, y: Array, draws: Array, start: Array) -> Array:
    """Return the output of a run, with a row per worker."""
    slope = SLOPES[case.loss]
    w_ag = w = start
    gamma, alpha, beta = couple(case.K)
    for r in range(case.rounds):
        V, V_ag = np.tile(w, (case.M, 1)), np.tile(w_ag, (case.M, 1))
        for t in range(r * case.K, (r + 1) * case.K):
            rows = draws[:, t]
            x = X[rows]
            if case.method == "fedavg":
                s = ETA * slope(np.einsum("md,md->m", x, V), y[rows])
                V *= 1 - ETA * L2
                V -= s[:, None] * x
            else:
                V_md = V / beta + (1 - 1 / beta) * V_ag
                s = slope(np.einsum("md,md->m", x, V_md), y[rows])[:, None]
                V_ag = (1 - ETA * L2) * V_md - (ETA * s) * x
                V *= 1 - 1 / alpha
                V += (1 / alpha - gamma * L2) * V_md
                V -= (gamma * s) * x
        w, w_ag = V.mean(axis=0), V_ag.mean(axis=0)
    return w if case.method == "fedavg" else w_ag


def couple(K: int) -> tuple[float, float, float]:
    """Return gamma, alpha and beta of FedAc-I, with mu = l2."""
    gamma = max(ETA, float(np.sqrt(ETA / (L2 * K))))
    alpha = 1 / (gamma * L2)
    return gamma, alpha, alpha + 1


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def time_rounds(run: Callable[..., object]) -> float:
    """Return the seconds of a simulation from its first record to its last step."""
    ticks: list[float] = []
    run(
        callbacks=[lambda record: ticks.append(time.perf_counter()) if not ticks else None],
        on_progress=lambda queries: ticks.append(time.perf_counter()) if ticks else None,
    )
    return ticks[-1] - ticks[0]


def main(word: str = "") -> None:
    """Print microseconds per step and worker, and NumPy's time over ours: rounds, whole call."""
    print(f"{'':58}{'float64: NumPy, ours, ratios':>32} | {'float32: NumPy, ours, ratios':>32}")
    for case in cases():
        name = f"{case.data}, {case.loss}, {case.method}, M={case.M}, K={case.K}"
        if word not in name:
            continue
        F, X, y = problem(case)
        T = case.K * case.rounds
        draws = sample_index(1, np.arange(case.M)[:, None], np.arange(T), len(y))
        start = np.zeros(X.shape[1])
        parts = []
        for dtype in ("float64", "float32"):
            given = (case, X.astype(dtype), y.astype(dtype), draws, start.astype(dtype))
            loops = [partial(loop, *given) for loop in (by_worker, at_once)]
            run = partial(
                simulate, F, case.method, M=case.M, K=case.K, T=T, eta=ETA, start=start,
                record_every=T, precision=dtype,
            )  # fmt: skip
            found = run().runs[0].w
            if dtype == "float64":
                for loop in loops:
                    np.testing.assert_allclose(found, loop(), rtol=1e-6, atol=1e-9)
            measured = [(time_rounds(run), timed(run), *map(timed, loops)) for _ in range(REPEATS)]
            rounds, call, *theirs = map(median, zip(*measured, strict=True))
            numpy, each = min(theirs), 1e6 / (T * case.M)
            parts.append(f"{numpy * each:8.2f} {rounds * each:7.2f} {numpy / rounds:7.2f}"
                         f" {numpy / call:7.2f}")  # fmt: skip
        print(f"{name:58}{' | '.join(parts)}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
