# SPDX-License-Identifier: Apache-2.0
"""The wider family in the fast engine: speed beside SCAFFOLD, and of epochs beside draws.

    python benchmarks/bench_family.py

a9a with 100 unequal clients, 13 step sizes; gradients per second as ratios of one run, medians of
interleaved repeats. Epochs are compared with draws of as many steps by every client, and these with
the same number of steps for all.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

import fedac

REPEATS, ROUNDS, CLIENTS = 5, 100, 100
ETAS = list(np.geomspace(0.01, 0.5, 13))
FAMILY = ("scaffold", "feddyn(0.1)", "fedcm(0.1)", "fedexp", "fednova", "scaffold-m", "mimelite")


def rate(F: fedac.LogisticRegression, clients: fedac.Clients, method: str, **length) -> float:
    """Return gradients per second of the processor, of a run with two records."""
    usual = {"clients": clients, "eta": ETAS, "mu": 1e-3, "precision": "float32", "threads": 1}
    begun = time.process_time()
    found = fedac.simulate(F, method, **usual, **length)
    return found.gradient_queries / (time.process_time() - begun)


def compare(cases: dict[str, dict], F, clients) -> None:
    """Print the rates of all cases relative to the first one."""
    for options in cases.values():
        rate(F, clients, **options)  # compiles
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, options in cases.items():
            rates[name].append(rate(F, clients, **options))
    first, *_ = rates.values()
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, first, strict=True))
        print(f"{name:32} {statistics.median(found) / 1e6:8.1f} M/s   {ratio:.2f}")


def main() -> None:
    data = fedac.load("a9a")
    F = fedac.LogisticRegression(data.X, data.y, l2=1e-3)
    clients = fedac.split(data.y, CLIENTS, "dirichlet(0.3)", seed=1)
    for batch in (1, 4):
        for K in (16, 64):
            print(f"K = {K}, batch {batch}, relative to SCAFFOLD")
            options = {"K": K, "rounds": ROUNDS, "batch": batch, "record_every": K * ROUNDS}
            compare({name: {"method": name, **options} for name in FAMILY}, F, clients)
    for batch in (1, 4, 16):
        for method in ("fedavg", "scaffold", "fedac-i"):
            K = -(-clients.sizes // batch)
            usual = {"method": method, "rounds": ROUNDS, "batch": batch, "record_every": 10**9}
            print(f"{method}, batch {batch}, relative to draws of {K.min()} to {K.max()} steps")
            lengths = {"draws": {"K": K}, "epochs": {"epochs": 1}, "one K": {"K": round(K.mean())}}
            compare({name: usual | length for name, length in lengths.items()}, F, clients)


if __name__ == "__main__":
    main()
