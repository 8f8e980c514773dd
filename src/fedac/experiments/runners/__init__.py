"""Runners: where the groups of a sweep run.

In this process (`inline`), in processes side by side (`processes`, whose other end is `worker`), or
as tasks on a Ray cluster (`on_ray`). `layout` decides how many groups run at a time, and on how
many threads. A runner pulls orders when it has room for them, so that a sweep claims a group in
its store only when it is about to run; it answers every order, with results or with the error.
Results do not depend on where a group ran, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fedac.experiments.grid import Config
from fedac.experiments.store import Origin, Outcome


@dataclass(frozen=True, slots=True)
class Order:
    """A group to run: those of its cells that are missing."""

    number: int
    configs: tuple[Config, ...]
    f_star: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an order."""

    order: Order
    runs: list[tuple[Config, Outcome]]
    origin: Origin | None = None  # this process unless given
    error: Exception | None = None


# Called with an order that makes progress, by so many gradient queries, and the name of its node.
Report = Callable[[Order, int, str], object]


class Runner(Protocol):
    """Runs the groups of one task while a ``with`` block lasts."""

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders; yield an answer for each, in the order in which they are finished."""


class WorkerLostError(RuntimeError):
    """A process that ran a group died, more often than it is tried again."""
