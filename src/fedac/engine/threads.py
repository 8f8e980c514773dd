"""Threads that share fixed strands of work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from typing import Self

from threadpoolctl import threadpool_limits

# Work with fewer steps than this is done before another thread would be awake.
WORTH_A_THREAD = 8192
# Several parts a thread even out their speed; short ones let a progress bar move and an
# interrupt through.
PARTS_PER_THREAD = 4
LARGEST_PART = 2**21


class Threads:
    """Runs tasks over ranges of strands, in other threads where that pays.

    The threads are ours alone: a matrix product inside a task gets one, so that it neither
    competes with the other tasks nor sums in an order of its own.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        self._blas = threadpool_limits(1, user_api="blas")
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._blas.restore_original_limits()

    def run(
        self,
        task: Callable[[int, int], object],
        *,
        strands: int,
        work: int,
        on_done: Callable[[float], object] = lambda share: None,
    ) -> None:
        """Call ``task(first, last)`` for ranges that cover all strands; wait for all of them.

        `on_done` is told the share of the work of every range that has been finished.
        """
        parts = max(self.count * PARTS_PER_THREAD if self.count > 1 else 1, work // LARGEST_PART)
        if parts == 1 or work < WORTH_A_THREAD:
            task(0, strands)
            on_done(1.0)
            return
        parts = min(parts, strands)
        bounds = [strands * part // parts for part in range(parts + 1)]
        ranges = {
            self._pool.submit(task, first, last): (last - first) / strands
            for first, last in pairwise(bounds)
        }
        for future in as_completed(ranges):
            future.result()
            on_done(ranges[future])
