"""Who takes part in a round, in the form that the kernels need.

The rows of the data are in the order of their clients (`engine` reorders them), so a client's rows
are those between two bounds. Where everybody has all rows and takes all of them at every step, all
are alike: one stands for all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedac.federation.federation import Federation
from fedac.federation.schedule import Span
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.types import Draws
from fedac.simulation.engines.linear.threads import Threads

NOBODY = np.zeros(0, np.int64)


def draws_of(federation: Federation, this_round: Span) -> Draws:
    """Describe the draws of a round."""
    clients, seed = federation.clients, np.uint64(federation.seed)
    r, t, gap = this_round
    if federation.batch is None and clients is None:
        return Draws(seed, r, t, gap, 0, 1, NOBODY, NOBODY, weighted=False)
    everybody = federation.count is None
    return Draws(
        seed=seed,
        r=r,
        t=t,
        gap=gap,
        batch=federation.batch or 0,
        taking_part=federation.taking_part,
        members=NOBODY if everybody else federation.members(this_round.number),
        bounds=NOBODY if clients is None else clients.bounds,
        weighted=not federation.alike,
    )


def numbers(draws: Draws, first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers of the clients at some places among those that take part."""
    return draws.members[first:last] if draws.members.size else np.arange(first, last)


def sizes(
    draws: Draws, first: int, last: int, n: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many of n rows each of the clients at some places has."""
    m = numbers(draws, first, last)
    return draws.bounds[m + 1] - draws.bounds[m] if draws.bounds.size else np.full(len(m), n)


def total_weight(draws: Draws, n: int) -> float:
    """Return what the weights of all who take part add up to."""
    return float(
        sizes(draws, 0, draws.taking_part, n).sum() if draws.weighted else draws.taking_part
    )


def rows_drawn(draws: Draws, n: int) -> int:
    """Return how many rows all clients of a round draw together."""
    if draws.batch:
        return draws.taking_part * draws.gap * draws.batch
    return int(sizes(draws, 0, draws.taking_part, n).sum()) * draws.gap


# --- How often each row is drawn in a round, counted by threads.

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
            steps.count_rows(self._counts[slot], draws, *places)
            slots.append(slot)

        n = self._counts.shape[1]
        self.threads.run(count, first=first, strands=last - first, work=rows_drawn(draws, n))
        counts: npt.NDArray[np.int64] = self._counts.sum(axis=0)
        return counts

    def compile(self, draws: Draws) -> None:
        """Compile the kernel by counting nothing."""
        steps.count_rows(self._counts[0], draws, 0, 0)
