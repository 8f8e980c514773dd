"""Threads that share fixed strands of work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from itertools import pairwise
from typing import Self

from threadpoolctl import ThreadpoolController

# Work with fewer steps than this is done before another thread would be awake.
WORTH_A_THREAD = 8192
# Several parts a thread even out their speed; short ones let a progress bar move and an
# interrupt through.
PARTS_PER_THREAD = 4
LARGEST_PART = 2**21


class Threads:
    """Runs tasks over ranges of strands, in other threads where that pays."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count)

    @cached_property
    def _blas(self) -> ThreadpoolController:
        return ThreadpoolController()  # searches all loaded libraries: once is enough

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(
        self,
        task: Callable[[int, int], object],
        *,
        strands: int,
        work: int,
        matrix_products: bool = False,
        on_done: Callable[[int, int], object] = lambda first, last: None,
    ) -> None:
        """Call ``task(first, last)`` for ranges that cover all strands; wait for all of them.

        Tasks with matrix products get one thread each for them, so that they neither compete
        with other tasks nor sum in an order of their own. `on_done` is told every range that
        has been finished.
        """
        if matrix_products:
            with self._blas.limit(limits=1, user_api="blas"):
                self._run(task, strands, work, on_done)
        else:
            self._run(task, strands, work, on_done)

    def _run(
        self,
        task: Callable[[int, int], object],
        strands: int,
        work: int,
        on_done: Callable[[int, int], object],
    ) -> None:
        parts = max(self.count * PARTS_PER_THREAD if self.count > 1 else 1, work // LARGEST_PART)
        if parts == 1 or work < WORTH_A_THREAD:
            task(0, strands)
            on_done(0, strands)
            return
        parts = min(parts, strands)
        bounds = [strands * part // parts for part in range(parts + 1)]
        ranges = {
            self._pool.submit(task, first, last): (first, last) for first, last in pairwise(bounds)
        }
        for future in as_completed(ranges):
            future.result()
            on_done(*ranges[future])
