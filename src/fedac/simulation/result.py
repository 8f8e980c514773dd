"""What a simulation returns: one `Run` per algorithm and step size, together a `Result`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.errors import NoOptimumError, look_up
from fedac.federation.federation import Federation
from fedac.federation.link import DEFAULT_LINK, Link, as_link
from fedac.federation.schedule import Schedule
from fedac.objectives import Objective, Optimum, optimum
from fedac.plotting import styles
from fedac.validate import Array

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


Edge = Literal["smallest", "largest"]


def edge_of(eta: float, smallest: float, largest: float) -> Edge | None:
    """Say whether a step size is at an edge of those tried: a better one may lie beyond it."""
    if smallest == largest:
        return None
    return "smallest" if eta == smallest else "largest" if eta == largest else None


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """One algorithm with one step size.

    Attributes
    ----------
    steps, loss : array
        The trace: F of the output after so many steps.
    test_loss, test_accuracy : array
        The same on the test set: the mean loss, without the l2 term, and the share of rows whose
        sign the output gets right. Empty without a test set.
    decay : str or None
        How the step size falls; `eta` and `hyperparameters` are then those of the first round.
    state : dict
        The averaged sequences at the last record, by name.
    w : array
        The output at the last record.
    status : "ok" or "diverged"
        A diverged run keeps its trace up to there.
    megabytes_per_worker : float
        What a worker sends in the whole run; where not all take part, on average over all clients.
    bytes_up, bytes_down : int
        What a client that takes part in a round sends and receives.
    minibatch : bool
        Whether a round is one step, on all its samples.
    """

    algorithm: str
    label: str
    hyperparameters: Hyperparameters
    decay: str | None
    status: Literal["ok", "diverged"]
    steps: npt.NDArray[np.int64]
    loss: Array
    test_loss: Array
    test_accuracy: Array
    state: dict[str, Array]
    w: Array
    megabytes_per_worker: float
    bytes_up: int
    bytes_down: int
    minibatch: bool

    def __repr__(self) -> str:
        """Describe the run on one line, without its arrays."""
        trace = f"loss {self.loss[0]:.6g} to {self.loss[-1]:.6g} in {self.steps[-1]} steps"
        return f"<Run {self.algorithm}, eta={self.eta:g}, {self.status}: {trace}>"

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


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """All runs of one call of `simulate`, on the same draws."""

    objective: Objective
    schedule: Schedule
    federation: Federation
    wire: str
    engine: str
    runs: tuple[Run, ...]
    gradient_queries: int
    seconds: float

    def __repr__(self) -> str:
        """Describe the result in a few lines."""
        best, diverged = self.best, sum(run.status == "diverged" for run in self.runs)
        return "\n".join(
            [
                f"<Result of {len(self.runs)} run{'s' if len(self.runs) != 1 else ''} "
                f"({diverged} diverged), {self.engine} engine",
                f" M={self.M} K={self.schedule.K} T={self.schedule.T} seed={self.seed}",
                f" best: {best}>" if best else " best: none>",
            ]
        )

    @property
    def M(self) -> int:
        """The number of workers, or of clients."""
        return self.federation.M

    @property
    def seed(self) -> int:
        """The seed of the draws."""
        return self.federation.seed

    @cached_property
    def optimum(self) -> Optimum:
        """w* and F* of the objective, computed when first asked for."""
        return optimum(self.objective)

    @cached_property
    def f_star(self) -> float:
        """F*, the minimum of the objective; NaN if it has none."""
        try:
            return self.optimum.value
        except NoOptimumError:
            return math.nan

    @property
    def best(self) -> Run | None:
        """The run with the smallest trained loss; None if all diverged."""
        scored = [run for run in self.runs if not math.isnan(run.trained_loss)]
        return min(scored, key=lambda run: run.trained_loss, default=None)

    @property
    def edge(self) -> Edge | None:
        """Which edge of the step sizes tried the best one is at, if any."""
        best, etas = self.best, [run.eta for run in self.runs]
        return None if best is None else edge_of(best.eta, min(etas), max(etas))

    def rounds_of(self, run: Run) -> npt.NDArray[np.int64]:
        """Return the number of synchronizations before each record of a run."""
        return np.searchsorted(np.cumsum((0, *self.schedule.gaps)), run.steps)

    def megabytes_of(self, run: Run) -> Array:
        """Return what a client has sent and received before each record, if it always took part."""
        return self.rounds_of(run).astype(np.float64) * (run.bytes_up + run.bytes_down) / 1e6

    def seconds_of(self, run: Run, link: Link | str) -> Array:
        """Return how long it takes on a link until each record of a run."""
        elapsed = as_link(link).elapsed(
            up=run.bytes_up, down=run.bytes_down, gaps=self.schedule.gaps,
            rows=self.federation.batch_rows, minibatch=run.minibatch, seed=self.seed, M=self.M,
            taking_part=self.federation.taking_part,
        )  # fmt: skip
        seconds: Array = elapsed[self.rounds_of(run)]
        return seconds

    def suboptimality(self, run: Run) -> Array:
        """Return loss - F* along the trace of a run; NaN if the objective has no minimum."""
        return run.loss - self.f_star

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
            if run.test_loss.size:
                columns |= {"test_loss": run.test_loss, "test_accuracy": run.test_accuracy}
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def plot(
        self, ax: Axes | None = None, *, against: str = "rounds", link: Link | str = DEFAULT_LINK
    ) -> Axes:
        """Draw suboptimality against rounds, a line per run, and return the axes.

        `against` may also be "megabytes", those of a client that always takes part, or "seconds"
        on a link. Where the objective has no minimum, losses are drawn instead.
        """
        costs: dict[str, Callable[[Run], Array | npt.NDArray[np.int64]]] = {
            "rounds": self.rounds_of,
            "megabytes": self.megabytes_of,
            "seconds": lambda run: self.seconds_of(run, link),
        }
        cost_of = look_up("axis", against, costs)
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(layout="constrained").add_subplot()
        no_minimum = math.isnan(self.f_star)
        curves = [run.loss if no_minimum else self.suboptimality(run) for run in self.runs]
        etas = sorted({run.eta for run in self.runs})
        names = list(dict.fromkeys(run.algorithm for run in self.runs))
        looks = dict(zip(names, styles(names), strict=True))
        for run, values in zip(self.runs, curves, strict=True):
            look = looks[run.algorithm]
            ax.plot(
                cost_of(run),
                values,
                color=look.colour,
                marker=look.marker,
                linestyle=("-", "--", ":", "-.")[etas.index(run.eta) % 4],
                label=f"{run.label}, eta={run.eta:g}",
            )
        ylabel = "loss (the objective has no minimum F*)" if no_minimum else "suboptimality"
        ax.set(xlabel="communication rounds" if against == "rounds" else against, ylabel=ylabel)
        if any((values > 0).any() for values in curves):
            ax.set_yscale("log")
        ax.legend()
        return ax
