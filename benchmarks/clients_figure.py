# SPDX-License-Identifier: Apache-2.0
"""FedAc-I, FedAvg and the minibatch baselines on a9a, split among 100 clients.

Writes docs/images/clients.png: python benchmarks/clients_figure.py
Runs sweeps/a9a-clients.toml; each method uses its best step size for every seed.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.figure import Figure

from fedac.algorithms import get
from fedac.experiments.grid import read_grid, shipped
from fedac.experiments.store import Store
from fedac.experiments.summary import seeds_note, summarize, tuned
from fedac.experiments.sweep import run
from fedac.plotting import style

OUT = Path(__file__).parents[1] / "docs" / "images" / "clients.png"
PANELS = {1.0: "everybody takes part", 0.1: "participation 10%"}


def main() -> None:
    """Run the sweep and draw a panel for each participation."""
    grid = read_grid(shipped("a9a-clients"))
    with TemporaryDirectory() as folder, Store(folder, create=True) as store:
        run(grid, store)
        cells = summarize(tuned(store.frame()))
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    places = np.arange(len(grid.several("split")))
    for ax, participation in zip(figure.subplots(1, 2, sharey=True), PANELS, strict=True):
        panel = cells[cells["participation"] == participation]
        for name in grid.several("algorithm"):
            line = (
                panel[panel["algorithm"] == name]
                .set_index("split")
                .loc[list(grid.several("split"))]
            )
            look = style(name)
            ax.plot(
                places, line["middle"], color=look.colour, marker=look.marker,
                label=get(name).label,
            )  # fmt: skip
            ax.fill_between(places, line["low"], line["high"], color=look.colour, alpha=0.2, lw=0)
            print(PANELS[participation], name, *(f"{value:.2g}" for value in line["middle"]))
        ax.set_title(PANELS[participation], fontsize=10)
        ax.set_xticks(places, grid.split, rotation=20, ha="right")
        ax.set_yscale("log")
        ax.grid(True, color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
    figure.axes[0].set_ylabel("suboptimality after 100 rounds")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
        frameon=False, title=seeds_note(cells),
    )  # fmt: skip
    figure.savefig(OUT, dpi=150)


if __name__ == "__main__":
    main()
