"""Runs groups as tasks on a Ray cluster.

The data go into Ray's object store once; every process of the cluster that runs groups reads them
from there once. Ray repeats the tasks of processes and nodes that it loses: a group gives the same
bits wherever it runs. Results are committed here, as they come.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fedac.cluster import Node, connect, import_ray, nodes, pin, require_same_version
from fedac.errors import InputError
from fedac.experiments.pool import (
    Answer,
    Done,
    Failed,
    Order,
    Report,
    Throttle,
    WorkerLostError,
    run_order,
    to_answer,
    to_bytes,
)
from fedac.experiments.scheduling import Cost, best_jobs
from fedac.experiments.store import Origin, this_origin
from fedac.experiments.task import Task

# How often Ray starts a group again that it lost with its process or node.
RETRIES = 3
# Seconds between two reports of a task, and between two looks at them.
REPORTS = 0.5
# Tasks that wait on the cluster for a free core: it should never have to wait for us.
AHEAD = 4


class Board:
    """An actor on which tasks note their progress."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[int, str]] = {}
        self._compiling = False

    def note(self, number: int, queries: int, node: str) -> None:
        """Add some gradient queries of an order that runs on a node."""
        before, _ = self._notes.get(number, (0, ""))
        self._notes[number] = (before + queries, node)

    def note_compiling(self) -> None:
        """Note that somebody compiles."""
        self._compiling = True

    def read(self) -> tuple[dict[int, tuple[int, str]], bool]:
        """Return what is new."""
        found = self._notes, self._compiling
        self._notes, self._compiling = {}, False
        return found


@lru_cache(maxsize=1)
def _load(data: Any) -> Task:
    """Read the data once in a process."""
    task: Task = pickle.loads(import_ray().get(data))
    return task


def _run(
    data: list[Any], order: Order, threads: int, board: Any, names: dict[str, str]
) -> tuple[Done | Failed, Origin]:
    """Run an order in a process of the cluster."""
    ray = import_ray()
    node = names.get(ray.get_runtime_context().get_node_id(), "a new node")
    board.note.remote(order.number, 0, node)
    throttle = Throttle(lambda made: board.note.remote(order.number, made, node), REPORTS)
    found = run_order(_load(data[0]), order, threads, throttle, board.note_compiling.remote)
    return found, this_origin()


class OnRay:
    """Runs groups on the cluster at an address, or as `fedac.cluster.connect` finds one."""

    def __init__(
        self,
        task: Task,
        costs: Sequence[Cost],
        address: str | None,
        on_compile: Callable[[], object],
    ) -> None:
        self._given = task
        self._costs = costs
        self._address = address
        self._on_compile = on_compile
        self._tasks: dict[Any, Order] = {}  # those on the cluster

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ray = import_ray()
            with _kept_signals():
                stack.enter_context(connect(self._address))
            cluster = nodes()
            require_same_version(cluster)
            cores = sum(node.cpus for node in cluster)
            if cores == 0:
                raise InputError("the Ray cluster has no CPUs: start a node with --num-cpus")
            self._threads = _threads(self._costs, cluster)
            self._slots = sum(node.cpus // self._threads for node in cluster)
            self._names = {node.id: node.name for node in cluster}
            # An array of bytes, which processes read where they are.
            self._data = ray.put(np.frombuffer(to_bytes(self._given), np.uint8))
            here = ray.get_runtime_context().get_node_id()
            (driver,) = (node for node in cluster if node.id == here)
            make = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=pin(driver))
            self._board = make.remote()
            self._task = ray.remote(
                num_cpus=self._threads, max_retries=RETRIES, scheduling_strategy="SPREAD"
            )(_run)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # Tasks that still run end with the connection, or if it stays open, here.
        ray = import_ray()
        for task in self._tasks:
            ray.cancel(task, force=True)
        ray.kill(self._board)
        self._stack.close()

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders, so many at a time that all cores of the cluster are busy."""
        try:
            yield from self._run(orders, report)
        except import_ray().exceptions.RayError as error:
            first_line = str(error).strip().splitlines()[0]
            raise WorkerLostError(f"lost the Ray node of this process ({first_line})") from error

    def _run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        ray = import_ray()
        more = True
        while True:
            while more and len(self._tasks) < self._slots + AHEAD:
                order = next(orders, None)
                if order is None:
                    more = False
                    break
                task = self._task.remote(
                    [self._data], order, self._threads, self._board, self._names
                )
                self._tasks[task] = order
            if not self._tasks:
                return
            done, _ = ray.wait(list(self._tasks), num_returns=1, timeout=REPORTS)
            self._read_board(report)
            for task in done:
                order = self._tasks.pop(task)
                yield self._answer(task, order)

    def _answer(self, task: Any, order: Order) -> Answer:
        ray = import_ray()
        try:
            message, origin = ray.get(task)
        except ray.exceptions.RayError as error:
            first_line = str(error).strip().splitlines()[0]
            what = f"Ray lost it {RETRIES + 1} times ({first_line})"
            return Answer(order, [], error=WorkerLostError(what))
        return to_answer(order, message, origin)

    def _read_board(self, report: Report) -> None:
        orders = {order.number: order for order in self._tasks.values()}
        notes, compiling = import_ray().get(self._board.read.remote())
        if compiling:
            self._on_compile()
        for number, (queries, node) in notes.items():
            if number in orders:  # else it is done, and its last note came late
                report(orders[number], queries, node)


def _threads(costs: Sequence[Cost], cluster: Sequence[Node]) -> int:
    """Return the threads of a task: many for few large groups, but no more than a node has."""
    cores = sum(node.cpus for node in cluster)
    largest = max(node.cpus for node in cluster)
    return min(largest, max(1, cores // best_jobs(costs, cores)))


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Keep our handler of SIGTERM, which `ray.init` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
