"""A grid with its data loaded: everything that is needed to run its groups."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from fedac.algorithms import Algorithm
from fedac.algorithms.acceleration import is_fedavg
from fedac.data import Clients, Dataset
from fedac.data.holdout import load_with_test
from fedac.data.splits import load_clients
from fedac.errors import NotAcceleratedWarning, StepSizeWarning
from fedac.experiments.grid import Config, Grid, Split, groups
from fedac.experiments.run_key import objective_hash, rows_hash
from fedac.experiments.scheduling import Cost, predict_cost, queries
from fedac.experiments.store import Outcome
from fedac.federation.schedule import Decay
from fedac.objectives import ConvexObjective, optimum
from fedac.objectives.heterogeneity import minimized
from fedac.plugins import make_objective
from fedac.simulation import simulate

# The fields of a group that `simulate` takes as they are.
SETTINGS = (
    "K", "T", "mu", "seed", "record_every", "precision", "participation", "batch", "weighting",
    "wire",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A grid with its data loaded."""

    objective: ConvexObjective
    algorithms: dict[str, Algorithm]  # by the names of the records
    groups: list[tuple[Config, ...]]
    clients: dict[str, Clients]  # by the hash of their split; none for workers
    weighting: str
    test: Dataset | None

    def cost(self, configs: Sequence[Config]) -> Cost:
        """Predict the time for some runs of one group."""
        return predict_cost(self.objective, self.algorithms, configs) if configs else Cost()

    def seconds(self, configs: Sequence[Config]) -> float:
        """Predict the time for some runs of one group on one thread."""
        return self.cost(configs).seconds()

    def queries(self, configs: Iterable[Config]) -> int:
        """Return how many gradients of single rows some runs take."""
        return sum(queries(config, self.objective.n_samples) for config in configs)

    def disguised(self, configs: Iterable[Config]) -> int:
        """Return how many of some runs are FedAvg to their end, though their method is FedAc."""
        return sum(
            is_fedavg(
                self.algorithms[one.algorithm], eta=_last_eta(one), mu=one.mu or one.l2, K=one.K
            )
            for one in configs
        )

    def minima(self) -> dict[str, float]:
        """Return F* by the hash of the split."""
        if self.weighting == "examples":
            return dict.fromkeys(self.clients or [""], optimum(self.objective).value)
        return {
            found: optimum(minimized(self.objective, clients, self.weighting)).value
            for found, clients in self.clients.items()
        }

    def run(
        self,
        configs: Sequence[Config],
        f_star: float,
        *,
        threads: int | None = None,
        on_progress: Callable[[int], object] = lambda queries: None,
        on_compile: Callable[[], object] = lambda: None,
    ) -> list[tuple[Config, Outcome]]:
        """Run some cells of one group, in one call of the engine."""
        cells = {(config.algorithm, config.eta): config for config in configs}
        etas: dict[str, list[float]] = {}
        for name, eta in cells:
            etas.setdefault(name, []).append(eta)
        with warnings.catch_warnings():
            # Tuning tries too large step sizes as well; `Summary` counts them.
            warnings.simplefilter("ignore", StepSizeWarning)
            warnings.simplefilter("ignore", NotAcceleratedWarning)
            result = simulate(
                self.objective,
                [self.algorithms[name] for name in etas],
                **self._settings(configs[0], etas),
                threads=threads,
                on_progress=on_progress,
                on_compile=on_compile,
            )
        results = []
        for one in result.runs:
            outcome = Outcome(
                status=one.status,
                steps=tuple(one.steps.tolist()),
                losses=tuple(one.loss.tolist()),
                test_losses=tuple(one.test_loss.tolist()),
                test_accuracies=tuple(one.test_accuracy.tolist()),
                f_star=f_star,
                megabytes_per_worker=one.megabytes_per_worker,
                n_samples=self.objective.n_samples,
                n_features=self.objective.dim,
                seconds=result.seconds / len(result.runs),
            )
            results.append((cells[one.algorithm, one.eta], outcome))
        return results

    def _settings(self, config: Config, etas: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return what `simulate` takes for a group, one of whose cells is given."""
        settings: dict[str, Any] = {name: getattr(config, name) for name in SETTINGS}
        if config.split:
            settings["clients"] = self.clients[config.split_hash]
        else:
            settings["M"] = config.M
        settings["eta"] = {
            name: [Decay(eta, config.decay) if config.decay else eta for eta in of_one]
            for name, of_one in etas.items()
        }
        return settings | {"test": self.test}


def _last_eta(config: Config) -> float:
    last = config.T // config.K - 1
    return Decay(config.eta, config.decay).at(last) if config.decay else config.eta


@lru_cache(maxsize=1)
def prepare(grid: Grid) -> Task:
    """Load the data and list the groups, once for planning, measuring and running."""
    data, test = load_with_test(grid.dataset, grid.test)
    return make_task(grid, data, test)


def make_task(grid: Grid, data: Dataset, test: Dataset | None = None) -> Task:
    """List the groups of a grid on data that are loaded."""
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
