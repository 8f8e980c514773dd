# SPDX-License-Identifier: Apache-2.0
"""How the cost of a local step grows with M, K, columns, nonzeros, step sizes and threads.

Writes docs/images/scaling.png. Run on an idle machine: python benchmarks/scaling.py
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from statistics import median

import numpy as np
import scipy.sparse as sp
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedac.data import load
from fedac.errors import StepSizeWarning
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

OUT = Path(__file__).parents[1] / "docs" / "images" / "scaling.png"
REPEATS = 3
STEPS = 2**22  # steps of one measurement, so that each takes a fraction of a second
BLUE, ORANGE = "#0072B2", "#D55E00"


def nanoseconds(objective, *, M=8192, K=64, etas=13, threads=None) -> float:
    """Return the cost of a step (all step sizes together) in nanoseconds."""
    T = K * max(1, STEPS // (M * K))
    eta = np.geomspace(0.001, 1.0, etas)
    runs = [
        simulate(objective, "fedac-i", M=M, K=K, T=T, eta=eta, record_every=T, threads=threads)
        for _ in range(REPEATS + 1)
    ][1:]
    return median(run.seconds / (M * T) * 1e9 for run in runs)


def random_rows(columns: int, nonzeros: int, rows: int = 32_561) -> LogisticRegression:
    rng = np.random.default_rng(0)
    places = rng.integers(0, columns, size=rows * nonzeros)
    X = sp.csr_array(
        (np.ones(len(places)), places, np.arange(rows + 1) * nonzeros), shape=(rows, columns)
    )
    X.sum_duplicates()
    X.data[:] = 1.0
    return LogisticRegression(X, rng.choice([-1.0, 1.0], size=rows), l2=1e-3)


def panel(ax: Axes, title: str, xs, curves, *, base: int = 2) -> None:
    for (label, costs), colour, marker in zip(curves.items(), (BLUE, ORANGE), "os", strict=False):
        ax.plot(xs, costs, marker=marker, color=colour, label=label)
    ax.set_xscale("log", base=base)
    ax.set_yscale("log")
    ax.set_title(title, fontsize=10)
    ax.grid(True, color="0.9")
    ax.legend(frameon=False, fontsize=8)


def main() -> None:
    warnings.simplefilter("ignore", StepSizeWarning)
    data = load("synthetic")
    census = LogisticRegression(data.X, data.y, l2=1e-3)
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    both = {"13 step sizes": 13, "one": 1}

    workers = [2**k for k in range(4, 21, 2)]
    panel(
        axes[0],
        "workers M (K=64)",
        workers,
        {name: [nanoseconds(census, M=M, etas=e) for M in workers] for name, e in both.items()},
    )
    intervals = [2**k for k in range(1, 10)]
    panel(
        axes[1],
        "local steps K (M=8192)",
        intervals,
        {name: [nanoseconds(census, K=K, etas=e) for K in intervals] for name, e in both.items()},
    )
    columns = [10**k for k in range(2, 7)]
    panel(
        axes[2],
        "columns d (14 nonzeros a row)",
        columns,
        {
            # Thirteen states of a million columns would not tell more, but take a gigabyte.
            "13 step sizes": [
                nanoseconds(random_rows(d, 14)) if d < 10**6 else np.nan for d in columns
            ],
            "one": [nanoseconds(random_rows(d, 14), etas=1) for d in columns],
        },
        base=10,
    )
    nonzeros = [2**k for k in range(1, 8)]
    panel(
        axes[3],
        "nonzeros a row (1,000 columns)",
        nonzeros,
        {
            name: [nanoseconds(random_rows(1000, z), etas=e) for z in nonzeros]
            for name, e in both.items()
        },
    )
    etas = [1, 2, 4, 8, 13, 16, 26, 32]
    panel(
        axes[4],
        "number of step sizes",
        etas,
        {"all together": [nanoseconds(census, etas=e) for e in etas]},
    )
    threads = sorted({1, 2, os.cpu_count() or 1})
    panel(
        axes[5],
        "threads",
        threads,
        {"13 step sizes": [nanoseconds(census, threads=n) for n in threads]},
    )
    for ax in axes[::3]:
        ax.set_ylabel("nanoseconds a step, wall time")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, dpi=110)
    print(OUT)


if __name__ == "__main__":
    main()
