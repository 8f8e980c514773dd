"""What a sweep costs: how long a group of runs takes, by a model fitted to this machine.

The progress bar weighs groups by it; ``fedac sweep --dry-run`` predicts the time with what
`calibrate` measures.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from fedac.algorithms import get as get_algorithm
from fedac.errors import StepSizeWarning
from fedac.experiments.grid import Config, Grid
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

CALIBRATION_SECONDS = 2.0

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


def calibrate(grid: Grid, objective: LogisticRegression) -> Cost:
    """Measure for about two seconds how fast this machine is on the data of a grid."""
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
