# SPDX-License-Identifier: Apache-2.0
"""Runners: where the groups of a sweep run, and how many at a time.

In this process (`InThisProcess`), in parallel worker processes (`InProcesses`), or as tasks on a
Ray cluster (`fedac.experiments.ray_pool`). A runner answers every order, with results or with an
error. Results are the same wherever a group runs, to the last bit.
"""

from __future__ import annotations

import heapq
import os
import pickle
import queue
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import cloudpickle

from fedac.errors import InputError
from fedac.experiments.store import Origin
from fedac.experiments.workload import Cost, Group, Outcome, Workload
from fedac.federation.spec import RunSpec
from fedac.processes import Handler, Pool, WorkerDiedError, usable_cores

# How often a group is started again after its process died.
RETRIES = 1
SECONDS_BETWEEN_REPORTS = 0.1
# Seconds to start a worker process.
START = 1.5


@dataclass(frozen=True, slots=True)
class Order:
    """The runs of a group that the store lacks."""

    number: int
    runs: Group
    f_star: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of an order, or the error that it raised."""

    order: Order
    results: list[tuple[RunSpec, Outcome]]
    error: Exception | None = None
    warnings: tuple[tuple[str, type[Warning]], ...] = ()
    origin: Origin | None = None  # None: this machine


# Called with a node's name, an order that runs there, and its gradient queries since the last call.
Report = Callable[[str, Order, int], object]


class Runner(ABC):
    """Runs the groups of one task while a ``with`` block lasts."""

    slots = 1  # how many orders to start before the first `wait`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def start(self, order: Order) -> None:
        """Start an order; `wait` returns its answer."""

    @abstractmethod
    def wait(self) -> Answer:
        """Wait for the next answer, and report progress meanwhile."""


class InThisProcess(Runner):
    """Runs groups in this process, sequentially."""

    def __init__(
        self, task: Workload, threads: int, report: Report, on_compile: Callable[[], object]
    ) -> None:
        self._run = partial(run_order, task, threads=threads, on_compile=on_compile)
        self._report = report

    def start(self, order: Order) -> None:
        """Keep the order until `wait` runs it."""
        self._order = order

    def wait(self) -> Answer:
        """Run the order."""
        return self._run(self._order, on_progress=partial(self._report, "", self._order))


class InProcesses(Runner):
    """Runs groups in parallel worker processes, with the given numbers of threads."""

    def __init__(
        self, task: Workload, threads: list[int], report: Report, on_compile: Callable[[], object]
    ) -> None:
        self._pool = Pool(make_handler, to_bytes(task), threads)
        self.slots = len(threads)
        self._report = report
        self._on_compile = on_compile
        # Messages from the threads that call the pool: progress, answers, and errors of the pool.
        self._inbox: queue.SimpleQueue[tuple[Order, Any]] = queue.SimpleQueue()

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def start(self, order: Order) -> None:
        """Send the order to a free worker."""
        threading.Thread(target=self._run, args=(order,), daemon=True).start()

    def wait(self) -> Answer:
        """Read messages until one is an answer."""
        while True:
            order, news = self._inbox.get()
            match news:
                case int(queries):
                    self._report("", order, queries)
                case None:
                    self._on_compile()
                case Answer():
                    return news
                case _:
                    raise news

    def _run(self, order: Order) -> None:
        """Put an answer into the inbox, or an exception that `wait` raises."""
        news: Answer | Exception
        for attempt in range(1, RETRIES + 2):
            try:
                news = self._pool.call(order, on_progress=lambda n: self._inbox.put((order, n)))
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
        report = throttled(send, SECONDS_BETWEEN_REPORTS)
        return run_order(
            task, order, threads=threads, on_progress=report, on_compile=lambda: send(None)
        )

    return handle


def throttled(send: Callable[[int], object], seconds: float) -> Callable[[int], None]:
    """Return a function that adds up gradient queries, and sends the sum once in a while."""
    waiting, sent = 0, time.monotonic()

    def add(queries: int) -> None:
        nonlocal waiting, sent
        waiting += queries
        if time.monotonic() - sent > seconds:
            send(waiting)
            waiting, sent = 0, time.monotonic()

    return add


def run_order(task: Workload, order: Order, **how: Any) -> Answer:
    """Run a group; its error becomes text, because a user-defined class may not be picklable.

    `how` are keywords of `Workload.run`.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default", UserWarning)
            results = task.run(order.runs, order.f_star, **how)
    except Exception as error:
        relayed: Exception = RuntimeError(f"{type(error).__name__}: {error}")
        if isinstance(error, InputError):
            relayed = InputError(str(error))
        elif isinstance(error, MemoryError):
            relayed = RuntimeError("out of memory")
        relayed.add_note(traceback.format_exc())
        return Answer(order, [], relayed)
    return Answer(order, results, warnings=tuple((str(w.message), w.category) for w in caught))


def to_bytes(task: Workload) -> bytes:
    """Return the task for `pickle.loads` in other processes.

    User-defined algorithms, losses and models are sent as code, because other machines do not have
    their modules. Arrays read from these bytes are writable. Arrays that Ray shares between
    processes are not, and Numba would compile all kernels again for them.
    """
    own = [type(task.objective), *(algorithm.update for algorithm in task.algorithms.values())]
    names = {one.__module__ for one in own if one.__module__.split(".")[0] != "fedac"}
    if task.model is not None and ":" in task.model:
        names.add(task.model.partition(":")[0])
    modules = [sys.modules[name] for name in names if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(task))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def available_cores() -> int:
    """Return the number of threads of the engine: ``NUMBA_NUM_THREADS``, or all cores."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) > 0 else usable_cores()


def share_out(cores: int, jobs: int) -> list[int]:
    """Return the number of threads of each job, so that all cores are used once.

    >>> share_out(8, 3), share_out(2, 4)
    ([3, 3, 2], [1, 1, 1, 1])
    """
    return [max(1, cores // jobs + (job < cores % jobs)) for job in range(jobs)]


def best_jobs(costs: Sequence[Cost], cores: int) -> int:
    """Return how many groups to run in parallel for the shortest predicted time.

    >>> best_jobs([Cost(alone=1.0, shared=0.2)] * 20, cores=4)
    4
    >>> best_jobs([Cost(alone=0.1, shared=100.0)] * 5, cores=4)
    1
    """
    most = max(1, min(cores, len(costs)))
    return min(range(1, most + 1), key=lambda jobs: predict_time(costs, share_out(cores, jobs)))


def predict_time(costs: Sequence[Cost], threads: Sequence[int]) -> float:
    """Predict the time of all groups on jobs with these numbers of threads, largest first."""
    start = START if len(threads) > 1 else 0.0
    free = [(start, count) for count in threads]
    heapq.heapify(free)
    for cost in sorted(costs, key=Cost.seconds, reverse=True):
        when, count = heapq.heappop(free)
        heapq.heappush(free, (when + cost.seconds(count), count))
    return max(when for when, _ in free)
