"""Which actor keeps what a client remembers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NOBODY = -1


class Move(NamedTuple):
    """The memories of some clients go from one actor to another."""

    giver: int
    taker: int
    clients: npt.NDArray[np.int64]


class Owners:
    """The owner of every client's memory.

    Those who take part are in ascending order, and every actor runs a range of them. So only
    clients near the border of a range change their owner.

    Examples
    --------
    >>> owners = Owners(6)
    >>> list(owners.assign(np.array([0, 2, 3, 4]), [0, 2, 4]))
    []
    >>> list(owners.assign(np.array([0, 1, 2, 5]), [0, 2, 4]))
    [Move(giver=0, taker=1, clients=array([2]))]
    """

    def __init__(self, clients: int) -> None:
        self._owner = np.full(clients, NOBODY, np.int16)

    def assign(self, members: npt.NDArray[np.int64], bounds: list[int]) -> Iterator[Move]:
        """Give actor i the members from bounds[i] to bounds[i + 1]; yield what has to move."""
        for taker, (first, last) in enumerate(pairwise(bounds)):
            clients = members[first:last]
            before = self._owner[clients]
            for giver in set(np.unique(before).tolist()) - {NOBODY, taker}:
                yield Move(giver, taker, clients[before == giver])
            self._owner[clients] = taker
