"""How the cores of a machine are shared out: many groups on one thread each, or few on many."""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence

from fedac.experiments.cost import Cost
from fedac.subprocesses import usable_cores

# Seconds until a new process has imported what it needs and read the data.
START = 1.5


def available_cores() -> int:
    """Return how many threads the engine would use: ``NUMBA_NUM_THREADS``, or all our cores."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return usable_cores()


def share_out(cores: int, jobs: int) -> list[int]:
    """Return the threads of each job: all cores are used, none twice.

    >>> share_out(8, 3), share_out(2, 4)
    ([3, 3, 2], [1, 1, 1, 1])
    """
    return [max(1, cores // jobs + (job < cores % jobs)) for job in range(jobs)]


def best_jobs(costs: Sequence[Cost], cores: int) -> int:
    """Return how many groups to run side by side, by the predicted time of all of them.

    Threads shorten only what they can share, so many small groups go side by side, and a few
    large ones one after the other:

    >>> best_jobs([Cost(alone=1.0, shared=0.2)] * 20, cores=4)
    4
    >>> best_jobs([Cost(alone=0.1, shared=100.0)] * 5, cores=4)
    1
    """
    most = max(1, min(cores, len(costs)))
    return min(range(1, most + 1), key=lambda jobs: predict_time(costs, share_out(cores, jobs)))


def predict_time(costs: Sequence[Cost], threads: Sequence[int]) -> float:
    """Predict when all groups are done by jobs of so many threads each, the largest first."""
    start = START if len(threads) > 1 else 0.0
    free = [(start, count) for count in threads]
    heapq.heapify(free)
    for cost in sorted(costs, key=Cost.seconds, reverse=True):
        when, count = heapq.heappop(free)
        heapq.heappush(free, (when + cost.seconds(count), count))
    return max(when for when, _ in free)
