"""The sweep: runs what a store lacks of a grid, group by group.

A group is one call of `simulate` and one transaction. A sweep that was killed at any time
continues where it was; two sweeps on one store share the groups between them.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from fedac.algorithms import Algorithm
from fedac.data import Clients, Dataset
from fedac.decay import Decay
from fedac.errors import StepSizeWarning
from fedac.experiments.cost import predict_seconds, queries
from fedac.experiments.federations import load_clients
from fedac.experiments.grid import Config, Grid, Split, groups
from fedac.experiments.identity import objective_hash, rows_hash
from fedac.experiments.plugins import make_objective
from fedac.experiments.store import Best, Outcome, Store
from fedac.experiments.testsets import load_with_test
from fedac.objectives import Objective, optimum
from fedac.objectives.over_clients import minimized
from fedac.simulation import simulate

# Nobody reads faster, and a small group makes a thousand rounds in this time.
SECONDS_BETWEEN_REPORTS = 0.1
# How many groups `measure_speed` runs, and about how long each.
TRIALS = 4
TRIAL_SECONDS = 0.4
# The fields of a group that `simulate` takes as they are.
SETTINGS = (
    "K", "T", "mu", "seed", "record_every", "precision", "participation", "batch", "weighting",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A grid with its data loaded."""

    objective: Objective
    algorithms: dict[str, Algorithm]  # by the names of the records
    groups: list[tuple[Config, ...]]
    clients: dict[str, Clients]  # by the hash of their split; none for workers
    weighting: str
    test: Dataset | None

    def seconds(self, configs: Sequence[Config]) -> float:
        """Predict the time for some runs of one group."""
        return predict_seconds(self.objective, self.algorithms, configs) if configs else 0.0

    def queries(self, configs: Iterable[Config]) -> int:
        """Return how many gradients of single rows some runs take."""
        return sum(queries(config, self.objective.n_samples) for config in configs)

    def minima(self) -> dict[str, float]:
        """Return F* by the hash of the split."""
        if self.weighting == "examples":
            return dict.fromkeys(self.clients or [""], optimum(self.objective).value)
        return {
            found: optimum(minimized(self.objective, clients, self.weighting)).value
            for found, clients in self.clients.items()
        }


@dataclass(slots=True)
class Progress:
    """How far a sweep is."""

    cells: int  # runs of the grid
    done: int  # those in the store
    best: Best | None  # of the grid so far
    queries: int = 0  # gradient queries made by this call of `run`
    work: float = 0.0  # the share of this call's work that is done, as `Task.seconds` weighs it


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a call of `run`."""

    new: int  # runs that this call added
    before: int  # runs that it found in the store
    beyond: int  # step sizes above 1/L, which the paper's theorems do not cover
    keys: tuple[str, ...]  # of all runs of the grid, in its order


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
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_compile: Callable[[], object] = lambda: None,
) -> Summary:
    """Run what the store lacks of a grid; Ctrl-C raises `SweepInterrupted`.

    `on_progress` is called after every group and a few times a second, `on_compile` when the
    engine starts to compile.

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
    f_star = task.minima()
    keys = tuple(config.key for configs in task.groups for config in configs)
    planned = plan(grid, store)
    before, new = len(keys) - sum(map(len, planned)), 0
    progress = Progress(len(keys), before, store.best(keys), work=float(before == len(keys)))
    on_progress(progress)
    total = sum(map(task.seconds, planned))
    todo = list(zip(task.groups, planned, strict=True))
    # Leave a group to the sweep that is running it; the second pass waits for that sweep, or takes
    # over if it died.
    try:
        for wait in (False, True):
            others = []
            for configs, left in todo:
                with store.claim(configs[0].key, wait=wait) as ours:
                    if not ours:
                        others.append((configs, left))
                        continue
                    missing = store.missing(configs)
                    work = progress.work + task.seconds(left) / total if left else progress.work
                    advance = _counter(progress, on_progress, task.queries(missing), min(work, 1.0))
                    how = {"on_progress": advance, "on_compile": on_compile}
                    new += store.add(
                        _run_group(task, f_star[configs[0].split_hash], missing, **how)
                    )
                found = store.best(config.key for config in missing)
                progress.best = min(filter(None, (progress.best, found)), default=None)
                if left:
                    progress.done += len(left)
                    progress.work = 1.0 if progress.done == progress.cells else min(work, 1.0)
                    on_progress(progress)
            todo = others
    except KeyboardInterrupt:
        raise SweepInterrupted(len(keys) - sum(map(len, plan(grid, store))), len(keys)) from None
    beyond = sum(eta * task.objective.smoothness > 1 + 1e-12 for eta in grid.eta)
    return Summary(new, before, beyond, keys)


