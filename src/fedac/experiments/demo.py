"""The demonstration: how few rounds each algorithm needs on the embedded data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedac.algorithms import get
from fedac.experiments.grid import Grid
from fedac.palette import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GRID = Grid(
    name="demo",
    dataset="synthetic",
    l2=1e-3,
    algorithms=("fedac-i", "mb-ac-sgd", "mb-sgd", "fedavg"),
    workers=(1024,),
    local_steps=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    steps=4096,
    eta=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
TARGET = 1e-3


def fewest_rounds(cells: pd.DataFrame, algorithm: str) -> Any:
    """Return the cell that reaches the target in the fewest rounds, or None if none does.

    Parameters
    ----------
    cells : DataFrame
        The best step size of each algorithm at each K, as `paper.tuned` gives it.
    """
    ours = cells[(cells["algorithm"] == algorithm) & (cells["suboptimality"] <= TARGET)]
    return None if ours.empty else ours.sort_values("K").iloc[-1]


def figure(cells: pd.DataFrame, title: str) -> Figure:
    """Draw tuned suboptimality against the number of rounds, a curve per algorithm."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 4.2), layout="constrained")
    ax = drawing.add_subplot()
    for name in GRID.algorithms:
        colour, marker, _ = style(name)
        curve = cells[cells["algorithm"] == name].sort_values("K")
        rounds = curve["T"] // curve["K"]
        ax.plot(rounds, curve["suboptimality"], color=colour, marker=marker, label=get(name).label)
    ax.axhline(TARGET, color="0.4", linestyle=":", linewidth=1)
    ax.annotate(
        "target",
        (1, TARGET),
        xycoords=("axes fraction", "data"),
        color="0.4",
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    ax.set_xscale("log", base=2)
    ticks = [GRID.steps // K for K in GRID.local_steps]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_yscale("log")
    ax.set_xlabel(f"communication rounds (each worker takes T = {GRID.steps} steps in all)")
    ax.set_ylabel("suboptimality, best step size")
    ax.set_title(title, fontsize=11)
    ax.grid(True, which="major", color="0.9")
    ax.legend(frameon=False)
    return drawing
