# SPDX-License-Identifier: Apache-2.0
"""The result of a simulation, one `Run` per algorithm and step size, and its recorder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.minibatch import takes_one_batch
from fedac.errors import InputError, NoOptimumError
from fedac.federation.compression import FLOAT32, bytes_down, bytes_of, bytes_up
from fedac.federation.federation import Federation
from fedac.federation.link import DEFAULT_LINK, Costs, Link, as_link, megabytes_sent, run_costs
from fedac.federation.schedule import Schedule
from fedac.federation.timeline import Timeline, Work
from fedac.objectives import HeldOut, Objective, Optimum, optimum
from fedac.plotting import styles
from fedac.simulation.problem import ArrayState, Problem, Snapshot
from fedac.validate import Array, look_up

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import nn


Edge = Literal["smallest", "largest"]


def edge_of(eta: float, smallest: float, largest: float) -> Edge | None:
    """Return which edge of the tried range a step size is at: a better one may lie beyond it."""
    if smallest == largest:
        return None
    return "smallest" if eta == smallest else "largest" if eta == largest else None


def metric_column(metric: str) -> str:
    """Return the column of a metric on the test set, or over clients: ``test_log_loss``."""
    return ("" if metric.startswith("client-") else "test_") + metric.replace("-", "_")


def traffic(algorithm: Algorithm, objective: Objective, wire: str) -> tuple[int, int]:
    """Return the bytes that a client sends and receives in a round.

    Averaged buffers of a network travel with its parameters, as float32.
    """
    buffers = bytes_of(FLOAT32, objective.averaged_buffers)
    up = bytes_up(algorithm, objective.dim, wire) + buffers
    return up, bytes_down(algorithm, objective.dim) + buffers


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """One algorithm with one step size.

    Attributes
    ----------
    steps, loss : array
        The trace: recorded steps, and F of the output there.
    metrics : dict
        The metrics on the test set at every record, by name: ``loss`` (the mean, without the l2
        term); ``accuracy``, ``auc`` and ``log-loss`` of classes; ``r2`` and ``mae`` of real
        targets. Empty without a test set.
    decay : str or None
        The decay of the step size; `eta` and `hyperparameters` then belong to the first round.
    state : dict
        The averaged sequences at the last record, by name.
    w : array
        The output at the last record.
    status : "ok" or "diverged"
        A diverged run keeps its trace up to that point.
    megabytes_per_worker : float
        Megabytes that a worker sends in the whole run, on average over all clients.
    bytes_up, bytes_down : int
        Bytes that a client sends and receives in one round.
    minibatch : bool
        Whether a round is one step on all its samples.
    full_gradient : bool
        Whether a round also takes the gradient of all rows of every client.
    timeline : Timeline or None
        Who worked when, if the simulation had a link, a mode or an availability.
    """

    algorithm: str
    label: str
    hyperparameters: Hyperparameters
    decay: str | None
    status: Literal["ok", "diverged"]
    steps: npt.NDArray[np.int64]
    loss: Array
    metrics: dict[str, Array]
    state: dict[str, Array]
    w: Array
    megabytes_per_worker: float
    bytes_up: int
    bytes_down: int
    minibatch: bool
    full_gradient: bool = False
    buffers: Array | None = None
    timeline: Timeline | None = None

    @property
    def test_loss(self) -> Array:
        """The loss on the test set at every record. Empty without a test set."""
        return self.metrics.get("loss", np.zeros(0))

    @property
    def test_accuracy(self) -> Array:
        """The accuracy on the test set at every record, NaN for real targets."""
        return self.metrics.get("accuracy", np.full(len(self.test_loss), np.nan))

    def __repr__(self) -> str:
        """Summarize the run in one line."""
        trace = f"loss {self.loss[0]:.6g} to {self.loss[-1]:.6g} in {self.steps[-1]} steps"
        return f"<Run {self.algorithm}, eta={self.eta:g}, {self.status}: {trace}>"

    @property
    def eta(self) -> float:
        """The step size."""
        return self.hyperparameters.eta

    @property
    def best_loss(self) -> float:
        """The smallest recorded loss, including the start point and diverged runs."""
        return float(self.loss.min())

    @property
    def trained_loss(self) -> float:
        """The score of the run: its smallest loss after the start; NaN if it diverged."""
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
    backend: str | None  # of the network engine
    runs: tuple[Run, ...]
    gradient_queries: int
    seconds: float
    work: Work | None = None  # link, mode and availability, if there is a timeline

    def __repr__(self) -> str:
        """Summarize the result in a few lines."""
        diverged = sum(run.status == "diverged" for run in self.runs)
        return (
            f"<Result of {len(self.runs)} run{'s' if len(self.runs) != 1 else ''} "
            f"({diverged} diverged), {self.engine} engine\n"
            f" M={self.M} K={self.schedule.K} T={self.schedule.T} seed={self.seed}\n"
            f" best: {self.best or 'none'}>"
        )

    def _repr_html_(self) -> str:
        """Return a table of the runs; with suboptimality if F* has been computed."""
        import pandas as pd

        known: Optimum | None = vars(self).get("optimum")
        rows = []
        for run in self.runs:
            row = {"algorithm": run.algorithm, "eta": run.eta, "status": run.status}
            row["final loss"] = run.final_loss
            if known is not None:
                row["suboptimality"] = run.final_loss - known.value
            rows.append(row | {f"test {name}": v[-1] for name, v in run.metrics.items()})
        table = pd.DataFrame(rows).to_html(
            index=False, float_format="{:.6g}".format, na_rep="-", border=0
        )
        what = f"{self.engine} engine, M={self.M}, K={self.schedule.K}, T={self.schedule.T}"
        return f"<p>{what}, seed={self.seed}</p>\n{table}"

    @property
    def M(self) -> int:
        """The number of workers or clients."""
        return self.federation.M

    @property
    def seed(self) -> int:
        """The seed of the draws."""
        return self.federation.seed

    @cached_property
    def optimum(self) -> Optimum:
        """w* and F* of the objective, computed on first access."""
        return optimum(self.objective)

    @cached_property
    def f_star(self) -> float:
        """F*, the minimum of the objective; NaN if there is none."""
        try:
            return self.optimum.value
        except NoOptimumError:
            return math.nan

    @property
    def best(self) -> Run | None:
        """The run with the smallest trained loss; None if all diverged."""
        return next(iter(self.best_by_method().values()), None)

    def best_by_method(self) -> dict[str, Run]:
        """Return the best run of each algorithm by name, the best first.

        An algorithm is missing if all its runs diverged.

        Examples
        --------
        >>> import fedac
        >>> F = fedac.NoisyQuadratic([1.0, 0.1], sigma=0.1)
        >>> result = fedac.simulate(F, ["fedavg", "fedac-i"], M=16, K=8, T=64, eta=[0.1, 0.5],
        ...                         engine="reference")
        >>> {name: run.eta for name, run in result.best_by_method().items()}
        {'fedac-i': 0.5, 'fedavg': 0.5}
        """
        best: dict[str, Run] = {}
        scored = (run for run in self.runs if not math.isnan(run.trained_loss))
        for run in sorted(scored, key=lambda run: run.trained_loss):
            best.setdefault(run.algorithm, run)
        return best

    @property
    def edge(self) -> Edge | None:
        """The edge of the tried step sizes that the best one is at, if any."""
        best, etas = self.best, [run.eta for run in self.runs]
        return None if best is None else edge_of(best.eta, min(etas), max(etas))

    def rounds_of(self, run: Run) -> npt.NDArray[np.int64]:
        """Return the rounds before each record of a run."""
        return np.searchsorted(np.cumsum((0, *self.schedule.gaps)), run.steps)

    @property
    def timeline(self) -> pd.DataFrame:
        """Who worked when: a row for every work of a client (see `Run.timeline` for pictures).

        Methods whose messages have other sizes may have another timeline: a first column then names
        the first method of each.
        """
        import pandas as pd

        different: dict[int, Run] = {}
        for run in self.runs:
            if run.timeline is None:
                raise InputError("without link=, mode= or availability= there is no timeline")
            different.setdefault(id(run.timeline), run)
        frames = [one.timeline.to_frame() for one in different.values() if one.timeline]
        if len(frames) > 1:
            for frame, one in zip(frames, different.values(), strict=True):
                frame.insert(0, "algorithm", one.algorithm)
        return pd.concat(frames, ignore_index=True)

    def megabytes_of(self, run: Run) -> Array:
        """Return the megabytes of a client that is present in every round, before each record."""
        return self._costs(run, Link()).megabytes[self.rounds_of(run)]

    def seconds_of(self, run: Run, link: Link | str | None = None) -> Array:
        """Return the seconds before each record of a run on a link.

        Default: the link that the simulation had.
        """
        rounds = self.rounds_of(run)
        if run.timeline is None or self.work is None:
            if link is None:
                raise InputError("seconds need a link, such as 'wan'")
            seconds: Array = self._costs(run, as_link(link)).seconds[rounds]
            return seconds
        if link is not None and as_link(link) != self.work.link:
            raise InputError(
                f"this run has its times from link='{self.work.link}': simulate again with another"
            )
        return run.timeline.seconds[rounds]

    def _costs(self, run: Run, link: Link) -> Costs:
        share = 1.0 if self.work is None else self.work.messages_a_place(self.federation)
        return run_costs(
            bytes_up=run.bytes_up, bytes_down=run.bytes_down, messages=share, link=link,
            gaps=self.schedule.gaps,
            **self.federation.timing(minibatch=run.minibatch, full_gradient=run.full_gradient),
        )  # fmt: skip

    def module(self, run: Run) -> nn.Module:
        """Return the trained module of a run of a network, in evaluation mode."""
        if not self.objective.is_network:
            raise InputError(
                f"only a run of a network has a module; that of {self.objective!r} has run.w"
            )
        if not isinstance(run, Run):
            raise InputError(f"module needs one of the runs, such as result.best, got {run!r:.60}")
        found: nn.Module = self.objective.module_of(run.w, run.buffers)  # type: ignore[attr-defined]
        return found

    def suboptimality(self, run: Run) -> Array:
        """Return loss - F* at each record of a run; NaN if the objective has no minimum."""
        return run.loss - self.f_star

    def to_frame(self) -> pd.DataFrame:
        """Return the traces as a DataFrame, one row per run and record."""
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
            if run.metrics:
                columns |= {"test_loss": run.test_loss, "test_accuracy": run.test_accuracy}
                columns |= {metric_column(name): values for name, values in run.metrics.items()}
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def plot(
        self, ax: Axes | None = None, *, against: str = "rounds", link: Link | str | None = None
    ) -> Axes:
        """Plot suboptimality against rounds, one line per run, and return the axes.

        `against` may also be "megabytes" of a client that is present in every round, or "seconds"
        on a link. If the objective has no minimum, losses are plotted instead.
        """
        costs: dict[str, Callable[[Run], Array | npt.NDArray[np.int64]]] = {
            "rounds": self.rounds_of,
            "megabytes": self.megabytes_of,
            "seconds": lambda run: self.seconds_of(run, link),
        }
        if link is None and self.work is None:
            link = DEFAULT_LINK
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
            look, dashes = looks[run.algorithm], ("-", "--", ":", "-.")[etas.index(run.eta) % 4]
            label = f"{run.label}, eta={run.eta:g}"
            x, colour = cost_of(run), look.colour
            ax.plot(x, values, color=colour, marker=look.marker, linestyle=dashes, label=label)
        ylabel = "loss (the objective has no minimum F*)" if no_minimum else "suboptimality"
        ax.set(xlabel="communication rounds" if against == "rounds" else against, ylabel=ylabel)
        if any((values > 0).any() for values in curves):
            ax.set_yscale("log")
        ax.legend()
        return ax


@dataclass(frozen=True, slots=True)
class Record:
    """The argument of a callback: one run at one recorded step."""

    run: int  # index in the runs of the result
    algorithm: str
    eta: float
    sequences: tuple[str, ...]  # names of the vectors in `state`
    step: int  # steps taken so far
    loss: float  # F of the output
    w: Array  # the output
    state: ArrayState  # sequences and server state


class Recorder:
    """Collects the traces of all lanes of a problem."""

    def __init__(
        self,
        problem: Problem,
        callbacks: Sequence[Callable[[Record], object]],
        test: HeldOut | None = None,
    ) -> None:
        self.problem = problem
        self.callbacks = callbacks
        self.test = test
        # By lane: step, loss and, with a test set, the metrics on it.
        self._traces: list[list[tuple[float, ...]]] = [[] for _ in problem.lanes]
        self._metrics: tuple[str, ...] = ()
        self._last: dict[int, Snapshot] = {}
        self._diverged = [False] * len(problem.lanes)

    def add(self, snapshots: list[Snapshot]) -> None:
        """Record the snapshots of one synchronization."""
        for snapshot in snapshots:
            self._diverged[snapshot.lane] = snapshot.diverged
            if snapshot.metrics is not None:
                self._metrics = tuple(snapshot.metrics)
        alive = [snapshot for snapshot in snapshots if not snapshot.diverged]
        losses = [self._loss_of(snapshot) for snapshot in alive]
        finite = [(s, F) for s, F in zip(alive, losses, strict=True) if math.isfinite(F)]
        on_test = {}
        if self.test is not None and finite:
            on_test = self.test.evaluate_all(np.stack([self._output(s) for s, _ in finite]))
            self._metrics = tuple(on_test)
        for place, (snapshot, loss) in enumerate(finite):
            self._last[snapshot.lane] = snapshot
            tested = [float(values[place]) for values in on_test.values()]
            tested += (snapshot.metrics or {}).values()
            self._traces[snapshot.lane].append((snapshot.step, loss, *tested))
            if self.callbacks and not snapshot.seen:
                record = self._record(snapshot, loss)
                for callback in self.callbacks:
                    callback(record)

    def _output(self, snapshot: Snapshot) -> Array:
        return self.problem.lanes[snapshot.lane].output(snapshot.state, snapshot.step)

    def _loss_of(self, snapshot: Snapshot) -> float:
        """Return the loss of a snapshot. If it is not finite, the lane has diverged."""
        loss = snapshot.loss
        if loss is None:
            with np.errstate(over="ignore", invalid="ignore"):
                loss = self.problem.objective.value(self._output(snapshot))
        if not math.isfinite(loss):
            if snapshot.step == 0:
                raise InputError(
                    "the loss at the start point is not finite; use a smaller start or l2"
                )
            self._diverged[snapshot.lane] = True
        return loss

    def _record(self, snapshot: Snapshot, loss: float) -> Record:
        lane = self.problem.lanes[snapshot.lane]
        return Record(
            run=snapshot.lane,
            algorithm=lane.algorithm.name,
            eta=lane.hp.eta,
            sequences=lane.algorithm.state_names,
            step=snapshot.step,
            loss=loss,
            w=self._output(snapshot),
            state=snapshot.state,
        )

    def runs(self, timelines: Mapping[int, Timeline | None]) -> tuple[Run, ...]:
        """Return a run for every lane that has a record."""
        return tuple(self._run(i, timelines[i]) for i, trace in enumerate(self._traces) if trace)

    def _run(self, index: int, timeline: Timeline | None) -> Run:
        lane, last = self.problem.lanes[index], self._last[index]
        steps, loss, *on_test = map(np.array, zip(*self._traces[index], strict=True))
        algorithm, federation = lane.algorithm, self.problem.federation
        rounds = self.problem.schedule.rounds
        up, down = traffic(algorithm, self.problem.objective, self.problem.wire)
        sent = megabytes_sent(up, rounds, present=federation.taking_part, M=federation.M)
        return Run(
            algorithm=algorithm.name,
            label=algorithm.label,
            hyperparameters=lane.hp,
            decay=lane.eta.by if lane.eta else None,
            status="diverged" if self._diverged[index] else "ok",
            steps=steps,
            loss=loss,
            metrics=dict(zip(self._metrics, on_test, strict=True)),
            state=dict(zip(algorithm.state_names, last.state, strict=True)),
            w=self._output(last),
            megabytes_per_worker=sent,
            bytes_up=up,
            bytes_down=down,
            minibatch=takes_one_batch(algorithm),
            full_gradient="gradient" in algorithm.asks,
            buffers=last.buffers,
            timeline=timeline,
        )