def plan(grid: Grid, store: Store | None) -> list[tuple[Config, ...]]:
    """Return the runs that a store lacks, group by group; without a store, all."""
    listed = prepare(grid).groups
    return listed if store is None else [tuple(store.missing(configs)) for configs in listed]


def measure_speed(grid: Grid, planned: Sequence[Sequence[Config]]) -> float:
    """Run a few short groups of a plan; return how many times longer they take than predicted."""
    task = prepare(grid)
    predicted = np.cumsum([task.seconds(configs) for configs in planned])
    # Each stands for the same share of the predicted time.
    quantiles = predicted[-1] * (np.arange(TRIALS) + 0.5) / TRIALS
    ratios = []
    for configs in (planned[place] for place in np.searchsorted(predicted, quantiles)):
        K, T = configs[0].K, configs[0].T
        rounds = math.ceil(T / K * TRIAL_SECONDS / task.seconds(configs))
        short = [replace(config, T=min(T, K * rounds)) for config in configs]
        _run_group(task, 0.0, [replace(config, T=K) for config in configs])  # compiles
        before = time.perf_counter()
        _run_group(task, 0.0, short)
        ratios.append((time.perf_counter() - before) / task.seconds(short))
    return sum(ratios) / len(ratios)


@lru_cache(maxsize=1)
def prepare(grid: Grid) -> Task:
    """Load the data and list the groups, once for planning, measuring and running."""
    data, test = load_with_test(grid.dataset, grid.test)
    objective = make_objective(grid.loss, data.X, data.y, l2=grid.l2, intercept=grid.intercept)
    kinds = () if grid.workers else product(grid.split or ("iid",), grid.clients or (None,))
    federations = [load_clients(data, N, by, grid.split_seed) for by, N in kinds]
    splits = [Split(len(each), each.how, each.fingerprint()) for each in federations]
    listed = groups(
        grid,
        dataset=data.name,
        data_hash=objective_hash(objective, own=":" in grid.loss),
        rows_hash=rows_hash(data),
        mu=grid.mu or objective.strong_convexity,
        splits=splits,
        test=test.name if test else "",
        test_hash=rows_hash(test) if test else "",
    )
    clients = {split.hash: each for split, each in zip(splits, federations, strict=True)}
    return Task(objective, grid.records(), listed, clients, grid.weighting, test)


def _run_group(
    task: Task, f_star: float, configs: Sequence[Config], **callbacks: Any
) -> list[tuple[Config, Outcome]]:
    """Run some cells of one group: one call of the engine for algorithms with the same etas."""
    if not configs:
        return []
    first = configs[0]
    cells = {(config.algorithm, config.eta): config for config in configs}
    etas: dict[str, tuple[float, ...]] = {}
    for name, eta in cells:
        etas[name] = (*etas.get(name, ()), eta)
    results = []
    for shared in dict.fromkeys(etas.values()):
        algorithms = [task.algorithms[name] for name in etas if etas[name] == shared]
        settings: dict[str, Any] = {name: getattr(first, name) for name in SETTINGS}
        if first.split:
            settings["clients"] = task.clients[first.split_hash]
        else:
            settings["M"] = first.M
        falling = [Decay(eta, first.decay) for eta in shared] if first.decay else shared
        with warnings.catch_warnings():
            # Tuning tries too large step sizes as well; `Summary.beyond` counts them.
            warnings.simplefilter("ignore", StepSizeWarning)
            result = simulate(
                task.objective, algorithms, eta=falling, test=task.test, **settings, **callbacks
            )
        for one in result.runs:
            outcome = Outcome(
                status=one.status,
                steps=tuple(one.steps.tolist()),
                losses=tuple(one.loss.tolist()),
                test_losses=tuple(one.test_loss.tolist()),
                test_accuracies=tuple(one.test_accuracy.tolist()),
                f_star=f_star,
                megabytes_per_worker=one.megabytes_per_worker,
                n_samples=task.objective.n_samples,
                n_features=task.objective.dim,
                seconds=result.seconds / len(result.runs),
            )
            results.append((cells[one.algorithm, one.eta], outcome))
    return results


def _counter(
    progress: Progress, report: Callable[[Progress], object], total: int, end: float
) -> Callable[[int], None]:
    """Return a function that counts `total` gradient queries, after which `work` is `end`."""
    start, made = progress.work, 0
    reported = time.monotonic()

    def advance(more: int) -> None:
        nonlocal made, reported
        made += more
        progress.queries += more
        progress.work = min(start + (end - start) * made / total, end)
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            report(progress)

    return advance
