# SPDX-License-Identifier: Apache-2.0
"""The demo: a comparison on digits split by label, then the paper's headline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedac.algorithms import get
from fedac.experiments.comparison import Question, Study
from fedac.experiments.grid import make_grid
from fedac.experiments.reproduction.figures import plot_cells
from fedac.experiments.summary import edge_note, summarize
from fedac.federation.spec import COMPARE
from fedac.plotting import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Twenty clients with about one digit each. `fedac compare --quick` with these options and "digits"
# answers the same.
PROBLEM = {"clients": 20, "split": "label", "link": "home", "test": 0.2, "target": "accuracy 0.9"}
# The paper's main example, with three seeds of 512 workers instead of one of 8192.
GRID = make_grid(
    name="demo", dataset="a9a", l2=1e-3, algorithms=("fedac-i", "mb-ac-sgd", "mb-sgd", "fedavg"),
    workers=(512,), local_steps=(1, 2, 4, 8, 16, 32, 64, 128, 256), steps=4096,
    eta=(0.02, 0.05, 0.2, 1.0, 2.0, 5.0), seeds=(1, 2, 3),
)  # fmt: skip
TARGET = 1e-3


def study(size: Mapping[str, Any]) -> Study:
    """Return the comparison on digits: `size` has its methods, rounds, tries and repeats."""
    asked = Study(Question.ask({"dataset": "digits", **PROBLEM, **size}, COMPARE))
    # All its runs take a few seconds in NumPy. Compiling kernels for ten classes takes 25.
    asked.task = replace(asked.task, engine="reference")
    return asked


def figure(tuned: pd.DataFrame) -> Figure:
    """Draw suboptimality against rounds, with the median over seeds as a line in their range."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 4.2), layout="constrained")
    ax = drawing.add_subplot()
    cells = summarize(tuned)
    cells["rounds"] = cells["T"] // cells["K"]
    for name in GRID.several("algorithm"):
        colour, marker, *_ = style(name)
        look = {"color": colour, "marker": marker, "label": get(name).label}
        plot_cells(ax, "rounds", cells[cells["algorithm"] == name], **look)
    ax.axhline(TARGET, color="0.4", linestyle=":", linewidth=1)
    right = ax.get_yaxis_transform()  # x as a fraction of the width, y as data
    ax.text(0.99, TARGET, "target", transform=right, color="0.4", ha="right", va="bottom")
    ticks = [GRID.steps // K for K in GRID.several("local_steps")]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set(
        yscale="log",
        xlabel=f"communication rounds (every worker takes T = {GRID.steps} steps in total)",
        ylabel="suboptimality at the best step size",
    )
    seeds = f"median and range of {len(GRID.several('seed'))} seeds"
    problem = f"{GRID.dataset}, l2 = {GRID.l2:g}, {GRID.workers} workers"
    ax.set_title(f"{problem}: {seeds}", fontsize=11)
    ax.grid(True, which="major", color="0.9")
    ax.legend(frameon=False)
    drawing.supxlabel(edge_note(cells), fontsize=8, color="0.4")
    return drawing
