"""Runners: where the groups of a sweep run.

In this process (`InThisProcess`), in parallel worker processes (`InProcesses`), or as tasks on a
Ray cluster (`fedac.experiments.ray_pool`). A runner pulls an order only when it can start it, so
that a sweep claims a group in its store just before it runs. It answers every order, with results
or with an error. Results are the same wherever a group runs, to the last bit.
"""

from __future__ import annotations

import pickle
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import cloudpickle

from fedac.errors import InputError
from fedac.experiments.store import Origin, Outcome
from fedac.experiments.workload import Workload
from fedac.federation.spec import RunSpec
from fedac.processes import Handler, Pool, WorkerDiedError

# How often a group is started again after its process died.
RETRIES = 1
SECONDS_BETWEEN_REPORTS = 0.1


@dataclass(frozen=True, slots=True)
class Order:
    """The runs of a group that the store lacks."""

    number: int
    configs: tuple[RunSpec, ...]
    f_star: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The runs of an order, or the error that it raised."""

    order: Order
    runs: list[tuple[RunSpec, Outcome]]
    error: Exception | None = None
    warnings: tuple[tuple[str, type[Warning]], ...] = ()
    origin: Origin | None = None  # None: this machine


# Called with an order, the gradient queries it has made since the last call, and its node's name.
Report = Callable[[Order, int, str], object]


class Runner(Protocol):
    """Runs the groups of one task while a ``with`` block lasts."""

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders; yield the answer to each as soon as it is there."""


class InThisProcess:
    """Runs groups in this process, sequentially."""

    def __init__(self, task: Workload, threads: int, on_compile: Callable[[], object]) -> None:
        self.task = task
        self.threads = threads
        self.on_compile = on_compile

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders sequentially."""
        for order in orders:

            def on_progress(queries: int, order: Order = order) -> None:
                report(order, queries, "")

            yield passed_on(run_order(self.task, order, self.threads, on_progress, self.on_compile))


class InProcesses:
    """Runs groups in parallel worker processes, with the given numbers of threads."""

    def __init__(
        self, task: Workload, threads: list[int], on_compile: Callable[[], object]
    ) -> None:
        self._pool = Pool(make_handler, to_bytes(task), threads)
        self._jobs = len(threads)
        self._on_compile = on_compile
        # Messages from the threads that call the pool: progress, answers, and errors of the pool.
        self._inbox: queue.SimpleQueue[tuple[Order, Any]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run one order per worker in parallel."""
        running = 0
        while True:
            while running < self._jobs and (order := next(orders, None)) is not None:
                threading.Thread(target=self._run, args=(order,), daemon=True).start()
                running += 1
            if not running:
                return
            order, news = self._inbox.get()
            match news:
                case int(queries):
                    report(order, queries, "")
                case None:
                    self._on_compile()
                case Answer():
                    running -= 1
                    yield passed_on(news)
                case _:
                    raise news

    def _run(self, order: Order) -> None:
        """Put an answer into the inbox, or an exception that `run` raises."""
        news: Answer | Exception
        for attempt in range(1, RETRIES + 2):
            try:
                news = self._pool.call(
                    order, on_progress=lambda news: self._inbox.put((order, news))
                )
                break
            except WorkerDiedError as died:
                what = f"its process died {attempt} times ({died})"
                news = Answer(order, [], WorkerDiedError(what))
                if not died.started:
                    news = WorkerDiedError(f"a worker process could not start: {died}")
            except Exception as error:
                news = error
                break
        self._inbox.put((order, news))


def make_handler(task_bytes: bytes, threads: int) -> Handler:
    """Return what a worker process does with an order; it sends None when the engine compiles."""
    task: Workload = pickle.loads(task_bytes)

    def handle(order: Order, send: Callable[[object], None]) -> Answer:
        throttle = Throttle(send, SECONDS_BETWEEN_REPORTS)
        return run_order(task, order, threads, throttle.add, lambda: send(None))

    return handle


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
    task: Workload,
    order: Order,
    threads: int,
    on_progress: Callable[[int], object],
    on_compile: Callable[[], object],
) -> Answer:
    """Run a group; its error becomes text, because a user-defined class may not be picklable."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default", UserWarning)
            runs = task.run(
                order.configs,
                order.f_star,
                threads=threads,
                on_progress=on_progress,
                on_compile=on_compile,
            )
    except Exception as error:
        relayed: Exception = RuntimeError(f"{type(error).__name__}: {error}")
        if isinstance(error, InputError):
            relayed = InputError(str(error))
        elif isinstance(error, MemoryError):
            relayed = RuntimeError("out of memory")
        relayed.add_note(traceback.format_exc())
        return Answer(order, [], relayed)
    return Answer(order, runs, warnings=tuple((str(w.message), w.category) for w in caught))


def passed_on(answer: Answer) -> Answer:
    """Return a worker's answer, and issue the warnings that it collected."""
    for text, category in answer.warnings:
        warnings.warn(text, category, stacklevel=2)
    return answer


def to_bytes(task: Workload) -> bytes:
    """Return the task for `pickle.loads` in other processes, without its list of groups.

    Lambdas and user modules, which other machines do not have, are sent as code. Arrays read from
    these bytes are writable. Arrays that Ray shares between processes are not, and Numba would
    compile all kernels again for them.
    """
    with _sent_as_code(task):
        return bytes(cloudpickle.dumps(task))


@contextmanager
def _sent_as_code(task: Workload) -> Iterator[None]:
    """Have cloudpickle send the modules of user-defined algorithms and losses as code."""
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
