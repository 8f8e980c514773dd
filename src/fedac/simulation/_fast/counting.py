"""How often each row is drawn in a round, counted by threads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedac.simulation._fast import kernels
from fedac.simulation._fast.members import rows_drawn
from fedac.simulation._fast.records import Draws
from fedac.simulation._fast.threads import Threads

STRANDS = 16


class RowCounts:
    """Counts the draws of n rows, with memory for every thread."""

    def __init__(self, threads: Threads, n: int) -> None:
        self.threads = threads
        self._counts = np.zeros((threads.count, n), dtype=np.int64)

    def count(self, draws: Draws, first: int = 0, last: int = STRANDS) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn by the clients of some strands, by default all."""
        self._counts[:] = 0
        slots = list(range(self.threads.count))

        def count(a: int, b: int) -> None:
            slot = slots.pop()
            places = (draws.taking_part * strand // STRANDS for strand in (a, b))
            kernels.count_rows(self._counts[slot], draws, *places)
            slots.append(slot)

        n = self._counts.shape[1]
        self.threads.run(count, first=first, strands=last - first, work=rows_drawn(draws, n))
        counts: npt.NDArray[np.int64] = self._counts.sum(axis=0)
        return counts

    def compile(self, draws: Draws) -> None:
        """Compile the kernel by counting nothing."""
        kernels.count_rows(self._counts[0], draws, 0, 0)
