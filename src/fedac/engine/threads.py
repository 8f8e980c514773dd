"""Threads that share fixed strands of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count as counter
from itertools import pairwise
from typing import Self

from fedac.objectives.base import Array

# Work with fewer steps than this is done before another thread would be awake.
WORTH_A_THREAD = 8192
# Several parts a thread even out their speed; short ones let a progress bar move and an
# interrupt through.
PARTS_PER_THREAD = 8
LARGEST_PART = 2**21


def sum_strands(total: Array) -> Array:
    """Add the totals of all strands in their order.

    NumPy's own sum pairs them up where a strand is a single number: a lane alone would then
    differ in the last digit from the same lane among others.
    """
    summed: Array = total[0].copy()
    for strand in total[1:]:
        summed += strand
    return summed


class Threads:
    """Runs tasks over ranges of strands, with the help of other threads where that pays."""

    def __init__(self, count: int) -> None:
        self.count = count
        # The calling thread works too.
        self._helpers = ThreadPoolExecutor(max(1, count - 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._helpers.shutdown(cancel_futures=True)

    def run(
        self,
        task: Callable[[int, int], object],
        *,
        strands: int,
        work: int,
        on_done: Callable[[int, int], object] = lambda first, last: None,
    ) -> None:
        """Call ``task(first, last)`` for ranges that cover all strands; wait for all of them.

        `on_done` is told every range that has been finished, by the calling thread.
        """
        parts = max(self.count * PARTS_PER_THREAD if self.count > 1 else 1, work // LARGEST_PART)
        parts = 1 if work < WORTH_A_THREAD else min(parts, strands)
        ranges = list(pairwise(strands * part // parts for part in range(parts + 1)))
        self._share(task, ranges, on_done)

    def _share(
        self,
        task: Callable[[int, int], object],
        ranges: list[tuple[int, int]],
        on_done: Callable[[int, int], object],
    ) -> None:
        finished: deque[tuple[int, int]] = deque()
        part = counter()  # whoever is free takes the next part

        def help_out(report: Callable[[], object] = lambda: None) -> None:
            while (mine := next(part)) < len(ranges):
                task(*ranges[mine])
                finished.append(ranges[mine])
                report()

        def report() -> None:
            while finished:
                on_done(*finished.popleft())

        helpers = [self._helpers.submit(help_out) for _ in range(min(self.count, len(ranges)) - 1)]
        try:
            help_out(report)
        except BaseException:
            part = counter(len(ranges))  # nobody starts another one
            raise
        finally:
            for helper in helpers:
                helper.result()
        report()
