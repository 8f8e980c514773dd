# SPDX-License-Identifier: Apache-2.0
"""A Spec with its data loaded: its runs in groups, how to run a group, and how long that takes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import fingerprint, is_fedavg
from fedac.algorithms.linear import is_linear
from fedac.algorithms.parsing import find_algorithm
from fedac.data import Clients, Dataset
from fedac.data.dataset import REAL
from fedac.data.registry import OnProgress, load_with_test
from fedac.data.splits import as_clients
from fedac.errors import InputError
from fedac.federation.availability import Availability
from fedac.federation.federation import Federation, make_federation, minimized, taking_part
from fedac.federation.link import as_link
from fedac.federation.mode import Mode, require_oversample
from fedac.federation.schedule import Decay
from fedac.federation.spec import FULL, RunSpec, Spec
from fedac.federation.timeline import Work
from fedac.objectives import LeastSquares, Objective, optimum
from fedac.objectives.losses import choose_loss, objective_of, targets_of
from fedac.objectives.metrics import METRICS
from fedac.simulation import Result
from fedac.simulation.engines import start_engine
from fedac.simulation.problem import Problem
from fedac.simulation.simulator import make_problem, run_problem, warn_about

# Runs that share data, federation, K and seed, so draws: one call of the engine runs them all.
Group = tuple[RunSpec, ...]

# The original algorithms, whose runs have no fingerprint in their keys. Never edit a line.
WITHOUT_FINGERPRINT = {
    "fedac-i": "16689dda8adb3293",
    "fedac-ii": "d752af7bacfc6082",
    "fedac-vanilla": "046de6b8dbc410a0",
    "fedavg": "11b97261996c8ac0",
    "fedavg-weighted": "c9ae6193671edd8b",
    "mb-sgd": "a26a1845dbb6576b",
    "mb-ac-sgd": "0e5c90f6879c1230",
}

# Metrics of a test set in addition to its loss and accuracy.
FURTHER_METRICS = tuple(name for name in METRICS if name != "accuracy")

# Seconds on one thread, measured with a9a.
GROUP = 0.015  # one call of the engine
RECORD = 8e-5  # one loss of one run
ROUND = 1.3e-4  # one round of one algorithm
WORKER = 3e-7  # one worker in a round
DRAW = 2e-9  # one row of a batch
GRADIENT = 5.5e-8  # one local step of one worker, or one distinct row of a batch
A9A_NONZEROS, A9A_ROWS = 14, 32_561
WORTH_A_THREAD = 8192  # rows; fewer of them go through on one thread
# Rough factor of the reference engine, for objectives that the fast engine cannot run.
REFERENCE_ENGINE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run."""

    status: Literal["ok", "diverged"]
    steps: tuple[int, ...]  # the trace, up to the divergence if there is one
    losses: tuple[float, ...]
    test_losses: tuple[float, ...] = ()  # on the test set, if there is one
    test_accuracies: tuple[float, ...] = ()
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)  # further metrics, by name
    f_star: float
    bytes_up: int  # sent and received in a round by a client of the round
    bytes_down: int
    minibatch: bool = False  # whether a round is one step, on all its samples
    n_samples: int
    n_features: int
    seconds: float  # the run's share of the engine's time for its group


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a group on one thread: the serial part, and the part that threads share."""

    alone: float = 0.0
    shared: float = 0.0

    def seconds(self, threads: int = 1) -> float:
        """Return the time on several threads."""
        return self.alone + self.shared / threads


@dataclass(frozen=True, slots=True)
class Workload:
    """The objective, the clients, the algorithms and the test set of some runs."""

    objective: Any  # a ConvexObjective or a Network
    loss: str  # its name
    algorithms: dict[str, Algorithm]  # by name
    clients: dict[str, Clients]  # by the hash of their split; none for workers
    splits: dict[tuple[Any, Any], str]  # these hashes, by the Spec's clients and split
    test: Dataset | None
    model: str | None = None  # of a network, by its name
    work: Work = field(default_factory=Work)  # link and availability; a run has its own mode
    engine: str | None = None  # default: the fastest that can run the problem

    def work_of(self, spec: Spec) -> Work | None:
        """Return what decides whose messages count in a run; None in rounds of all clients."""
        found = replace(self.work, mode=Mode.parse(spec.mode))
        return found if found.matters else None

    def cost(self, runs: Sequence[RunSpec]) -> Cost:
        """Predict the time for some runs of one group."""
        return predict_cost(self.objective, self.algorithms, runs) if runs else Cost()

    def seconds(self, runs: Sequence[RunSpec]) -> float:
        """Predict the time for some runs of one group on one thread."""
        return self.cost(runs).seconds()

    def queries(self, runs: Iterable[RunSpec]) -> int:
        """Return how many gradients of single rows some runs take."""
        return sum(queries(run, self.objective.n_samples) for run in runs)

    def disguised(self, runs: Iterable[RunSpec]) -> int:
        """Return how many runs use FedAc but degenerate to FedAvg in every round."""

        def disguised(run: RunSpec) -> bool:
            decay, last = Decay(run.eta, run.decay) if run.decay else None, run.T // run.K - 1
            eta = decay.at(last) if decay else run.eta
            return is_fedavg(self.algorithms[run.algorithm], eta=eta, mu=run.mu or run.l2, K=run.K)

        return 0 if self.objective.is_network else sum(map(disguised, runs))

    def minima(self, groups: Iterable[Group]) -> dict[tuple[str, str], float]:
        """Return F* of all runs, by the hash of their split and their weighting."""
        problems = {(group[0].split_hash, group[0].weighting) for group in groups}
        return {
            (split, weighting): 0.0  # losses of a network are shown as they are
            if self.objective.is_network
            else optimum(minimized(self.objective, self.clients.get(split), weighting)).value
            for split, weighting in problems
        }

    def federation(self, spec: Spec) -> Federation:
        """Return the federation of a run."""
        split = self.splits.get((spec.clients, spec.split), "")
        if isinstance(spec, RunSpec):
            split = spec.split_hash
        return make_federation(self.objective, spec, self.clients.get(split))

    def simulate(
        self, specs: Sequence[Spec], federation: Federation, *, quiet: bool = False, **how: Any
    ) -> Result:
        """Simulate runs that differ in algorithm and step size only, in one call of the engine.

        `how` are keywords of `make_problem` and `run_problem`. `quiet`: no warnings about step
        sizes.
        """
        on_engine = {name: how.pop(name) for name in ("engine", "callbacks") if name in how}
        on_engine.setdefault("engine", self.engine)
        problem = self._problem(specs, federation, **how)
        if not quiet:
            warn_about(problem)
        return run_problem(problem, test=self.test, **on_engine)

    def faster_backend(self, runs: Sequence[RunSpec]) -> str:
        """Return the faster back end for some runs of a network, by timing a few steps."""
        given = self._problem(
            runs, self.federation(runs[0]), on_progress=lambda queries: None,
            on_compile=lambda: None,
        )  # fmt: skip
        _, problem, _ = start_engine(given, None)
        assert problem.backend is not None
        return problem.backend

    def _problem(self, specs: Sequence[Spec], federation: Federation, **how: Any) -> Problem:
        pairs = (
            (
                self.algorithms.get(one.algorithm) or find_algorithm(one.algorithm),
                Decay(one.eta, one.decay) if one.decay else one.eta,
            )
            for one in specs
        )
        require_oversample(specs[0].oversample, [Mode.parse(specs[0].mode)])
        work = self.work_of(specs[0])
        return make_problem(specs[0], self.objective, federation, pairs, work=work, **how)

    def run(
        self,
        runs: Sequence[RunSpec],
        f_star: float,
        *,
        threads: int | None = None,
        on_progress: Callable[[int], object] = lambda queries: None,
        on_compile: Callable[[], object] = lambda: None,
    ) -> list[tuple[RunSpec, Outcome]]:
        """Run some runs of one group, apart those whose algorithm would slow down all others."""
        how: dict[str, Any] = {"on_progress": on_progress, "on_compile": on_compile}
        if not self.objective.is_network:
            slow = [run for run in runs if not is_linear(self.algorithms[run.algorithm])]
            if 0 < len(slow) < len(runs):
                parts = [run for run in runs if run not in slow], slow
                return [
                    one for part in parts for one in self.run(part, f_star, threads=threads, **how)
                ]
        # Tuning tries too large step sizes as well; the sweep's summary counts them.
        result = self.simulate(
            runs, self.federation(runs[0]), quiet=True, backend=runs[0].backend, threads=threads,
            **how,
        )  # fmt: skip
        outcomes = [
            Outcome(
                status=found.status, f_star=f_star, seconds=result.seconds / len(runs),
                steps=tuple(found.steps.tolist()), losses=tuple(found.loss.tolist()),
                test_losses=tuple(found.test_loss.tolist()),
                test_accuracies=tuple(found.test_accuracy.tolist()),
                metrics={name: trace.tolist() for name, trace in found.metrics.items()
                         if name not in ("loss", "accuracy")},
                bytes_up=found.bytes_up, bytes_down=found.bytes_down,
                minibatch=self.algorithms[run.algorithm].minibatch,
                n_samples=self.objective.n_samples, n_features=self.objective.dim,
            )
            for run, found in zip(runs, result.runs, strict=True)
        ]  # fmt: skip
        return list(zip(runs, outcomes, strict=True))


def prepare(
    spec: Spec, on_progress: OnProgress = lambda done, total: None
) -> tuple[Workload, list[Group]]:
    """Load the data of a Spec, and list its runs in groups."""
    data, test = load_data(spec, on_progress)
    task = make_workload(spec, data, test)
    return task, list_groups(spec, task, data)


def load_data(
    spec: Spec, on_progress: OnProgress = lambda done, total: None, source: Any = None
) -> tuple[Dataset, Dataset | None]:
    """Load the data of a Spec, or of `source`, and its test set."""
    source = spec.dataset if source is None else source
    return load_with_test(
        source, spec.test, spec.test_clients, clients=split_of(spec), number=spec.clients,
        seed=spec.split_seed, target=spec.label, client=spec.client, standardize=spec.standardize,
        on_progress=on_progress,
    )  # fmt: skip


def with_own_clients(given: Mapping[str, Any], data: Dataset) -> Mapping[str, Any]:
    """Return options that use the clients of the data, if it has any and no others are given."""
    names = ("workers", "clients", "split", "client")
    if data.clients is None or any(given.get(name) is not None for name in names):
        return given
    return {**given, "client": data.clients}


def split_of(spec: Spec) -> str | None:
    """Return the split whose clients are held out; None if none are, or the data has clients."""
    if spec.test_clients is None or spec.client is not None:
        return None
    if len(spec.several("clients")) > 1 or len(spec.several("split")) > 1:
        raise InputError("clients to hold out need one split: give one number of clients")
    return spec.split or "iid"


def make_workload(spec: Spec, data: Dataset, test: Dataset | None = None) -> Workload:
    """Build what the runs of a Spec need from data that is loaded."""
    loss = network_loss(data) if spec.model else choose_loss(data, spec.loss)
    objective: Any
    if spec.model:
        given: Any = spec.model
        objective = make_network(spec, data, test) if isinstance(given, str) else given
    else:
        objective = objective_of(data, loss, l2=spec.l2, intercept=spec.intercept)
        if test is not None:
            test = replace(test, y=targets_of(test, loss))
    algorithms = {each.name: each for each in map(find_algorithm, spec.several("algorithm"))}
    clients, splits = {}, {}
    if spec.workers is None:
        kinds = product(spec.several("clients") or (None,), spec.several("split") or (None,))
        for N, by in kinds:
            found = data.clients
            if found is None or (spec.client is None and spec.test_clients is None):
                found = as_clients(by or "iid", data, N, spec.split_seed)
            splits[N, by] = found.fingerprint()
            clients[splits[N, by]] = found
    model = spec.model if isinstance(spec.model, str) else None
    work = Work(
        link=as_link(spec.link), availability=Availability.parse(spec.availability),
        oversample=spec.oversample,
    )  # fmt: skip
    return Workload(objective, loss, algorithms, clients, splits, test, model, work)


def network_loss(data: Dataset) -> str:
    """Return the loss of a network: by the kind of targets."""
    if data.text:
        return "next-token"
    return "mse" if data.kind == REAL else "cross-entropy"


def make_network(spec: Spec, data: Dataset, test: Dataset | None) -> Objective:
    """Build the network of a Spec for some data."""
    from fedac.models import Factory, find_model
    from fedac.objectives.network import Network

    def rows(data: Dataset) -> tuple[Any, Any]:
        if data.text:  # the target follows the row
            return np.column_stack([inputs(data), data.y]).astype(np.int64), None
        return inputs(data), targets(data)

    def inputs(data: Dataset) -> Any:
        X = data.X if isinstance(data.X, np.ndarray) else data.X.toarray()
        return X.astype(np.float32).reshape(len(X), *(data.row_shape or (data.n_features,)))

    def targets(data: Dataset) -> Any:
        if data.kind == REAL:
            return data.y.astype(np.float32)
        return np.maximum(data.y, 0).astype(np.int64)  # of two classes, -1 is the first

    assert spec.model is not None
    shape = data.row_shape or (data.n_features,)
    return Network(
        Factory(find_model(spec.model), shape, len(data.classes or ()) or 1),
        *rows(data), loss=network_loss(data), l2=spec.l2,
        test=None if test is None else rows(test),
    )  # fmt: skip


def list_groups(spec: Spec, task: Workload, data: Dataset) -> list[Group]:
    """List the runs of a Spec in groups, those with few clients first."""
    found = {
        "dataset": data.name,
        "model": None if spec.model is None else str(spec.model),
        "label": None,  # like the clients, perhaps an array; the hashes identify both
        "client": None,
        "loss": task.loss,
        "data_hash": objective_hash(task.objective, own=":" in task.loss),
        "rows_hash": rows_hash(data),
        "test": task.test.name if task.test else None,
        "test_hash": _test_hash(task),
        "mu": spec.mu or getattr(task.objective, "strong_convexity", None),
    }
    algorithms = {name: find_algorithm(name) for name in spec.several("algorithm")}
    groups: dict[tuple[Any, ...], dict[str, RunSpec]] = {}
    for one in spec.expand():
        values = vars(one) | found
        values |= {"M": one.workers, "split_hash": "", "steps": one.length or None}
        if one.workers is None:
            split_hash = task.splits[one.clients, one.split]
            clients = task.clients[split_hash]
            values |= {"M": len(clients), "split": clients.how, "split_hash": split_hash}
        if one.epochs is not None:
            K = task.federation(one).mean_steps
            values |= {"local_steps": K, "steps": K * (one.rounds or 1)}
        work = task.work_of(one)
        values |= {"mode": str(Mode.parse(one.mode)), "availability": str(task.work.availability)}
        values |= {"timing": "" if work is None else str(work.link)}
        if Mode.parse(one.mode).kind != "deadline":
            values["oversample"] = 1.0
        # Different numbers may all mean full participation: it is the same run.
        if taking_part(one.participation, values["M"]) is None:
            values["participation"] = 1.0
        shared = tuple(values[name] for name in values if name not in ("algorithm", "eta"))
        algorithm = algorithms[one.algorithm]
        values |= {"algorithm": algorithm.name, "fingerprint": key_fingerprint(algorithm)}
        run = RunSpec(**values)
        groups.setdefault(shared, {})[run.key] = run
    return sorted((tuple(group.values()) for group in groups.values()), key=lambda g: g[0].M)


# Names are not enough for a key: two files may both be called ``train``, a user's file may be
# called ``a9a``, and an algorithm may change under its name.


@lru_cache(maxsize=4096)  # a comparison asks for every run
def key_fingerprint(algorithm: Algorithm) -> str:
    """Return the fingerprint of an algorithm in keys; empty for the original algorithms."""
    found = fingerprint(algorithm)
    return "" if WITHOUT_FINGERPRINT.get(algorithm.name) == found else found


def objective_hash(objective: Objective, *, own: bool) -> str:
    """Return a hash of an objective; for a user's own class it also covers what it computes."""
    if not own:
        return objective.fingerprint()
    gradient = objective.gradient(np.linspace(-1.0, 1.0, objective.dim))
    values = " ".join(f"{value:.9g}" for value in gradient)
    return hashlib.sha256(f"{objective.fingerprint()} {values}".encode()).hexdigest()


