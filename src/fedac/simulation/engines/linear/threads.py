"""Threads that share fixed strands of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count as counter
from itertools import pairwise
from typing import Self

from fedac.validate import Array

# Works on a range of strands, given by its first and the one after its last.
Task = Callable[[int, int], object]

# Work with fewer steps than this is done before another thread would be awake.
WORTH_A_THREAD = 8192
# Parts of at most so many steps let a progress bar move and an interrupt through.
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


def _shrinking(strands: int, sharing: int, largest: int) -> list[tuple[int, int]]:
    """Cut strands into ranges, large ones first, so that all threads end at about the same time.

    >>> _shrinking(16, sharing=2, largest=16)
    [(0, 4), (4, 7), (7, 9), (9, 10), (10, 11), (11, 12), (12, 13), (13, 14), (14, 15), (15, 16)]
    """
    bounds = [0]
    while (left := strands - bounds[-1]) > 0:
        share = left if sharing == 1 else left // (2 * sharing)
        bounds.append(bounds[-1] + max(1, min(share, largest)))
    return list(pairwise(bounds))


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
        task: Task,
        *,
        strands: int,
        work: int,
        first: int = 0,
        on_done: Task = lambda first, last: None,
    ) -> None:
        """Call ``task(first, last)`` for ranges that cover all strands; wait for all of them.

        There are so many strands, counted from `first` on.

        `on_done` is called with every range that is finished, by the calling thread.
        """
        sharing = 1 if work < WORTH_A_THREAD else self.count
        largest = max(1, strands * LARGEST_PART // max(work, 1))
        if sharing == 1 and strands <= largest:
            task(first, first + strands)
            on_done(first, first + strands)
            return
        ranges = [(first + a, first + b) for a, b in _shrinking(strands, sharing, largest)]
        finished: deque[tuple[int, int]] = deque()
        part = counter()  # a thread that is free takes the next part

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
            part = counter(len(ranges))  # no thread starts another one
            raise
        finally:
            for helper in helpers:
                helper.result()
        report()
