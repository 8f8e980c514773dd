"""Softmax regression: the fast engine against the reference engine, as ratios of one run.

    python benchmarks/bench_softmax.py

Thirteen step sizes, as in a sweep. The reference engine takes fewer rounds, because it is slow; both
are timed per round, without the losses at the end, in turns.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import scipy.sparse as sp

from fedac import SoftmaxRegression, simulate

ETAS = np.geomspace(1e-3, 1.0, 13)
REPEATS = 3


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


def seconds(F: SoftmaxRegression, method: str, engine: str, rounds: int, **options: int) -> float:
    """Return the time of some rounds without the first one, and without compiling."""
    K = options["K"]

    def run(T: int) -> float:
        begun = time.perf_counter()
        simulate(F, method, T=T, engine=engine, eta=ETAS, record_every=T, **options)
        return time.perf_counter() - begun

    run(K)
    return (run((1 + rounds) * K) - run(K)) / rounds


def main() -> None:
    warnings.simplefilter("ignore")
    cases = [
        ("dense 1,797 x 64, 10 classes", digits_sized(), {"M": 16, "K": 16}, (200, 2)),
        ("sparse 15,000 x 60,000, 20 classes", sparse_twenty(), {"M": 4, "K": 4}, (4, 1)),
    ]
    for name, F, options, (fast_rounds, slow_rounds) in cases:
        for method in ("fedavg", "fedac-i", "fedavg+cv", "mb-sgd"):
            ratios = []
            for _ in range(REPEATS):
                fast = seconds(F, method, "fast", fast_rounds, **options)
                slow = seconds(F, method, "reference", slow_rounds, **options)
                ratios.append(slow / fast)
            print(
                f"{name}, {method}: {np.median(ratios):,.0f}x ({min(ratios):,.0f} to "
                f"{max(ratios):,.0f}), {1e3 * fast:.3g} ms a round",
                flush=True,
            )


if __name__ == "__main__":
    main()
