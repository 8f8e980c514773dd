# SPDX-License-Identifier: Apache-2.0
"""The figure of README and home page: five methods on a small network, over megabytes and seconds.

Writes docs/images/front.png: python benchmarks/front_figure.py FOLDER
Runs that are already in FOLDER are not repeated.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedac
from fedac.plotting import styles

OUT = Path(__file__).parents[1] / "docs" / "images" / "front.png"
METHODS = ("fedavg", "scaffold", "fedac-i", "feddyn", "fedavgm")


def main(folder: str) -> None:
    """Compare the methods as the README does, with more tries and seeds, and draw them."""
    found = fedac.compare(
        "digits", METHODS, model="mlp(32)", clients=20, split="label", K=8, rounds=60,
        link="home", test=0.2, target="accuracy 0.9", tries=12, repeats=5, out=folder,
    )  # fmt: skip
    print(found)
    draw(found).savefig(OUT, dpi=150)


def draw(found: fedac.Comparison) -> Figure:
    """Draw the training loss, a geometric mean over the seeds."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    rows = sorted(found.best_rows, key=lambda row: METHODS.index(row.method))
    looks = styles([row.method for row in rows])
    for ax, axis in zip(axes, ("megabytes", "seconds"), strict=True):
        ends = []
        for row, look in zip(rows, looks, strict=True):
            costs = np.mean([getattr(curve, axis) for curve in row.curves], axis=0)
            loss = np.exp(np.mean([np.log(curve.suboptimality) for curve in row.curves], axis=0))
            ax.plot(costs, loss, color=look.colour, marker=look.marker, lw=1.8, ms=5, markevery=8)
            ends.append(costs[-1])
            if axis == "seconds":
                ax.annotate(
                    found.labels[row.method], (costs[-1], loss[-1]), xytext=(6, 0),
                    textcoords="offset points", color=look.colour, va="center", weight="bold",
                    annotation_clip=False,
                )  # fmt: skip
        ax.set_xlim(0, min(ends))
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.grid(True, color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set(xlabel="megabytes per client, up and down", ylabel="training loss")
    axes[1].set_xlabel("seconds on home connections")
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:])