def _test_hash(task: Workload) -> str:
    """Return a hash of the test rows; those of a `Network` of the user's are its own."""
    if task.test is not None:
        return rows_hash(task.test)
    return task.objective.test_fingerprint() if task.objective.is_network else ""


def rows_hash(data: Dataset) -> str:
    """Return a hash of the rows and labels alone."""
    return LeastSquares(data.X, data.y).fingerprint()  # l2 = 0, so it depends on nothing else


def predict_cost(
    objective: Objective, algorithms: Mapping[str, Algorithm], runs: Sequence[RunSpec]
) -> Cost:
    """Predict the time for runs of one group; proportions matter more than seconds."""
    run, n = runs[0], objective.n_samples
    if objective.is_network:
        return _network_cost(objective, runs)
    K, T = run.K, run.T
    rows = rows_per_step(run, n)
    X = getattr(objective, "X", None)
    # The coordinates of a row; softmax regression has one per column and class.
    touched = objective.dim if X is None else X.size / n * (objective.dim // X.shape[1])
    slower = REFERENCE_ENGINE if getattr(objective, "kernel", None) is None else 1
    row = slower * touched / A9A_NONZEROS  # the cost of a row, compared with a row of a9a
    gradient = GRADIENT * row
    # A whole batch costs a gradient per distinct row; this is their expected number.
    batch = DRAW * rows * K - gradient * n * math.expm1(-rows * K / n)
    workers = taking_part(run.participation, run.M) or run.M
    local = WORKER * workers + gradient * rows * K
    names = {run.algorithm for run in runs}
    in_batch = sum(
        algorithms[name].minibatch or (K == 1 and algorithms[name].is_plain) for name in names
    )
    rounds = T // K
    steps = rounds * (in_batch * batch + (len(names) - in_batch) * local)
    records = len(runs) * (1 + math.ceil(T / max(K, run.record_every)))
    losses = records * RECORD * row * n / A9A_ROWS
    alone = GROUP + rounds * len(names) * ROUND
    # Short rounds are over before another thread is awake.
    shared = (steps if rows * K >= WORTH_A_THREAD else 0.0) + (losses if n >= WORTH_A_THREAD else 0)
    return Cost(alone + steps + losses - shared, shared)


def _network_cost(network: Any, runs: Sequence[RunSpec]) -> Cost:
    """Predict the time for runs of a network from the time of one step of one client."""
    run, n = runs[0], network.n_samples
    tested = 0 if network.test is None else len(network.test[0])
    rows = n // run.M if run.batch == FULL else int(run.batch)
    step = _step_seconds(network, max(1, rows))
    clients = taking_part(run.participation, run.M) or run.M
    records = 1 + math.ceil(run.T / max(run.K, run.record_every))
    # A record passes all rows forward, at about a third of the cost of a gradient.
    return Cost(len(runs) * step * (run.T * clients + records * (n + tested) / max(1, rows) / 3))


@lru_cache(maxsize=64)
def _step_seconds(network: Any, rows: int) -> float:
    seconds: float = network.step_seconds(rows)
    return seconds


def queries(run: Any, n: int) -> int:
    """Return the number of gradients of single rows in a run on n rows, on average over rounds."""
    return round(rows_per_step(run, n) * int(run.T))


def rows_per_step(run: Any, n: int) -> float:
    """Return the rows that all clients of a round use in one step, together."""
    workers = taking_part(run.participation, run.M) or run.M
    if (mode := Mode.parse(getattr(run, "mode", "rounds"))).kind == "buffer":
        workers = int(mode.number)
    if run.batch != FULL:
        return workers * int(run.batch)
    # Without clients all have the same rows, and one stands for all.
    return n * workers / run.M if run.split else n
