"""Cost model of a sweep: how long a group of runs takes, and how many groups run in parallel."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedac.algorithms import Algorithm
from fedac.federation.federation import taking_part
from fedac.federation.spec import FULL, RunSpec
from fedac.objectives import Objective
from fedac.processes import usable_cores

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


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a group on one thread: the serial part, and the part that threads share."""

    alone: float = 0.0
    shared: float = 0.0

    def seconds(self, threads: int = 1) -> float:
        """Return the time on several threads."""
        return self.alone + self.shared / threads


def predict_cost(
    objective: Objective, algorithms: Mapping[str, Algorithm], runs: Sequence[RunSpec]
) -> Cost:
    """Predict the time for runs of one group; proportions matter more than seconds."""
    run, n = runs[0], objective.n_samples
    K, T = run.K, run.T
    rows = rows_per_step(run, n)
    X = getattr(objective, "X", None)
    nonzeros = objective.dim if X is None else X.size / n
    slower = REFERENCE_ENGINE if getattr(objective, "kernel", None) is None else 1
    row = slower * nonzeros / A9A_NONZEROS  # the cost of a row, compared with a row of a9a
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


def queries(run: Any, n: int) -> int:
    """Return the number of gradients of single rows in a run on n rows, on average over rounds."""
    return round(rows_per_step(run, n) * int(run.T))


def rows_per_step(run: Any, n: int) -> float:
    """Return the rows that all clients of a round use in one step, together."""
    workers = taking_part(run.participation, run.M) or run.M
    if run.batch != FULL:
        return workers * int(run.batch)
    # Without clients all have the same rows, and one stands for all.
    return n * workers / run.M if run.split else n


# Seconds to start a worker process.
START = 1.5


def available_cores() -> int:
    """Return the number of threads of the engine: ``NUMBA_NUM_THREADS``, or all cores."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return usable_cores()


def share_out(cores: int, jobs: int) -> list[int]:
    """Return the number of threads of each job, so that all cores are used once.

    >>> share_out(8, 3), share_out(2, 4)
    ([3, 3, 2], [1, 1, 1, 1])
    """
    return [max(1, cores // jobs + (job < cores % jobs)) for job in range(jobs)]


def best_jobs(costs: Sequence[Cost], cores: int) -> int:
    """Return how many groups to run in parallel for the shortest predicted time.

    >>> best_jobs([Cost(alone=1.0, shared=0.2)] * 20, cores=4)
    4
    >>> best_jobs([Cost(alone=0.1, shared=100.0)] * 5, cores=4)
    1
    """
    most = max(1, min(cores, len(costs)))
    return min(range(1, most + 1), key=lambda jobs: predict_time(costs, share_out(cores, jobs)))


def predict_time(costs: Sequence[Cost], threads: Sequence[int]) -> float:
    """Predict the time of all groups on jobs with these numbers of threads, largest first."""
    start = START if len(threads) > 1 else 0.0
    free = [(start, count) for count in threads]
    heapq.heapify(free)
    for cost in sorted(costs, key=Cost.seconds, reverse=True):
        when, count = heapq.heappop(free)
        heapq.heappush(free, (when + cost.seconds(count), count))
    return max(when for when, _ in free)
