# SPDX-License-Identifier: Apache-2.0
"""Compositions on a9a at equal rounds and at equal megabytes, homogeneous or heterogeneous.

Writes docs/images/family.png and prints the tables of docs/algorithms.md:
python benchmarks/family_figure.py [FOLDER]

Every method has the same step sizes to choose from, and every momentum the same values of beta. A
method keeps one choice for all seeds: the one whose median over them is the smallest at the end of
its budget, which is a number of rounds, or of megabytes sent by a client. With a folder, finished
runs are kept there and not repeated.
"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedac.algorithms import get
from fedac.experiments.grid import make_grid
from fedac.experiments.store import Store
from fedac.experiments.summary import over_seeds
from fedac.experiments.sweep import run
from fedac.federation.spec import Spec
from fedac.plotting import styles

OUT = Path(__file__).parents[1] / "docs" / "images" / "family.png"
BETA = "0.3|0.5|0.7|0.9"
ETA = (
    *(0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0),
)
SHARED: dict[str, Any] = {"dataset": "a9a", "l2": 1e-3, "eta": ETA, "seeds": (1, 2, 3, 4, 5)}
ALIKE = (
    "fedavg",
    f"fedavg+nesterov(1,{BETA})",
    "fedavg+accelerated(1)",
    f"momentum({BETA})+local",
    "fedac-i",
    f"fedac-i+nesterov(1,{BETA})",
    "fedac-i+local",
    f"fedac-i+local+nesterov(1,{BETA})",
)
DIFFERENT = (
    "fedavg",
    f"fedavg+nesterov(1,{BETA})",
    "scaffold",
    f"fedavg+cv+nesterov(1,{BETA})",
    "scaffnew",
    "fedac-i",
    "fedac-i+local",
    "fedac-i+local+cv",
    "fedac-i+cv",
    f"fedac-i+cv+nesterov(1,{BETA})",
)
LABEL = {"clients": (20,), "split": ("label",), "batch": (4,)}
# By title: the grids, whose rounds have K steps each.
TABLES: dict[str, list[dict[str, Any]]] = {
    "1,024 workers alike": [
        {"algorithms": ALIKE, "workers": (1024,), "local_steps": (K,), "steps": 2048}
        for K in (64, 256)
    ],
    "20 clients sorted by label": [
        {"algorithms": DIFFERENT, **LABEL, "local_steps": (K,), "steps": K * rounds}
        for K, rounds in ((16, 100), (64, 50), (256, 20))
    ],
}
IN_FIGURE = 64  # the K of the figure's panels


def family(algorithm: str) -> str:
    """Return the name of a method without the number that was tuned."""
    return re.sub(r"(momentum\(|nesterov\(1,)[^)]*\)", r"\1β)", algorithm)


def traces_of(store: Store, grid: Spec) -> pd.DataFrame:
    """Run a grid; return the losses of its runs, a row for each record after the start."""
    keys = run(grid, store).keys
    runs = store.frame().set_index("key").loc[list(keys)].reset_index()
    runs = runs.assign(family=runs["algorithm"].map(family))
    columns = ["key", "family", "algorithm", "eta", "seed", "K", "f_star", "n_features"]
    along = store.traces().merge(runs[columns], on="key", suffixes=("", "_of_run"))
    along = along[along["step"] > 0]
    up = along["family"].map(vectors_up)
    return along.assign(
        suboptimality=along["loss"] - along["f_star"],
        rounds=along["step"] / along["K"],
        kilobytes=along["step"] / along["K"] * up * along["n_features"] * 4 / 1e3,
    )


def vectors_up(name: str) -> int:
    """Return how many vectors a client sends in a round."""
    return get(name.replace("β", "0.5")).vectors_up


def chosen(along: pd.DataFrame, over: str, budget: float) -> pd.DataFrame:
    """Return the traces within a budget of those runs that are the best of their method there."""
    within = along[along[over] <= budget * (1 + 1e-9)]
    last = within[within["step"] == within.groupby("family")["step"].transform("max")]
    # A diverged run has no record there.
    choices = last.groupby(["family", "algorithm", "eta"])["suboptimality"]
    medians = choices.median().where(choices.size() == len(SHARED["seeds"])).reset_index()
    best = medians.loc[medians.groupby("family")["suboptimality"].idxmin()]
    return within.merge(best[["family", "algorithm", "eta"]])


def cells_of(best: pd.DataFrame, families: list[str]) -> dict[str, str]:
    """Return a cell of the table for every method: the end, and what was chosen."""
    cells = {}
    for name in families:
        mine = best[best["family"] == name]
        mine = mine[mine["step"] == mine["step"].max()]
        band, first = over_seeds(mine["suboptimality"]), mine.iloc[0]
        beta = re.search(r"(?:momentum\(|nesterov\(1,)([^)]*)\)", first["algorithm"])
        choice = f"{first['eta']:g}" + (f", {beta[1]}" if beta else "")
        edge = " (edge)" if first["eta"] in (ETA[0], ETA[-1]) else ""
        cells[name] = f"{band.middle:.1e} ({band.low:.1e} to {band.high:.1e}); {choice}{edge}"
    return cells


def main() -> None:
    """Run the sweeps, print the tables and draw the figure."""
    figure = Figure(figsize=(10, 7.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    folder = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else TemporaryDirectory()
    with folder as place, Store(place, create=True) as store:
        for (title, grids), panels in zip(TABLES.items(), axes, strict=True):
            columns: dict[str, dict[str, dict[str, str]]] = {"rounds": {}, "kilobytes": {}}
            for settings in grids:
                (K,), T = settings["local_steps"], settings["steps"]
                grid = make_grid(name=title, **SHARED, **settings, record_every=K)
                along = traces_of(store, grid)
                families = list(dict.fromkeys(map(family, grid.several("algorithm"))))
                # Bytes sent by a method with one vector.
                budgets = {"rounds": T // K, "kilobytes": along["kilobytes"].min() * (T // K)}
                for (over, budget), ax in zip(budgets.items(), panels, strict=True):
                    best = chosen(along, over, budget)
                    columns[over][f"K={K}, {budget:.3g} {over}"] = cells_of(best, families)
                    if K == IN_FIGURE:
                        draw(ax, best, families, over)
            for over, cells in columns.items():
                print_table(f"{title}, at equal {over}", cells)
            panels[0].set_title(f"{title}, K = {IN_FIGURE}", fontsize=10, loc="left")
            panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(OUT, dpi=130)


def print_table(title: str, columns: dict[str, dict[str, str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| method | vectors up | {' | '.join(columns)} |")
    print("|---|---|" + "---|" * len(columns))
    for name in next(iter(columns.values())):
        cells = " | ".join(cells[name] for cells in columns.values())
        print(f"| `{name}` | {vectors_up(name)} | {cells} |")


def draw(ax: Axes, best: pd.DataFrame, families: list[str], over: str) -> None:
    """Draw the best runs of every method along their way."""
    for name, look in zip(families, styles(families), strict=True):
        bands = best[best["family"] == name].groupby(over)["suboptimality"].apply(over_seeds)
        style = {"color": look.colour, "marker": look.marker, "markersize": 3, "markevery": 4}
        ax.plot(bands.index, [band.middle for band in bands], label=name, linewidth=1.2, **style)
        lows, highs = ([getattr(band, end) for band in bands] for end in ("low", "high"))
        ax.fill_between(bands.index, lows, highs, color=look.colour, alpha=0.2, lw=0)
    ax.set_yscale("log")
    ax.set_xlabel("communication rounds" if over == "rounds" else "kilobytes sent by a client")
    ax.set_ylabel("suboptimality" if over == "rounds" else None)
    ax.grid(True, color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)


if __name__ == "__main__":
    main()
