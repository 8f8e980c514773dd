# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds in the fast engine, beside rounds of as many clients.

Both take the same number of local steps: the server steps after every Z messages. The two take
turns, after a warm-up, and a line reports the median time of a server step, and their ratio.

    python benchmarks/bench_modes.py
    python benchmarks/bench_modes.py --repeats 9 --methods fedac-i
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from statistics import median

from fedac import Link, simulate
from fedac.cli.console import print_table
from fedac.data import load, split
from fedac.errors import NotAcceleratedWarning, StepSizeWarning
from fedac.objectives import LogisticRegression

ETAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
CLIENTS, AT_WORK, K = 200, 100, 16
BUFFERS = (1, 2, 5, 10, 20, 50)
METHODS = ("fedavg", "fedac-i", "scaffold")
MESSAGES = 20_000  # of a measured run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--buffers", nargs="+", type=int, default=BUFFERS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    warnings.simplefilter("ignore", StepSizeWarning)
    warnings.simplefilter("ignore", NotAcceleratedWarning)
    data = load("a9a")
    F, clients = LogisticRegression(data.X, data.y, l2=1e-3), split(data.y, CLIENTS, seed=1)
    link = Link(gradient=0.01, speeds="lognormal(1)")
    rows = []
    for method in given.methods:
        for Z in given.buffers:
            run = partial(
                simulate, F, method, clients=clients, K=K, eta=ETAS, engine="fast", link=link,
                record_every=K * MESSAGES, threads=given.threads,
            )  # fmt: skip

            def rounds(count: int, Z: int = Z, run: partial = run) -> float:
                return run(participation=Z / CLIENTS, rounds=count).seconds / count

            def asynchronous(count: int, Z: int = Z, run: partial = run) -> float:
                mode = f"buffer({Z})"
                return run(participation=AT_WORK, mode=mode, rounds=count).seconds / count

            both: tuple[list[float], list[float]] = ([], [])
            for repeat in range(given.repeats + 1):
                for one, times in zip((rounds, asynchronous), both, strict=True):
                    found = one(MESSAGES // Z if repeat else 10)
                    times += [1e6 * found] if repeat else []
            usual, ours = map(median, both)
            rows.append({
                "method": method, "Z": str(Z), "us a round": f"{usual:.0f}",
                "us a server step": f"{ours:.0f}", "ratio": f"{ours / usual:.2f}",
            })  # fmt: skip
    print_table(rows, words=("method",))


if __name__ == "__main__":
    main()
