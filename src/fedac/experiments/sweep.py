"""The sweep: runs what a store lacks of a grid, group by group.

A group is one call of `simulate` and one transaction. A sweep that was killed at any instant
goes on where it was; two sweeps on one store share the groups between them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedac.data import load
from fedac.errors import StepSizeWarning
from fedac.experiments.cost import Cost
from fedac.experiments.grid import Config, Grid, Group, groups
from fedac.experiments.store import Outcome, Store
from fedac.objectives import LogisticRegression, optimum
from fedac.simulation import simulate

# Nobody reads faster, and a small group makes a thousand rounds in this time.
SECONDS_BETWEEN_EVENTS = 0.1


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
        Runs that this call added, those that it found in the store, and all runs of the grid.
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

    @property
    def others(self) -> int:
        """How many runs of the grid another sweep added meanwhile."""
        return self.cells - self.new - self.before


class SweepInterrupted(KeyboardInterrupt):
    """The user stopped a sweep: `done` of the `cells` runs of its grid are in the store."""

    def __init__(self, done: int, cells: int) -> None:
        super().__init__("sweep interrupted")
        self.done = done
        self.cells = cells


def run(
    grid: Grid, store: Store, *, on_event: Callable[[Event], object] = lambda event: None
) -> Summary:
    """Run what the store lacks of a grid.

    Parameters
    ----------
    grid : Grid
        What to run.
    store : Store
        Opened with ``create=True``.
    on_event : callable
        Called with an `Event` after every group, and a few times a second meanwhile.

    Raises
    ------
    SweepInterrupted
        On Ctrl-C; the groups finished until then are in the store.

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
    objective, listed = prepare(grid)
    f_star = optimum(objective).value
    keys = frozenset(config.key for group in listed for config in group.configs)
    progress = _Progress(on_event, plan(grid, store), _best(store, keys))
    before, new = progress.done, 0
    todo = listed
    # A group that another sweep is at is left to it; the second pass waits for that sweep, or
    # takes over where it died.
    try:
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
    except KeyboardInterrupt:
        raise SweepInterrupted(len(keys) - plan(grid, store).missing, len(keys)) from None
    beyond = sum(eta * objective.smoothness > 1 + 1e-12 for eta in grid.eta)
    return Summary(new, before, len(keys), beyond, keys)


def plan(grid: Grid, store: Store | None) -> Plan:
    """List what a sweep has to do; without a store, everything."""
    objective, listed = prepare(grid)
    cells = sum(len(group.configs) for group in listed)
    left = (group.configs if store is None else store.missing(group.configs) for group in listed)
    return Plan(cells, objective.n_samples, tuple(tuple(configs) for configs in left if configs))


@lru_cache(maxsize=1)
def prepare(grid: Grid) -> tuple[LogisticRegression, list[Group]]:
    """Load the data and list the groups; planning, calibrating and running read them once."""
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
