# SPDX-License-Identifier: Apache-2.0
"""The sweep: runs the missing runs of a grid, group by group.

A group is one call of the engine and one transaction, so a killed sweep resumes where it stopped,
and two sweeps on one store share the groups. Runners (`fedac.experiments.pool`) execute groups;
only this process writes the store.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedac.cluster import require_address
from fedac.errors import InputError
from fedac.experiments import pool
from fedac.experiments.merge import Shard
from fedac.experiments.pool import Answer, Order, Report, Runner
from fedac.experiments.store import Best, Store
from fedac.experiments.workload import Group, Workload, prepare
from fedac.federation.spec import RunSpec, Spec
from fedac.validate import require_count

# Faster reports are not readable, and a small group makes a thousand rounds in this time.
SECONDS_BETWEEN_REPORTS = 0.1
# Shorter plans are predicted without measuring, which would take as long (seconds).
WORTH_MEASURING = 20.0
# How many groups `measure_speed` runs, and about how long each.
TRIALS = 4
TRIAL_SECONDS = 0.4
# Groups that failed and are named.
NAMED_FAILURES = 3
# A larger number is more likely a typo than a real machine.
MOST_JOBS = 1024


@dataclass(slots=True)
class Progress:
    """Progress of a sweep."""

    cells: int  # runs of the grid
    done: int  # those in the store
    best: Best | None  # of the grid so far
    queries: int = 0  # gradient queries made by this call of `run`
    work: float = 0.0  # the share of this call's work that is done, as `Workload.seconds` weighs it
    running: dict[str, int] = field(default_factory=dict)  # groups by node of a cluster


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a call of `run`."""

    new: int  # runs that this call added
    before: int  # runs that it found in the store
    beyond: int  # step sizes above 1/L, which the paper's theorems do not cover
    disguised: int  # runs of FedAc that are FedAvg: `Workload.disguised`
    keys: tuple[str, ...]  # of all runs of the grid, or of the shard, in its order


class SweepInterrupted(KeyboardInterrupt):
    """The user stopped a sweep: `done` of the `cells` runs of its grid are in the store."""

    def __init__(self, done: int, cells: int) -> None:
        super().__init__("sweep interrupted")
        self.done = done
        self.cells = cells


class GroupsFailedError(RuntimeError):
    """Some groups of a sweep could not be run; all others are in the store."""


def run(grid: Spec, store: Store, *, shard: Shard | None = None, **where: Any) -> Summary:
    """Load the data of a grid and run the runs that the store does not have yet.

    `shard` is the part of the grid to run (default: all of it); `where` are the keywords of
    `run_groups`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fedac.experiments.grid import make_grid
    >>> grid = make_grid(dataset="synthetic", l2=1e-2, algorithms=["fedac-i", "mb-sgd"],
    ...                  workers=4, local_steps=8, steps=16, eta=[0.1, 0.5])
    >>> with TemporaryDirectory() as folder, Store(folder, create=True) as store:
    ...     first, second = run(grid, store), run(grid, store)
    >>> first.new, second.new, second.before
    (4, 0, 4)
    """
    task, groups = prepare(grid)
    return run_groups(task, select(task, groups, shard), store, **where)


def run_groups(
    task: Workload,
    groups: Sequence[Group],
    store: Store,
    *,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    **where: Any,
) -> Summary:
    """Run the runs of some groups that the store lacks; Ctrl-C raises `SweepInterrupted`.

    Parameters
    ----------
    task : Workload
        The data of the runs.
    groups : sequence of Group
        The runs.
    store : Store
        Where runs are kept; opened with ``create=True``.
    on_progress : callable
        Called with a `Progress` after every group and a few times a second.
    where
        ``jobs``: parallel groups, in processes that share the cores. Default: the number that uses
        this machine best. 1: in this process, on all cores. ``on="ray"``: run groups as tasks of a
        Ray cluster instead, ``ray_address`` being its address (default: ``RAY_ADDRESS``, else a
        Ray on this machine). ``on_compile()`` is called when the engine starts to compile.

    Raises
    ------
    GroupsFailedError
        If groups could not be run, when all others are in the store; an `InputError` if the input
        was to blame.
    """
    groups = with_backend(task, groups, store)
    planned = [tuple(store.missing(runs)) for runs in groups]
    keys = tuple(run.key for runs in groups for run in runs)
    before = len(keys) - sum(map(len, planned))
    sweep = _Sweep(task, store, planned, Progress(len(keys), before, store.best(keys)), on_progress)
    try:
        with choose_runner(task, planned, sweep.advance, **where) as runner:
            sweep.run(groups, runner)
    except KeyboardInterrupt:
        left = sum(len(store.missing(runs)) for runs in groups)
        raise SweepInterrupted(len(keys) - left, len(keys)) from None
    sweep.raise_failures()
    etas = {run.eta for runs in groups for run in runs}
    L = getattr(task.objective, "smoothness", 0.0)
    beyond = sum(eta * L > 1 + 1e-12 for eta in etas)
    return Summary(sweep.new, before, beyond, sum(map(task.disguised, groups)), keys)


