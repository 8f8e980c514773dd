# SPDX-License-Identifier: Apache-2.0
"""Softmax regression: the fast engine against the reference engine, as ratios of one run.

    python benchmarks/bench_softmax.py

Thirteen step sizes, as in a sweep; processor time of a round, without the losses at the end. The
reference engine runs one step size after the other, so it is timed with one, which counts 13 times.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import scipy.sparse as sp

from fedac import SoftmaxRegression, simulate

ETAS = np.geomspace(1e-3, 1.0, 13)
REPEATS = 3
METHODS = ("fedavg", "fedac-i", "scaffold", "mb-sgd")


def digits_sized() -> SoftmaxRegression:
    rng = np.random.default_rng(0)
    X, W = rng.random((1797, 64)), rng.standard_normal((64, 10))
    return SoftmaxRegression(X, (X @ W).argmax(axis=1), l2=1e-3)


def sparse_twenty() -> SoftmaxRegression:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 60_000, 15_000 * 80)
    X = sp.csr_array((rng.random(len(indices)), indices, 80 * np.arange(15_001)))
    X.resize((15_000, 60_000))
    return SoftmaxRegression(X, np.arange(15_000) % 20, l2=1e-3)


def seconds(F: SoftmaxRegression, method: str, engine: str, rounds: int, M: int, K: int) -> float:
    """Return the processor time of a round of all step sizes."""
    etas = ETAS if engine == "fast" else ETAS[6:7]

    def run(rounds: int) -> float:
        begun = time.process_time()
        T = rounds * K
        simulate(F, method, M=M, K=K, T=T, engine=engine, eta=etas, record_every=T)
        return time.process_time() - begun

    run(1)  # compiles
    return (run(1 + rounds) - run(1)) / rounds * len(ETAS) / len(etas)


def main() -> None:
    warnings.simplefilter("ignore")
    cases = [
        ("dense 1,797 x 64, 10 classes", digits_sized(), 16, 16, (200, 30)),
        ("sparse 15,000 x 60,000, 20 classes", sparse_twenty(), 16, 16, (12, 1)),
    ]
    for name, F, M, K, (fast_rounds, slow_rounds) in cases:
        for method in METHODS:
            ratios = []
            for _ in range(REPEATS):
                fast = seconds(F, method, "fast", fast_rounds, M, K)
                slow = seconds(F, method, "reference", slow_rounds, M, K)
                ratios.append(slow / fast)
            print(
                f"{name}, M={M}, K={K}, {method}: {np.median(ratios):,.0f}x ({min(ratios):,.0f} to "
                f"{max(ratios):,.0f}), {1e3 * fast:.3g} ms a round",
                flush=True,
            )


if __name__ == "__main__":
    main()
