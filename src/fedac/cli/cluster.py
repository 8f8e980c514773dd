"""What a command says about a cluster: how long a simulation will take on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedac.cli.streams import duration, notice

if TYPE_CHECKING:
    from fedac.simulation import Record

Advance = Callable[[int], object]
Callbacks = list[Callable[["Record"], object]]


@contextmanager
def announced(
    on: str | None, address: str | None, in_rounds: Sequence[int], advance: Advance
) -> Iterator[tuple[Callbacks, Advance]]:
    """Connect to a cluster, if one is asked for, and announce how long a simulation will take.

    Yields callbacks and an `on_progress` for `simulate`; the latter calls `advance`. `in_rounds`
    are the gradient queries of the rounds.
    """
    if on is None:
        yield [], advance
        return
    from fedac.cluster import connect, nodes

    with connect(address):
        found = [node.cpus for node in nodes() if node.cpus]
        estimate = _Estimate(in_rounds, _where(len(found), sum(found)), advance)
        yield [estimate.start], estimate.advance


class _Estimate:
    """Measures the first round."""

    def __init__(self, in_rounds: Sequence[int], where: str, advance: Advance) -> None:
        self._first, self._total = in_rounds[0], sum(in_rounds)
        self._where = where
        self._advance = advance
        self._started: float | None = None
        self._done = 0

    def start(self, record: Record) -> None:
        """Start the clock: the first record is made when compiling is over."""
        self._started = self._started or time.monotonic()

    def advance(self, queries: int) -> None:
        """Count queries, and announce the time of the simulation at the end of the first round."""
        self._advance(queries)
        before, self._done = self._done, self._done + queries
        if before < self._first <= self._done and self._started is not None:
            seconds = (time.monotonic() - self._started) * self._total / self._first
            notice(f"this takes about {duration(seconds)} on {self._where}")


def _where(nodes: int, cores: int) -> str:
    """Say where a simulation runs.

    >>> _where(2, 16), _where(1, 1)
    ('2 nodes with 16 cores', '1 node with 1 core')
    """
    many = (
        f"{count} {name}{'s' * (count > 1)}" for count, name in ((nodes, "node"), (cores, "core"))
    )
    return " with ".join(many)
