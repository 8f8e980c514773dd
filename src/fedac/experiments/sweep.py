"""The sweep: runs what a store lacks of a grid, group by group.

A group is one call of `simulate` and one transaction. A sweep that was killed at any time
continues where it was; two sweeps on one store share the groups between them.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedac.algorithms import Algorithm
from fedac.data import load
from fedac.errors import StepSizeWarning
from fedac.experiments.cost import Cost
from fedac.experiments.grid import Config, Grid, Group, groups
from fedac.experiments.identity import objective_hash, rows_hash
from fedac.experiments.plugins import make_objective
from fedac.experiments.store import Best, Outcome, Store
from fedac.objectives import Objective, optimum
from fedac.simulation import simulate

# Nobody reads faster, and a small group makes a thousand rounds in this time.
SECONDS_BETWEEN_EVENTS = 0.1
# How many groups `measure_speed` runs, and about how long each.
TRIALS = 4
TRIAL_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Task:
    """A grid with its data loaded."""

    objective: Objective
    algorithms: dict[str, Algorithm]  # by the names of the records
    groups: list[Group]

    @property
    def cost(self) -> Cost:
        """The model of the time that the runs take."""
        return Cost(self.objective, self.algorithms)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep has to do."""

    cells: int  # runs of the grid
    left: tuple[tuple[Config, ...], ...]  # those that the store lacks, group by group

    @property
    def missing(self) -> int:
        """How many runs the store lacks."""
        return sum(map(len, self.left))

    @property
    def gradient_queries(self) -> int:
        """M*T for each missing run."""
        return sum(config.M * config.T for configs in self.left for config in configs)

    def seconds(self, cost: Cost) -> float:
        """Predict the time for all missing runs."""
        return sum(map(cost.seconds, self.left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The progress of a sweep."""

    cells: int  # runs of the grid
    done: int  # those in the store
    queries: int  # gradient queries made by this call of `run`
    work: float  # the share of this call's work that is done, from 0 to 1, as `Cost` weighs it
    best: Best | None  # of the grid so far


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a call of `run`."""

    new: int  # runs that this call added
    before: int  # runs that it found in the store
    beyond: int  # step sizes above 1/L, which the paper's theorems do not cover
    keys: tuple[str, ...]  # of all runs of the grid, in its order

    @property
    def others(self) -> int:
        """How many runs of the grid another sweep added meanwhile."""
        return len(self.keys) - self.new - self.before


class SweepInterrupted(KeyboardInterrupt):
    """The user stopped a sweep: `done` of the `cells` runs of its grid are in the store."""

    def __init__(self, done: int, cells: int) -> None:
        super().__init__("sweep interrupted")
        self.done = done
        self.cells = cells


def run(
    grid: Grid,
    store: Store,
    *,
    on_event: Callable[[Event], object] = lambda event: None,
    on_compile: Callable[[], object] = lambda: None,
) -> Summary:
    """Run what the store lacks of a grid.

    Parameters
    ----------
    grid : Grid
        What to run.
    store : Store
        Opened with ``create=True``.
    on_event : callable
        Called with an `Event` after every group, and a few times a second in between.
    on_compile : callable
        Called when the engine starts to compile.

    Raises
    ------
    SweepInterrupted
        On Ctrl-C; the groups that were finished are in the store.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> grid = Grid(name="tiny", dataset="synthetic", l2=1e-2, algorithms=("fedac-i", "mb-sgd"),
    ...             workers=(4,), local_steps=(8,), steps=16, eta=(0.1, 0.5))
    >>> with TemporaryDirectory() as folder, Store(folder, create=True) as store:
    ...     first, second = run(grid, store), run(grid, store)
    >>> first.new, second.new, second.before
    (4, 0, 4)
    """
    task = prepare(grid)
    f_star = optimum(task.objective).value
    keys = tuple(config.key for group in task.groups for config in group.configs)
    progress = _Progress(on_event, plan(grid, store), task.cost, store.best(keys))
    before, new = progress.done, 0
    todo = task.groups
    # Leave a group to the sweep that is running it; the second pass waits for that sweep, or takes
    # over if it died.
    try:
        for wait in (False, True):
            others = []
            for group in todo:
                with store.claim(group.configs[0].key, wait=wait) as ours:
                    if not ours:
                        others.append(group)
                        continue
                    missing = store.missing(group.configs)
                    progress.start(group)
                    how = {"on_progress": progress.advance, "on_compile": on_compile}
                    new += store.add(_run_group(task, f_star, missing, **how))
                progress.finish(group, store.best(config.key for config in missing))
            todo = others
    except KeyboardInterrupt:
        raise SweepInterrupted(len(keys) - plan(grid, store).missing, len(keys)) from None
    beyond = sum(eta * task.objective.smoothness > 1 + 1e-12 for eta in grid.eta)
    return Summary(new, before, beyond, keys)


def plan(grid: Grid, store: Store | None) -> Plan:
    """List what a sweep has to do; without a store, everything."""
    listed = [group.configs for group in prepare(grid).groups]
    left = listed if store is None else [tuple(store.missing(configs)) for configs in listed]
    return Plan(sum(map(len, listed)), tuple(configs for configs in left if configs))


def measure_speed(grid: Grid, plan: Plan) -> float:
    """Run a few short groups of a plan; return how many times longer they take than predicted."""
    task = prepare(grid)
    predicted = np.cumsum([task.cost.seconds(configs) for configs in plan.left])
    # Each stands for the same share of the predicted time.
    quantiles = predicted[-1] * (np.arange(TRIALS) + 0.5) / TRIALS
    ratios = []
    for configs in (plan.left[place] for place in np.searchsorted(predicted, quantiles)):
        K, T = configs[0].K, configs[0].T
        rounds = T / K * TRIAL_SECONDS / task.cost.seconds(configs)
        first, short = (
            [replace(config, T=min(T, K * count)) for config in configs]
            for count in (1, math.ceil(rounds))
        )
        _run_group(task, 0.0, first)  # compiles
        before = time.perf_counter()
        _run_group(task, 0.0, short)
        ratios.append((time.perf_counter() - before) / task.cost.seconds(short))
    return sum(ratios) / len(ratios)


@lru_cache(maxsize=1)
def prepare(grid: Grid) -> Task:
    """Load the data and list the groups, once for planning, measuring and running."""
    data = load(grid.dataset)
    objective = make_objective(grid.loss, data.X, data.y, l2=grid.l2, intercept=grid.intercept)
    listed = groups(
        grid,
        dataset=data.name,
        data_hash=objective_hash(objective, own=":" in grid.loss),
        rows_hash=rows_hash(data),
        mu=grid.mu or objective.strong_convexity,
    )
    return Task(objective, grid.records(), listed)


def _run_group(
    task: Task, f_star: float, configs: Sequence[Config], **callbacks: Any
) -> list[tuple[Config, Outcome]]:
    """Run some cells of one group, in one call of the engine where they form a rectangle."""
    by_algorithm: dict[str, dict[float, Config]] = {}
    for config in configs:
        by_algorithm.setdefault(config.algorithm, {})[config.eta] = config
    rectangles: dict[tuple[float, ...], list[str]] = {}
    for name, row in by_algorithm.items():
        rectangles.setdefault(tuple(row), []).append(name)
    results = []
    for etas, names in rectangles.items():
        first = by_algorithm[names[0]][etas[0]]
        with warnings.catch_warnings():
            # Tuning tries too large step sizes as well; `Summary.beyond` counts them.
            warnings.simplefilter("ignore", StepSizeWarning)
            result = simulate(
                task.objective,
                [task.algorithms[name] for name in names],
                M=first.M,
                K=first.K,
                T=first.T,
                eta=etas,
                mu=first.mu,
                seed=first.seed,
                record_every=first.record_every,
                precision=first.precision,
                **callbacks,
            )
        for one in result.runs:
            outcome = Outcome(
                status=one.status,
                steps=tuple(one.steps.tolist()),
                losses=tuple(one.loss.tolist()),
                f_star=f_star,
                megabytes_per_worker=one.megabytes_per_worker,
                n_samples=task.objective.n_samples,
                n_features=task.objective.dim,
                seconds=result.seconds / len(result.runs),
            )
            results.append((by_algorithm[one.algorithm][one.eta], outcome))
    return results


class _Progress:
    """Counts what is done and reports it as events."""

    def __init__(
        self, on_event: Callable[[Event], object], plan: Plan, cost: Cost, best: Best | None
    ) -> None:
        self.on_event = on_event
        self.cells, self.done = plan.cells, plan.cells - plan.missing
        self.cost, self.total = cost, plan.seconds(cost)
        self.left = {_place(configs[0]): configs for configs in plan.left}
        self.best = best
        self.finished = 0.0
        self.queries = self.queries_before = 0
        self.group: tuple[Config, ...] = ()
        self.report()

    def start(self, group: Group) -> None:
        """Begin a group."""
        self.group = self.left.get(_place(group), ())
        self.queries_before = self.queries

    def advance(self, queries: int) -> None:
        """Count gradient queries."""
        self.queries += queries
        if time.monotonic() - self.reported > SECONDS_BETWEEN_EVENTS:
            self.report()

    def finish(self, group: Group, best: Best | None) -> None:
        """Count a group that is in the store now, whoever ran it."""
        found = [candidate for candidate in (self.best, best) if candidate is not None]
        self.best = min(found, key=lambda run: run.suboptimality, default=None)
        configs = self.left.pop(_place(group), ())
        if configs:
            self.group = ()
            self.done += len(configs)
            self.finished += self.cost.seconds(configs)
            self.report()

    def report(self) -> None:
        """Send an event."""
        self.reported = time.monotonic()
        finished = self.finished
        if self.group:
            queries = sum(config.M * config.T for config in self.group)
            share = (self.queries - self.queries_before) / queries
            finished += share * self.cost.seconds(self.group)
        self.on_event(
            Event(
                cells=self.cells,
                done=self.done,
                queries=self.queries,
                work=finished / self.total if self.left else 1.0,
                best=self.best,
            )
        )


def _place(of: Group | Config) -> tuple[int, int, int]:
    return of.M, of.K, of.seed
