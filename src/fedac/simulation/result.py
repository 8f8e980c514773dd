"""What a simulation returns: one `Run` per algorithm and step size, together a `Result`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedac.algorithms.couplings import Hyperparameters
from fedac.arrays import Array
from fedac.objectives import Objective, Optimum, optimum
from fedac.simulation.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Run:
    """One algorithm with one step size.

    Attributes
    ----------
    steps, loss : array
        The trace: F of the output after so many steps.
    state : dict
        The averaged sequences at the last record, by name.
    w : array
        The output at the last record.
    status : "ok" or "diverged"
        A diverged run keeps its trace up to there.
    """

    algorithm: str
    label: str
    hyperparameters: Hyperparameters
    status: Literal["ok", "diverged"]
    steps: npt.NDArray[np.int64]
    loss: Array
    state: dict[str, Array]
    w: Array
    megabytes_per_worker: float

    @property
    def eta(self) -> float:
        """The step size."""
        return self.hyperparameters.eta

    @property
    def best_loss(self) -> float:
        """The smallest recorded loss, the start point and diverged runs included."""
        return float(self.loss.min())

    @property
    def trained_loss(self) -> float:
        """The score of the run: its smallest loss after at least one step; NaN if it diverged."""
        trained = self.loss[self.steps > 0]
        return float(trained.min()) if self.status == "ok" and trained.size else math.nan

    @property
    def final_loss(self) -> float:
        """The last recorded loss; NaN if the run diverged."""
        return float(self.loss[-1]) if self.status == "ok" else math.nan


@dataclass(frozen=True, kw_only=True)
class Result:
    """All runs of one call of `simulate`, on the same draws."""

    objective: Objective
    schedule: Schedule
    M: int
    seed: int
    engine: str
    runs: tuple[Run, ...]
    gradient_queries: int
    seconds: float

    @cached_property
    def optimum(self) -> Optimum:
        """w* and F* of the objective, computed when first asked for."""
        return optimum(self.objective)

    @property
    def best(self) -> Run | None:
        """The run with the smallest trained loss; None if all diverged."""
        scored = [run for run in self.runs if not math.isnan(run.trained_loss)]
        return min(scored, key=lambda run: run.trained_loss, default=None)

    def rounds_of(self, run: Run) -> npt.NDArray[np.int64]:
        """Return the number of synchronizations before each record of a run."""
        return np.searchsorted(np.cumsum((0, *self.schedule.gaps)), run.steps)

    def suboptimality(self, run: Run) -> Array:
        """Return loss - F* along the trace of a run."""
        return run.loss - self.optimum.value

    def to_frame(self) -> pd.DataFrame:
        """Return the traces as a table, a row per run and record."""
        import pandas as pd

        frames = []
        for run in self.runs:
            columns = {
                "algorithm": run.algorithm,
                "eta": run.eta,
                "status": run.status,
                "step": run.steps,
                "round": self.rounds_of(run),
                "loss": run.loss,
                "suboptimality": self.suboptimality(run),
            }
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw suboptimality against rounds, a line per run, and return the axes."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(layout="constrained").add_subplot()
        for run in self.runs:
            ax.plot(
                self.rounds_of(run),
                self.suboptimality(run),
                marker="o",
                label=f"{run.label}, eta={run.eta:g}",
            )
        ax.set(xlabel="communication rounds", ylabel="suboptimality")
        if any((self.suboptimality(run) > 0).any() for run in self.runs):
            ax.set_yscale("log")
        ax.legend()
        return ax
