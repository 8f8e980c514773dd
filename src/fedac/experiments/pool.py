"""Runners: where the groups of a sweep run.

In this process (`inline`), in processes side by side (`processes`, whose other end is `worker`), or
as tasks on a Ray cluster (`on_ray`). `layout` decides how many groups run at a time, and on how
many threads. A runner pulls orders when it has room for them, so that a sweep claims a group in
its store only when it is about to run; it answers every order, with results or with the error.
Results do not depend on where a group ran, to the last bit.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

import cloudpickle

from fedac.errors import InputError
from fedac.experiments.grid import Config
from fedac.experiments.store import Origin, Outcome
from fedac.experiments.task import Task
from fedac.processes import Child


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


# --- What a process that runs groups is told, and what it says; used by `worker` and `on_ray`.


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


# --- A task as bytes, for other processes and for machines that do not have the user's modules.
#
# Arrays that Ray shares between processes are read-only, for which Numba would compile all kernels
# a
# second time; those that are read from bytes are not.


def to_bytes(task: Task) -> bytes:
    """Return what `pickle.loads` makes the task of, without its list of groups.

    Functions without a name, and those of the user's own modules, are sent as code.
    """
    with _sent_as_code(task):
        return bytes(cloudpickle.dumps(replace(task, groups=[])))


@contextmanager
def _sent_as_code(task: Task) -> Iterator[None]:
    """Have the modules of the user's own algorithms and losses sent as code."""
    own = [type(task.objective), *(record.update for record in task.algorithms.values())]
    names = {one.__module__ for one in own if one.__module__.split(".")[0] != "fedac"}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


# --- Runs groups in this process, one after the other, each on several threads.


class InThisProcess:
    """The simplest runner."""

    def __init__(self, task: Task, threads: int, on_compile: Callable[[], object]) -> None:
        self.task = task
        self.threads = threads
        self.on_compile = on_compile

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders one after the other."""
        for order in orders:
            try:
                runs = self.task.run(
                    order.configs,
                    order.f_star,
                    threads=self.threads,
                    on_progress=partial(_report, report, order),
                    on_compile=self.on_compile,
                )
            except Exception as error:  # of a user's own objective or algorithm, for example
                yield Answer(order, [], error=error)
            else:
                yield Answer(order, runs)


def _report(report: Report, order: Order, queries: int) -> None:
    report(order, queries, "")


# --- Runs groups in processes side by side.
#
# A pool of our own: those of the standard library break as a whole when a process is killed, and
# leave processes behind when their own is. Each worker has a thread here that listens to it.

# How often a group is started again after its process died.
RETRIES = 1


class Processes:
    """Runs groups in worker processes, with so many threads each."""

    def __init__(self, task: Task, threads: list[int], on_compile: Callable[[], object]) -> None:
        self._task = to_bytes(task)
        self._threads = threads
        self._on_compile = on_compile
        self._inbox: queue.SimpleQueue[tuple[_Worker, Message | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        for threads in self._threads:
            self._start(threads)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders, as many at a time as there are workers."""
        lost: deque[Order] = deque()
        deaths: dict[int, int] = {}
        failed_starts = 0

        def give_work(worker: _Worker) -> None:
            order = lost.popleft() if lost else next(orders, None)
            if order is not None:
                worker.begin(order)

        for worker in self._workers:
            if worker.ready:
                give_work(worker)
        while lost or any(not w.ready or w.order for w in self._workers):
            worker, message = self._inbox.get()
            order = worker.order
            match message:
                case None if worker not in self._workers:
                    continue  # it was stopped
                case None:
                    reason = worker.end()
                    self._workers.remove(worker)
                    if not worker.ready:
                        failed_starts += 1
                        if failed_starts > RETRIES:
                            raise WorkerLostError(f"a worker process could not start: {reason}")
                    self._start(worker.threads)
                    if order is None:
                        continue
                    deaths[order.number] = deaths.get(order.number, 0) + 1
                    if deaths[order.number] <= RETRIES:
                        lost.append(order)
                    else:
                        what = f"its process died {deaths[order.number]} times ({reason})"
                        yield Answer(order, [], error=WorkerLostError(what))
                    continue
                case Ready():
                    worker.origin = message.origin
                    failed_starts = 0
                case Progress():
                    if order is not None:
                        report(order, message.queries, "")
                    continue
                case Compiling():
                    self._on_compile()
                    continue
                case Done() | Failed():
                    assert order is not None
                    worker.order = None
                    yield to_answer(order, message, worker.origin)
            give_work(worker)

    def _start(self, threads: int) -> None:
        worker = _Worker(threads)
        self._workers.append(worker)
        worker.listen(Hello(threads, self._task), self._inbox)


class _Worker:
    """One worker process, and what it is doing."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.order: Order | None = None
        self.origin: Origin | None = None
        self.child = Child("fedac.experiments.pool_worker", threads)

    @property
    def ready(self) -> bool:
        return self.origin is not None

    def listen(
        self, hello: Hello, inbox: queue.SimpleQueue[tuple[_Worker, Message | None]]
    ) -> None:
        """Say hello, and pass on what the process writes; None at its end."""

        def pass_on() -> None:
            with suppress(Exception):  # it died, perhaps in the middle of a message
                self.child.write(hello)
                while True:
                    inbox.put((self, self.child.read()))
            inbox.put((self, None))

        self._thread = threading.Thread(target=pass_on, daemon=True)
        self._thread.start()

    def begin(self, order: Order) -> None:
        """Give an order to the process."""
        self.order = order
        with suppress(OSError):  # it died: its thread will say so
            self.child.write(order)

    def end(self) -> str:
        """Wait for a process that is ending by itself, and say why it does."""
        reason = self.child.wait()
        self._close()
        return reason

    def stop(self) -> None:
        """End the process."""
        self.child.kill()
        self._close()

    def _close(self) -> None:
        self._thread.join()
        self.child.close()
