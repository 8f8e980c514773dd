"""Costs of a run: rounds, bytes and seconds, computed here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.federation.link import Link
from fedac.validate import Array


class Costs(NamedTuple):
    """Costs before the first round and after each round."""

    rounds: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]  # sent and received by a client that is present in every round
    seconds: Array  # on a link

    @property
    def megabytes(self) -> Array:
        """The bytes in units of 10^6."""
        return self.bytes / 1e6


def run_costs(
    *, bytes_up: int, bytes_down: int, gaps: Sequence[int], link: Link, **timing: Any
) -> Costs:
    """Return the costs of a run.

    `bytes_up` and `bytes_down` are the traffic of a client in a round, `gaps` the lengths of the
    rounds, `timing` the other arguments of `Link.elapsed`.

    Examples
    --------
    >>> link = Link(latency="50ms", gradient="10ms")
    >>> costs = run_costs(bytes_up=4000, bytes_down=4000, gaps=(2, 2), link=link, rows=1, seed=1,
    ...                   M=4)
    >>> costs.bytes, costs.seconds.round(3)
    (array([    0,  8000, 16000]), array([0.  , 0.07, 0.14]))
    """
    rounds = np.arange(len(gaps) + 1)
    seconds = link.elapsed(up=bytes_up, down=bytes_down, gaps=tuple(gaps), **timing)
    return Costs(rounds, rounds * (bytes_up + bytes_down), seconds)


def megabytes_sent(bytes_up: int, rounds: int, *, present: int, M: int) -> float:
    """Return the megabytes that a client sends on average, if `present` of M are in a round."""
    return bytes_up * (rounds * present / M) / 1e6
