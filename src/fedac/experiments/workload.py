"""A Spec with its data loaded: what its runs need, and the list of these runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import is_fedavg
from fedac.algorithms.parsing import find_algorithm
from fedac.data import Clients, Dataset
from fedac.data.holdout import load_with_test
from fedac.data.registry import OnProgress
from fedac.data.splits import load_clients
from fedac.experiments.run_key import key_fingerprint, objective_hash, rows_hash
from fedac.experiments.scheduling import Cost, predict_cost, queries
from fedac.experiments.store import Outcome
from fedac.federation.federation import Federation, make_federation, taking_part
from fedac.federation.schedule import Decay
from fedac.federation.spec import RunSpec, Spec
from fedac.objectives import ConvexObjective, optimum
from fedac.objectives.heterogeneity import minimized
from fedac.objectives.losses import make_objective
from fedac.simulation import Result
from fedac.simulation.simulator import make_problem, run_problem, warn_about

# Runs that share data, federation, K and seed, so draws: one call of the engine runs them all.
Group = tuple[RunSpec, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The objective, the clients, the algorithms and the test set of some runs."""

    objective: ConvexObjective
    algorithms: dict[str, Algorithm]  # by name
    clients: dict[str, Clients]  # by the hash of their split; none for workers
    splits: dict[
        tuple[int | None, str | None], str
    ]  # these hashes, by the Spec's clients and split
    test: Dataset | None

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
        """Return how many of some runs are FedAvg to their end, though their method is FedAc."""
        return sum(
            is_fedavg(
                self.algorithms[run.algorithm], eta=_last_eta(run), mu=run.mu or run.l2, K=run.K
            )
            for run in runs
        )

    def minimized(self, run: RunSpec) -> ConvexObjective:
        """Return the objective of a run, which depends on how its clients are weighted."""
        return minimized(self.objective, self.clients.get(run.split_hash), run.weighting)

    def minima(self, groups: Iterable[Group]) -> dict[tuple[str, str], float]:
        """Return F* of all runs, by the hash of their split and their weighting."""
        first = {(group[0].split_hash, group[0].weighting): group[0] for group in groups if group}
        return {which: optimum(self.minimized(run)).value for which, run in first.items()}

    def federation(self, spec: Spec) -> Federation:
        """Return the federation of a run."""
        if isinstance(spec, RunSpec):
            found = spec.split_hash
        else:
            found = self.splits.get((spec.clients, spec.split), "")
        return make_federation(self.objective, spec, self.clients.get(found))

    def simulate(
        self, specs: Sequence[Spec], federation: Federation, *, quiet: bool = False, **how: Any
    ) -> Result:
        """Simulate runs that differ in algorithm and step size only, in one call of the engine.

        `how` are keywords of `make_problem` and `run_problem`. `quiet`: do not warn of step sizes.
        """
        on_engine = {name: how.pop(name) for name in ("engine", "callbacks") if name in how}
        pairs = (
            (
                self.algorithms.get(one.algorithm) or find_algorithm(one.algorithm),
                Decay(one.eta, one.decay) if one.decay else one.eta,
            )
            for one in specs
        )
        problem = make_problem(specs[0], self.objective, federation, pairs, **how)
        if not quiet:
            warn_about(problem)
        return run_problem(problem, test=self.test, **on_engine)

    def run(
        self,
        runs: Sequence[RunSpec],
        f_star: float,
        *,
        threads: int | None = None,
        on_progress: Callable[[int], object] = lambda queries: None,
        on_compile: Callable[[], object] = lambda: None,
    ) -> list[tuple[RunSpec, Outcome]]:
        """Run some runs of one group."""
        federation = self.federation(runs[0])
        # Tuning tries too large step sizes as well; the sweep's summary counts them.
        result = self.simulate(
            runs, federation, quiet=True, threads=threads, on_progress=on_progress,
            on_compile=on_compile,
        )  # fmt: skip
        seconds = result.seconds / len(result.runs)
        outcomes = [
            Outcome(
                status=found.status,
                steps=tuple(found.steps.tolist()),
                losses=tuple(found.loss.tolist()),
                test_losses=tuple(found.test_loss.tolist()),
                test_accuracies=tuple(found.test_accuracy.tolist()),
                f_star=f_star,
                bytes_up=found.bytes_up,
                bytes_down=found.bytes_down,
                minibatch=self.algorithms[run.algorithm].minibatch,
                n_samples=self.objective.n_samples,
                n_features=self.objective.dim,
                seconds=seconds,
            )
            for run, found in zip(runs, result.runs, strict=True)
        ]
        return list(zip(runs, outcomes, strict=True))


def _last_eta(run: RunSpec) -> float:
    last = run.T // run.K - 1
    return Decay(run.eta, run.decay).at(last) if run.decay else run.eta


def prepare(
    spec: Spec, on_progress: OnProgress = lambda done, total: None
) -> tuple[Workload, list[Group]]:
    """Load the data of a Spec, and list its runs in groups."""
    data, test = load_with_test(spec.dataset, spec.test, on_progress)
    task = make_workload(spec, data, test)
    return task, list_groups(spec, task, data)


def make_workload(spec: Spec, data: Dataset, test: Dataset | None = None) -> Workload:
    """Build what the runs of a Spec need from data that is loaded."""
    objective = make_objective(spec.loss, data.X, data.y, l2=spec.l2, intercept=spec.intercept)
    algorithms = {each.name: each for each in map(find_algorithm, spec.several("algorithm"))}
    clients, splits = {}, {}
    if spec.workers is None:
        kinds = product(spec.several("clients") or (None,), spec.several("split") or (None,))
        for N, by in kinds:
            found = load_clients(data, N, by or "iid", spec.split_seed)
            splits[N, by] = found.fingerprint()
            clients[splits[N, by]] = found
    return Workload(objective, algorithms, clients, splits, test)


def list_groups(spec: Spec, task: Workload, data: Dataset) -> list[Group]:
    """List the runs of a Spec in groups, those with few clients first."""
    found = {
        "dataset": data.name,
        "data_hash": objective_hash(task.objective, own=":" in spec.loss),
        "rows_hash": rows_hash(data),
        "test": task.test.name if task.test else None,
        "test_hash": rows_hash(task.test) if task.test else "",
        "mu": spec.mu or task.objective.strong_convexity,
    }
    algorithms = {name: find_algorithm(name) for name in spec.several("algorithm")}
    groups: dict[tuple[Any, ...], dict[str, RunSpec]] = {}
    for one in spec.expand():
        values = vars(one) | found
        values |= {"M": one.workers, "split_hash": ""}
        if one.workers is None:
            split_hash = task.splits[one.clients, one.split]
            clients = task.clients[split_hash]
            values |= {"M": len(clients), "split": clients.how, "split_hash": split_hash}
        # Different numbers may all mean full participation: it is the same run.
        if taking_part(one.participation, values["M"]) is None:
            values["participation"] = 1.0
        shared = tuple(values[name] for name in values if name not in ("algorithm", "eta"))
        algorithm = algorithms[one.algorithm]
        values |= {"algorithm": algorithm.name, "fingerprint": key_fingerprint(algorithm)}
        run = RunSpec(**values)
        groups.setdefault(shared, {})[run.key] = run
    return sorted((tuple(group.values()) for group in groups.values()), key=lambda g: g[0].M)