def with_backend(task: Workload, groups: Sequence[Group], store: Store) -> Sequence[Group]:
    """Return the groups with the back end that all runs of a network use, so that they compare.

    The user's choice; else the back end of the network's runs in the store; else the faster one.
    """
    if not task.objective.is_network or not groups or groups[0][0].backend is not None:
        return groups
    chosen = store.backend_of(groups[0][0].data_hash)
    if chosen is None:
        chosen = task.faster_backend(max(groups, key=task.seconds))
    return [tuple(replace(run, backend=chosen) for run in runs) for runs in groups]


def choose_runner(
    task: Workload,
    planned: Sequence[Group],
    report: Report,
    *,
    jobs: int | None = None,
    on: str | None = None,
    ray_address: str | None = None,
    on_compile: Callable[[], object] = lambda: None,
) -> Runner:
    """Return where to run what is planned."""
    require_where(jobs, on, ray_address)
    costs = [task.cost(runs) for runs in planned if runs]
    if on is not None:
        from fedac.experiments.ray_pool import OnRay

        return OnRay(task, costs, ray_address, report, on_compile)
    cores = pool.available_cores()
    threads = pool.share_out(cores, pool.best_jobs(costs, cores) if jobs is None else jobs)
    if len(threads) == 1:
        return pool.InThisProcess(task, threads[0], report, on_compile)
    return pool.InProcesses(task, threads[: max(1, len(costs))], report, on_compile)


def require_where(jobs: int | None, on: str | None, ray_address: str | None) -> None:
    """Raise InputError for options that contradict each other."""
    if on not in (None, "ray"):
        raise InputError(f"on must be 'ray', or omitted to run on this machine; got '{on}'")
    if on is None and ray_address is not None:
        raise InputError("the address of a Ray cluster needs on='ray'")
    if ray_address is not None:
        require_address(ray_address)
    if jobs is None:
        return
    if on is not None:
        raise InputError("jobs sets the processes on this machine: omit it on Ray")
    if require_count("jobs", jobs) > MOST_JOBS:
        raise InputError(f"jobs must be at most {MOST_JOBS}, got {jobs}")


def select(task: Workload, groups: list[Group], shard: Shard | None) -> list[Group]:
    """Return the groups of a shard; all if there is none."""
    if shard is None:
        return groups
    # The seconds of a network are measured, and every machine must come to the same division.
    return shard.select(groups, task.queries if task.objective.is_network else task.seconds)


def predict_seconds(
    task: Workload, planned: Sequence[Sequence[RunSpec]], jobs: int | None = None
) -> float:
    """Predict how long this machine takes for a plan, from the cost model alone."""
    costs = [task.cost(runs) for runs in planned if runs]
    if not costs:
        return 0.0
    cores = pool.available_cores()
    return pool.predict_time(costs, pool.share_out(cores, jobs or pool.best_jobs(costs, cores)))


def measure_speed(task: Workload, planned: Sequence[Sequence[RunSpec]]) -> float:
    """Run a few short groups of a plan; return how many times longer they take than predicted."""
    predicted = np.cumsum([task.seconds(runs) for runs in planned])
    # Each stands for the same share of the predicted time.
    quantiles = predicted[-1] * (np.arange(TRIALS) + 0.5) / TRIALS
    ratios = []
    for runs in (planned[place] for place in np.searchsorted(predicted, quantiles)):
        K, T = runs[0].K, runs[0].T
        rounds = math.ceil(T / K * TRIAL_SECONDS / task.seconds(runs))
        short = [replace(run, steps=min(T, K * rounds)) for run in runs]
        task.run([replace(run, steps=K) for run in runs], 0.0)  # compiles
        before = time.perf_counter()
        task.run(short, 0.0, threads=1)
        ratios.append((time.perf_counter() - before) / task.seconds(short))
    return sum(ratios) / len(ratios)


@dataclass(slots=True)
class _Running:
    """A group that is running."""

    queries: int  # in all
    claim: ExitStack
    made: int = 0
    node: str = ""


