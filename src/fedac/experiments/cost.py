"""What a sweep costs: how long a group of runs takes, by a model of the engine.

The progress bar weighs groups by it, and ``fedac sweep --dry-run`` predicts the time with it.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from fedac.algorithms import Algorithm
from fedac.errors import SlowEngineWarning, StepSizeWarning
from fedac.experiments.grid import Config, Grid
from fedac.objectives import Objective
from fedac.simulation import simulate

CALIBRATION_SECONDS = 2.0
# Nonzeros per row and rows of a9a, on which the typical costs were measured.
A9A_NONZEROS, A9A_ROWS = 14, 32_561
# How much slower the reference engine is, roughly, for objectives that the fast one cannot run.
REFERENCE_ENGINE = 100

Features = tuple[float, float, float]
Algorithms = Mapping[str, Algorithm]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How long a group takes, in seconds.

    The defaults are those of one machine with a9a.

    Attributes
    ----------
    algorithms : mapping
        The records by their names.
    n_samples : int
        Rows of the data.
    group : float
        One call of the engine.
    record : float
        One loss of one run.
    local : tuple of 3 floats
        A round of one algorithm: constant, per worker, and per local step of all workers.
    batch : tuple of 3 floats
        A step of one algorithm on a whole batch: constant, per draw, and per distinct row.
    """

    algorithms: Algorithms
    n_samples: int
    group: float = 0.025
    record: float = 8e-5
    local: Features = (1.3e-4, 3e-7, 5.5e-8)
    batch: Features = (1.3e-4, 2e-9, 5.5e-8)

    def seconds(self, configs: Sequence[Config]) -> float:
        """Predict the time for some runs of one group."""
        M, K, T = configs[0].M, configs[0].K, configs[0].T
        names = {config.algorithm for config in configs}
        in_batch = {name for name in names if K == 1 or self.algorithms[name].minibatch}
        rounds = len(in_batch) * np.dot(self.batch, _batch_features(M, K, self.n_samples))
        rounds += len(names - in_batch) * np.dot(self.local, _local_features(M, K))
        records = 1 + math.ceil(T / max(K, configs[0].record_every))
        return float(self.group + len(configs) * records * self.record + T // K * rounds)


def typical(objective: Objective, algorithms: Algorithms) -> Cost:
    """Return the cost on a typical machine, scaled from a9a to the size of these data."""
    cost = Cost(algorithms=algorithms, n_samples=objective.n_samples)
    longer = _nonzeros(objective) / A9A_NONZEROS
    if getattr(objective, "kernel", None) is None:
        longer *= REFERENCE_ENGINE
    local = (*cost.local[:2], cost.local[2] * longer)
    batch = (*cost.batch[:2], cost.batch[2] * longer)
    record = cost.record * longer * objective.n_samples / A9A_ROWS
    return replace(cost, record=record, local=local, batch=batch)


def calibrate(grid: Grid, objective: Objective) -> Cost:
    """Measure for about two seconds how fast this machine is on the data of a grid."""
    n, algorithms = objective.n_samples, grid.records()
    # Sizes that take milliseconds, whether rows are short or long.
    many = max(64, 2**16 // _nonzeros(objective))
    batch = [(8, 1), (many, 1), (4 * min(n, 8 * many), 1)]
    local = []
    several = sorted(K for K in grid.local_steps if K > 1)
    everything = list(algorithms.values())
    stepwise = [algorithm for algorithm in everything if not algorithm.minibatch]
    if several and stepwise:
        few, most = several[0], several[-1]
        local = [(8, few), (many, few), (max(8, min(many, 64 * many // most)), most)]
    calls: list[tuple[int, float]] = []
    rounds: dict[tuple[int, int], list[float]] = {point: [] for point in (*batch, *local)}
    records: list[float] = []
    end = time.perf_counter() + CALIBRATION_SECONDS
    while time.perf_counter() < end or not calls:
        for (M, K), times in rounds.items():
            chosen = everything if K == 1 else stepwise
            call, one_round = _measure(grid, objective, chosen, M, K)
            calls.append((len(chosen) * len(grid.eta), call))
            times.append(one_round)
        _, recorded = _measure(grid, objective, everything, *batch[0], record=True)
        records.append((recorded - rounds[batch[0]][-1]) / len(grid.eta))
    speeds = {point: median(times) for point, times in rounds.items()}
    record = max(0.0, median(records))
    measured = Cost(
        algorithms=algorithms,
        n_samples=n,
        # Each call recorded all of its runs at the start and at the end.
        group=max(0.0, median(call - 2 * record * lanes for lanes, call in calls)),
        record=record,
        batch=_fit({_batch_features(M, K, n): speeds[M, K] for M, K in batch}),
    )
    if not local:
        return measured
    return replace(measured, local=_fit({_local_features(M, K): speeds[M, K] for M, K in local}))


def _nonzeros(objective: Objective) -> int:
    """Return the nonzeros per row, which a step costs; the columns where there are no rows."""
    X = getattr(objective, "X", None)
    return objective.dim if X is None else max(1, X.size // objective.n_samples)


def _local_features(M: int, K: int) -> Features:
    return (1.0, M, M * K)


def _batch_features(M: int, K: int, n_samples: int) -> Features:
    """Return what a batch costs: a constant, its draws, and the distinct rows expected in it."""
    return (1.0, M * K, -n_samples * math.expm1(-M * K / n_samples))


def _fit(seconds: dict[Features, float]) -> Features:
    """Find the nonnegative coefficients with the smallest relative errors."""
    from scipy.optimize import nnls

    times = np.array(list(seconds.values()))
    coefficients, _ = nnls(np.array(list(seconds)) / times[:, None], np.ones_like(times))
    constant, small, large = coefficients.tolist()
    return constant, small, large


def _measure(
    grid: Grid,
    objective: Objective,
    algorithms: Sequence[Algorithm],
    M: int,
    K: int,
    *,
    record: bool = False,
) -> tuple[float, float]:
    """Return the time of a call of the engine besides its rounds, and of a round per algorithm.

    With `record`, the loss is recorded after every round, as part of it.
    """
    rounds = 64 if M == 8 and not record else 4
    ticks: list[tuple[float, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)
        warnings.simplefilter("ignore", SlowEngineWarning)
        before = time.perf_counter()
        simulate(
            objective,
            algorithms,
            M=M,
            K=K,
            T=rounds * K,
            eta=grid.eta,
            mu=grid.mu,
            precision=grid.precision,
            record_every=K if record else rounds * K,
            on_progress=lambda made: ticks.append((time.perf_counter(), made)),
        )
        whole = time.perf_counter() - before
    # Between the first tick and the last there are only rounds.
    share = 1 - ticks[0][1] / sum(made for _, made in ticks)
    in_rounds = (ticks[-1][0] - ticks[0][0]) / share
    return whole - in_rounds, in_rounds / rounds / len(algorithms)
