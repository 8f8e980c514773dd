"""The sweep: runs what a store lacks of a grid, group by group.

A group is one call of `simulate` and one transaction. A sweep that was killed at any instant
goes on where it was; two sweeps on one store share the groups between them.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import numpy as np

from fedac.algorithms import get as get_algorithm
from fedac.data import load
from fedac.engine import simulate
from fedac.errors import StepSizeWarning
from fedac.experiments.grid import Config, Grid, Group, groups
from fedac.experiments.store import Outcome, Store
from fedac.objectives import LogisticRegression, optimum

CALIBRATION_SECONDS = 2.0
# Nobody reads faster, and a small group makes a thousand rounds in this time.
SECONDS_BETWEEN_EVENTS = 0.1

Features = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How long a group takes, in seconds.

    What is not measured is as on one machine with a9a: the ratios serve to weigh groups.

    Attributes
    ----------
    group : float
        Of one call of the engine.
    record : float
        Of one loss of one run.
    local : tuple of 3 floats
        Of a round of one algorithm: once, per worker, and per local step of all workers.
    batch : tuple of 3 floats
        Of a step of one algorithm on a whole batch: once, per draw, and per distinct row.
    """

    group: float = 0.025
    record: float = 8e-5
    local: Features = (1.3e-4, 3e-7, 5.5e-8)
    batch: Features = (1.3e-4, 2e-9, 5.5e-8)

    def seconds(self, configs: Sequence[Config], n_samples: int) -> float:
        """Predict the time for some runs of one group."""
        M, K, T = configs[0].M, configs[0].K, configs[0].T
        names = {config.algorithm for config in configs}
        in_batch = {name for name in names if K == 1 or get_algorithm(name).minibatch}
        rounds = len(in_batch) * np.dot(self.batch, _batch_features(M, K, n_samples))
        rounds += len(names - in_batch) * np.dot(self.local, _local_features(M, K))
        records = 1 + math.ceil(T / max(K, configs[0].record_every))
        return float(self.group + len(configs) * records * self.record + T // K * rounds)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep has to do.

    Attributes
    ----------
    cells : int
        Runs of the grid.
    n_samples : int
        Rows of the data.
    left : tuple
        The runs that the store lacks, group by group.
    """

    cells: int
    n_samples: int
    left: tuple[tuple[Config, ...], ...]

    @property
    def missing(self) -> int:
        """How many runs the store lacks."""
        return sum(map(len, self.left))

    @property
    def gradient_queries(self) -> int:
        """M*T for each missing run."""
        return sum(config.M * config.T for configs in self.left for config in configs)

    def seconds(self, cost: Cost) -> float:
        """Predict the time for all that is missing."""
        return sum(cost.seconds(configs, self.n_samples) for configs in self.left)


@dataclass(frozen=True, slots=True)
class Best:
    """The run with the smallest suboptimality."""

    suboptimality: float
    algorithm: str
    eta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """How far a sweep has got.

    Attributes
    ----------
    cells, done : int
        Runs of the grid, and those of them in the store.
    queries : int
        Gradient queries made by this call of `run`.
    work : float
        The share of this call's work that is done, as `Cost` weighs it, from 0 to 1.
    best : Best or None
        The best run of the grid so far.
    """

    cells: int
    done: int
    queries: int
    work: float
    best: Best | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a call of `run` did.

    Attributes
    ----------
    new, before, cells : int
        Runs that this call added, those that it found in the store, and all runs of the grid;
        the rest another sweep added meanwhile.
    beyond : int
        Step sizes above 1/L, where the paper's theorems say nothing.
    keys : frozenset of str
        Of the grid's runs.
    """

    new: int
    before: int
    cells: int
    beyond: int
    keys: frozenset[str]


def run(
    grid: Grid, store: Store, *, on_event: Callable[[Event], object] = lambda event: None
) -> Summary:
    """Run what the store lacks of a grid.

    An interrupt passes through; the groups finished until then are in the store.

    Parameters
    ----------
    grid : Grid
        What to run.
    store : Store
        Opened with ``create=True``.
    on_event : callable
        Called with an `Event` after every group, and a few times a second meanwhile.

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
    objective, listed = _prepare(grid)
    f_star = optimum(objective).value
    keys = frozenset(config.key for group in listed for config in group.configs)
    progress = _Progress(on_event, plan(grid, store), _best(store, keys))
    before, new = progress.done, 0
    todo = listed
    # A group that another sweep is at is left to it; the second pass waits for that sweep, or
    # takes over where it died.
    for wait in (False, True):
        others = []
        for group in todo:
            with store.claim(group.configs[0].key, wait=wait) as ours:
                if not ours:
                    others.append(group)
                    continue
                missing = store.missing(group.configs)
                results = _run_group(objective, f_star, missing, progress.start(group))
                new += store.add(results)
            progress.finish(group, results)
        todo = others
    beyond = sum(eta * objective.smoothness > 1 + 1e-12 for eta in grid.eta)
    return Summary(new, before, len(keys), beyond, keys)


def plan(grid: Grid, store: Store | None) -> Plan:
    """List what a sweep has to do; without a store, everything."""
    objective, listed = _prepare(grid)
    cells = sum(len(group.configs) for group in listed)
    left = (group.configs if store is None else store.missing(group.configs) for group in listed)
    return Plan(cells, objective.n_samples, tuple(tuple(configs) for configs in left if configs))


def calibrate(grid: Grid) -> Cost:
    """Measure for about two seconds how fast this machine is on the data of a grid."""
    objective, _ = _prepare(grid)
    n = objective.n_samples
    # Sizes that take milliseconds, on short rows and on long ones.
    many = max(64, 2**16 // max(1, objective.X.size // n))
    batch = [(8, 1), (many, 1), (4 * min(n, 8 * many), 1)]
    local = []
    several = sorted(K for K in grid.local_steps if K > 1)
    stepwise = [name for name in grid.algorithms if not get_algorithm(name).minibatch]
    if several and stepwise:
        few, most = several[0], several[-1]
        local = [(8, few), (many, few), (max(8, min(many, 64 * many // most)), most)]
    calls: list[tuple[int, float]] = []
    rounds: dict[tuple[int, int], list[float]] = {point: [] for point in (*batch, *local)}
    records: list[float] = []
    end = time.perf_counter() + CALIBRATION_SECONDS
    while time.perf_counter() < end or not calls:
        for (M, K), times in rounds.items():
            names = grid.algorithms if K == 1 else stepwise
            call, one_round = _measure(objective, names, grid.eta, M, K)
            calls.append((len(names) * len(grid.eta), call))
            times.append(one_round)
        _, recorded = _measure(objective, grid.algorithms, grid.eta, *batch[0], record=True)
        records.append((recorded - rounds[batch[0]][-1]) / len(grid.eta))
    speeds = {point: median(times) for point, times in rounds.items()}
    record = max(0.0, median(records))
    measured = Cost(
        # Each call recorded all of its runs at the start and at the end.
        group=max(0.0, median(call - 2 * record * lanes for lanes, call in calls)),
        record=record,
        batch=_fit({_batch_features(M, K, n): speeds[M, K] for M, K in batch}),
    )
    if not local:
        return measured
    return replace(measured, local=_fit({_local_features(M, K): speeds[M, K] for M, K in local}))


@lru_cache(maxsize=1)
def _prepare(grid: Grid) -> tuple[LogisticRegression, list[Group]]:
    """Load the data; planning, calibrating and running a grid read them once."""
    data = load(grid.dataset)
    objective = LogisticRegression(data.X, data.y, l2=grid.l2)
    return objective, groups(grid, dataset=data.name, data_hash=objective.fingerprint())


def _run_group(
    objective: LogisticRegression,
    f_star: float,
    configs: Sequence[Config],
    on_progress: Callable[[int], object],
) -> list[tuple[Config, Outcome]]:
    """Run some cells of one group: one call of the engine, or more if they are no rectangle."""
    by_algorithm: dict[str, dict[float, Config]] = {}
    for config in configs:
        by_algorithm.setdefault(config.algorithm, {})[config.eta] = config
    rectangles: dict[tuple[float, ...], list[str]] = {}
    for name, row in by_algorithm.items():
        rectangles.setdefault(tuple(row), []).append(name)
    results = []
    for etas, names in rectangles.items():
        any_one = by_algorithm[names[0]][etas[0]]
        with warnings.catch_warnings():
            # Tuning means trying too large step sizes as well; `Summary.beyond` counts them.
            warnings.simplefilter("ignore", StepSizeWarning)
            result = simulate(
                objective,
                names,
                M=any_one.M,
                K=any_one.K,
                T=any_one.T,
                eta=etas,
                seed=any_one.seed,
                record_every=any_one.record_every,
                precision=any_one.precision,
                on_progress=on_progress,
            )
        for one in result.runs:
            outcome = Outcome(
                status=one.status,
                steps=tuple(one.steps.tolist()),
                losses=tuple(one.loss.tolist()),
                f_star=f_star,
                megabytes_per_worker=one.megabytes_per_worker,
                n_samples=objective.n_samples,
                n_features=objective.dim,
                seconds=result.seconds / len(result.runs),
            )
            results.append((by_algorithm[one.algorithm][one.eta], outcome))
    return results


class _Progress:
    """Counts what is done and tells it as events."""

    def __init__(self, on_event: Callable[[Event], object], plan: Plan, best: Best | None) -> None:
        self.on_event = on_event
        self.plan = plan
        self.done = plan.cells - plan.missing
        self.best = best
        self.left = {_place(configs[0]): configs for configs in plan.left}
        self.total = plan.seconds(Cost())
        self.behind = 0.0
        self.queries = self.queries_before = 0
        self.group: tuple[Config, ...] = ()
        self.told = 0.0
        self.tell()

    def start(self, group: Group) -> Callable[[int], None]:
        """Turn to a group; return what counts its gradient queries."""
        self.group = self.left.get(_place(group), ())
        self.queries_before = self.queries
        return self.advance

    def advance(self, queries: int) -> None:
        """Count gradient queries."""
        self.queries += queries
        if time.monotonic() - self.told > SECONDS_BETWEEN_EVENTS:
            self.tell()

    def finish(self, group: Group, results: Sequence[tuple[Config, Outcome]]) -> None:
        """Count a group that is in the store now, whoever ran it."""
        for config, outcome in results:
            found = Best(min(outcome.losses) - outcome.f_star, config.algorithm, config.eta)
            if self.best is None or found.suboptimality < self.best.suboptimality:
                self.best = found
        configs = self.left.pop(_place(group), ())
        if configs:
            self.group = ()
            self.done += len(configs)
            self.behind += Cost().seconds(configs, self.plan.n_samples)
            self.tell()

    def tell(self) -> None:
        """Send an event."""
        self.told = time.monotonic()
        behind = self.behind
        if self.group:
            nominal = sum(config.M * config.T for config in self.group)
            share = (self.queries - self.queries_before) / nominal
            behind += share * Cost().seconds(self.group, self.plan.n_samples)
        work = behind / self.total if self.left else 1.0
        self.on_event(
            Event(
                cells=self.plan.cells,
                done=self.done,
                queries=self.queries,
                work=work,
                best=self.best,
            )
        )


def _place(of: Group | Config) -> tuple[int, int, int]:
    return of.M, of.K, of.seed


def _best(store: Store, keys: frozenset[str]) -> Best | None:
    """Return the best of the runs that an earlier sweep left."""
    frame = store.frame()
    ours = frame[frame.key.isin(keys)].sort_values("best_suboptimality")
    rows = zip(ours.best_suboptimality, ours.algorithm, ours.eta, strict=True)
    return next((Best(*row) for row in rows), None)


def _local_features(M: int, K: int) -> Features:
    return (1.0, M, M * K)


def _batch_features(M: int, K: int, n_samples: int) -> Features:
    """Count a batch: once, its draws, and the distinct rows to be expected among them."""
    return (1.0, M * K, -n_samples * math.expm1(-M * K / n_samples))


def _fit(seconds: dict[Features, float]) -> Features:
    """Find the nonnegative coefficients with the smallest relative errors."""
    from scipy.optimize import nnls

    times = np.array(list(seconds.values()))
    coefficients, _ = nnls(np.array(list(seconds)) / times[:, None], np.ones_like(times))
    once, small, large = coefficients.tolist()
    return once, small, large


def _measure(
    objective: LogisticRegression,
    names: Sequence[str],
    etas: Sequence[float],
    M: int,
    K: int,
    *,
    record: bool = False,
) -> tuple[float, float]:
    """Return the time of a call of the engine besides its rounds, and of a round per algorithm.

    With `record`, losses are recorded after every round, and count as part of it.
    """
    rounds = 64 if M == 8 and not record else 4
    ticks: list[tuple[float, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)
        before = time.perf_counter()
        simulate(
            objective,
            names,
            M=M,
            K=K,
            T=rounds * K,
            eta=etas,
            record_every=K if record else rounds * K,
            on_progress=lambda made: ticks.append((time.perf_counter(), made)),
        )
        whole = time.perf_counter() - before
    # From the first tick to the last nothing but rounds happens.
    share = 1 - ticks[0][1] / sum(made for _, made in ticks)
    in_rounds = (ticks[-1][0] - ticks[0][0]) / share
    return whole - in_rounds, in_rounds / rounds / len(names)
