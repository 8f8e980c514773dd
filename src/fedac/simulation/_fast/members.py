"""Who takes part in a round, in the form that the kernels need.

The rows of the data are in the order of their clients (`engine` reorders them), so a client's rows
are those between two bounds. Where everybody has all rows and takes all of them at every step, all
are alike: one stands for all.
"""

from __future__ import annotations

import numpy as np

from fedac.simulation._fast.records import Draws
from fedac.simulation.federation import Federation
from fedac.simulation.schedule import Span

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
