"""The demonstration: how few rounds each algorithm needs on the embedded data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedac.algorithms import get
from fedac.engine import simulate
from fedac.errors import StepSizeWarning
from fedac.experiments.palette import style
from fedac.objectives import Objective

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALGORITHMS = ("fedac-i", "mb-ac-sgd", "mb-sgd", "fedavg")
M = 1024
T = 4096
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ETAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TARGET = 1e-3


@dataclass(frozen=True, slots=True)
class Cell:
    """The best step size of one algorithm at one K."""

    algorithm: str
    K: int
    eta: float
    suboptimality: float
    megabytes: float

    @property
    def rounds(self) -> int:
        """R = T/K."""
        return T // self.K


def queries() -> int:
    """Return how many gradients the demonstration asks for."""
    return M * T * len(ALGORITHMS) * len(KS) * len(ETAS)


def run(objective: Objective, on_progress: Callable[[int], object]) -> list[Cell]:
    """Tune every algorithm at every K of the grid."""
    cells = []
    for K in KS:
        with warnings.catch_warnings():
            # Tuning means trying too large step sizes as well.
            warnings.simplefilter("ignore", StepSizeWarning)
            result = simulate(
                objective, ALGORITHMS, M=M, K=K, T=T, eta=ETAS, seed=1, on_progress=on_progress
            )
        for name in ALGORITHMS:
            runs = [run for run in result.runs if run.algorithm == name]
            best = min(runs, key=lambda run: run.best_loss)
            suboptimality = best.best_loss - result.optimum.value
            cells.append(Cell(name, K, best.eta, suboptimality, best.megabytes_per_worker))
    return cells


def fewest_rounds(cells: list[Cell], algorithm: str) -> Cell | None:
    """Return the cell that reaches the target in the fewest rounds, or None if none does."""
    reached = [c for c in cells if c.algorithm == algorithm and c.suboptimality <= TARGET]
    return min(reached, key=lambda cell: cell.rounds, default=None)


def figure(cells: list[Cell], title: str) -> Figure:
    """Draw tuned suboptimality against the number of rounds, a curve per algorithm."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 4.2), layout="constrained")
    ax = drawing.add_subplot()
    for name in ALGORITHMS:
        colour, marker, _ = style(name)
        curve = [cell for cell in cells if cell.algorithm == name]
        rounds = [cell.rounds for cell in curve]
        values = [cell.suboptimality for cell in curve]
        ax.plot(rounds, values, color=colour, marker=marker, label=get(name).label)
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
    ax.set_xticks([T // K for K in KS], [str(T // K) for K in KS])
    ax.set_yscale("log")
    ax.set_xlabel(f"communication rounds (each worker takes T = {T} steps in all)")
    ax.set_ylabel("suboptimality, best step size")
    ax.set_title(title, fontsize=11)
    ax.grid(True, which="major", color="0.9")
    ax.legend(frameon=False)
    return drawing