class _Sweep:
    """The state of `run_groups`: groups that are running, stored, failed, or another sweep's."""

    def __init__(
        self,
        task: Workload,
        store: Store,
        planned: Sequence[Group],
        progress: Progress,
        on_progress: Callable[[Progress], object],
    ) -> None:
        self.task = task
        self.store = store
        self.planned = planned  # what was missing at first, by the number of the group
        self.progress = progress
        self.on_progress = on_progress
        self.new = 0
        total = sum(map(task.seconds, planned))
        self._weights = [task.seconds(runs) / total if runs else 0.0 for runs in planned]
        self._running: dict[int, _Running] = {}
        self._others: list[int] = []
        self._failed: list[Answer] = []
        self._finished = 0.0  # the weights of all groups that are done
        self._report()

    def run(self, groups: Sequence[Group], runner: Runner) -> None:
        """Run all groups, starting with groups that no other sweep is running."""
        f_star = self.task.minima(groups)
        # The largest first, so that all jobs end at about the same time.
        todo = sorted(range(len(groups)), key=lambda number: -self._weights[number])
        try:
            # The first pass skips groups of other sweeps; the second waits for them, or takes over
            # if the other sweep died.
            for wait in (False, True):
                orders = self._claim(groups, todo, f_star, wait)
                while True:
                    # A group is claimed just before it starts.
                    while len(self._running) < runner.slots and (order := next(orders, None)):
                        runner.start(order)
                    if not self._running:
                        break
                    self._finish(runner.wait())
                todo, self._others = self._others, []
        finally:
            for running in self._running.values():
                running.claim.close()

    def advance(self, node: str, order: Order, queries: int) -> None:
        """Count the gradient queries that a group has made."""
        running = self._running[order.number]
        running.made += queries
        running.node = node
        self.progress.queries += queries
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            self._report()

    def raise_failures(self) -> None:
        """Raise an error if groups failed."""
        if not self._failed:
            return
        named = []
        for answer in self._failed[:NAMED_FAILURES]:
            run = answer.order.runs[0]
            who = f"{run.split}, M={run.M}" if run.split else f"M={run.M}"
            named.append(f"{run.dataset}, {who}, K={run.K}, seed={run.seed}: {answer.error}")
        failed, groups = len(self._failed), len(self.planned)
        message = "; ".join(named + ["..."] * (failed > len(named)))
        if groups > 1:
            others = "; all others are kept" if failed < groups else ""
            message = f"{failed} of {groups} groups failed{others}. {message}"
        error = self._failed[0].error
        if isinstance(error, InputError):
            raise InputError(message) from error
        raise GroupsFailedError(message) from error

    def _claim(
        self,
        groups: Sequence[Group],
        todo: Sequence[int],
        f_star: dict[tuple[str, str], float],
        wait: bool,
    ) -> Iterator[Order]:
        """Claim one group at a time."""
        for number in todo:
            first, claim = groups[number][0], ExitStack()
            if not claim.enter_context(self.store.claim(first.key, wait=wait)):
                self._others.append(number)
            elif missing := tuple(self.store.missing(groups[number])):
                self._running[number] = _Running(self.task.queries(missing), claim)
                yield Order(number, missing, f_star[first.split_hash, first.weighting])
                continue
            else:
                self._count(number)
            claim.close()

    def _finish(self, answer: Answer) -> None:
        """Store the runs of a group."""
        for text, category in answer.warnings:
            warnings.warn(text, category, stacklevel=2)
        number = answer.order.number
        with self._running[number].claim:
            self.new += self.store.add(answer.results, answer.origin)
        del self._running[number]
        if answer.error is not None:
            self._failed.append(answer)
            return
        found = self.store.best(run.key for run in answer.order.runs)
        self.progress.best = min(filter(None, (self.progress.best, found)), default=None)
        self._count(number)

    def _count(self, number: int) -> None:
        """Count a group as done, whoever ran it."""
        if self.planned[number]:
            self.progress.done += len(self.planned[number])
            self._finished += self._weights[number]
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        in_work = sum(
            self._weights[number] * min(1.0, running.made / running.queries)
            for number, running in self._running.items()
        )
        all_done = self.progress.done == self.progress.cells
        self.progress.work = 1.0 if all_done else min(1.0, self._finished + in_work)
        nodes = [running.node for running in self._running.values() if running.node]
        self.progress.running = {node: nodes.count(node) for node in sorted(set(nodes))}
        self.on_progress(self.progress)
