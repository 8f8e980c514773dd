"""Compositions on a9a at equal rounds and at equal megabytes, where workers are alike or differ.

Writes docs/images/family.png and prints the tables of docs/algorithms.md:
python benchmarks/family_figure.py [FOLDER]

Every method has the same step sizes to choose from, and every momentum on the server the same
values of beta. A method keeps one choice for all seeds: the one whose median over them is the
smallest at the end. With a folder, finished runs are kept there and not repeated.
"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedac.algorithms import get
from fedac.experiments.grid import Grid
from fedac.experiments.seeds import over_seeds
from fedac.experiments.store import Store
from fedac.experiments.sweep import run
from fedac.palette import styles

OUT = Path(__file__).parents[1] / "docs" / "images" / "family.png"
BETA = "0.3|0.5|0.7|0.9"
ETA = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
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


def chosen(store: Store, grid: Grid) -> pd.DataFrame:
    """Return the runs of a grid whose step size and beta are the best of their method."""
    keys = run(grid, store).keys
    runs = store.frame().set_index("key").loc[list(keys)].reset_index()
    runs = runs.assign(family=runs["algorithm"].map(family))
    runs["end"] = runs["final_suboptimality"].astype(float).fillna(float("inf"))
    medians = runs.groupby(["family", "algorithm", "eta"])["end"].median().reset_index()
    best = medians.loc[medians.groupby("family")["end"].idxmin()]
    return runs.merge(best[["family", "algorithm", "eta"]], on=["family", "algorithm", "eta"])


def rows_of(best: pd.DataFrame, families: list[str]) -> dict[str, str]:
    """Return a cell of the table for every method: the end, and what was chosen."""
    cells = {}
    for name in families:
        mine = best[best["family"] == name]
        band = over_seeds(mine["end"])
        beta = re.search(r"(?:momentum\(|nesterov\(1,)([^)]*)\)", mine["algorithm"].iloc[0])
        choice = f"{mine['eta'].iloc[0]:g}" + (f", {beta[1]}" if beta else "")
        edge = "*" if mine["eta"].iloc[0] in (ETA[0], ETA[-1]) else ""
        cells[name] = f"{band.middle:.1e} ({band.low:.1e} to {band.high:.1e}); {choice}{edge}"
    return cells


def main() -> None:
    """Run the sweeps, print the tables and draw the figure."""
    figure = Figure(figsize=(10, 7.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    folder = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else TemporaryDirectory()
    with folder as place, Store(place, create=True) as store:
        for (title, grids), panels in zip(TABLES.items(), axes, strict=True):
            columns = {}
            for settings in grids:
                (K,), T = settings["local_steps"], settings["steps"]
                grid = Grid(name=title, **SHARED, **settings, record_every=max(K, T // 32))
                best = chosen(store, grid)
                families = list(dict.fromkeys(map(family, grid.algorithms)))
                columns[f"K={K}, {T // K} rounds"] = rows_of(best, families)
                if K == IN_FIGURE:
                    draw(panels, title, K, best, families, store.traces())
            print_table(title, columns)
    figure.savefig(OUT, dpi=130)


def print_table(title: str, columns: dict[str, dict[str, str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| method | vectors up | {' | '.join(columns)} |")
    print("|---|---|" + "---|" * len(columns))
    for name in next(iter(columns.values())):
        cells = " | ".join(cells[name] for cells in columns.values())
        print(f"| `{name}` | {get(name.replace('β', '0.5')).vectors_up} | {cells} |")


def draw(
    panels: Any, title: str, K: int, best: pd.DataFrame, families: list[str], traces: pd.DataFrame
) -> None:
    """Draw the runs along their way, against rounds and against megabytes."""
    along = traces.merge(best[["key", "family", "f_star", "megabytes_per_worker", "T"]], on="key")
    along = along[along["step"] > 0]
    along["suboptimality"] = along["loss"] - along["f_star"]
    looks = dict(zip(families, styles(families), strict=True))
    for ax, over in zip(panels, ("rounds", "megabytes"), strict=True):
        for name in families:
            mine = along[along["family"] == name]
            share = mine["step"] / mine["T"]
            x = mine["step"] / K if over == "rounds" else share * mine["megabytes_per_worker"]
            bands = mine.groupby(x)["suboptimality"].apply(over_seeds)
            look, places = looks[name], bands.index.to_numpy()
            style = {"color": look.colour, "marker": look.marker, "markersize": 3, "markevery": 4}
            ax.plot(places, [band.middle for band in bands], label=name, linewidth=1.2, **style)
            lows, highs = ([getattr(band, end) for band in bands] for end in ("low", "high"))
            ax.fill_between(places, lows, highs, color=look.colour, alpha=0.2, lw=0)
        ax.set_yscale("log")
        ax.set_xlabel("communication rounds" if over == "rounds" else "megabytes sent by a client")
        ax.grid(True, color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
    panels[0].set_ylabel("suboptimality")
    panels[0].set_title(f"{title}, K = {K}", fontsize=10, loc="left")
    panels[1].legend(frameon=False, fontsize=8, loc="upper right")


if __name__ == "__main__":
    main()
