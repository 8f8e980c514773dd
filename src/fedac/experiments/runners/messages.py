"""What a process that runs groups is told, and what it says; used by `worker` and `on_ray`."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from fedac.errors import InputError
from fedac.experiments.grid import Config
from fedac.experiments.runners import Answer, Order
from fedac.experiments.store import Origin, Outcome
from fedac.experiments.task import Task


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message to a worker."""

    threads: int
    task: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has read its data."""

    origin: Origin


@dataclass(frozen=True, slots=True)
class Progress:
    """So many gradient queries were made."""

    queries: int


class Compiling:
    """The engine starts to compile."""


@dataclass(frozen=True, slots=True)
class Done:
    """A group is finished."""

    runs: list[tuple[Config, Outcome]]
    warnings: list[tuple[str, type[Warning]]]


@dataclass(frozen=True, slots=True)
class Failed:
    """A group raised an error."""

    what: str  # for people, in one line
    usual: bool  # an InputError
    details: str  # the traceback


Message = Ready | Progress | Compiling | Done | Failed


class Throttle:
    """Adds up gradient queries, and passes them on a few times a second."""

    def __init__(self, send: Callable[[int], object], seconds: float) -> None:
        self.send = send
        self.seconds = seconds
        self._waiting = 0
        self._sent = time.monotonic()

    def add(self, queries: int) -> None:
        """Count some queries."""
        self._waiting += queries
        if time.monotonic() - self._sent > self.seconds:
            self.send(self._waiting)
            self._waiting, self._sent = 0, time.monotonic()


def run_order(
    task: Task, order: Order, threads: int, throttle: Throttle, on_compile: Callable[[], object]
) -> Done | Failed:
    """Run a group, whatever happens."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default", UserWarning)
            runs = task.run(
                order.configs,
                order.f_star,
                threads=threads,
                on_progress=throttle.add,
                on_compile=on_compile,
            )
    except Exception as error:  # of a user's own objective or algorithm, for example
        usual = isinstance(error, InputError)
        what = str(error) if usual else f"{type(error).__name__}: {error}"
        return Failed(what, usual, traceback.format_exc())
    return Done(runs, [(str(each.message), each.category) for each in caught])


def to_answer(order: Order, message: Done | Failed, origin: Origin | None) -> Answer:
    """Return what became of an order, and pass on the warnings that it gave."""
    if isinstance(message, Failed):
        error = InputError(message.what) if message.usual else RuntimeError(message.what)
        error.add_note(message.details)
        return Answer(order, [], error=error)
    for text, category in message.warnings:
        warnings.warn(text, category, stacklevel=2)
    return Answer(order, message.runs, origin)
