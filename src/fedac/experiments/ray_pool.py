# SPDX-License-Identifier: Apache-2.0
"""Runs the groups of a sweep as tasks on a Ray cluster.

The data goes into Ray's object store once, and every worker process reads it from there once. Ray
repeats the tasks of processes and nodes that it loses: a group gives the same bits wherever it
runs. The driver stores the results as they come in.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from fedac.cluster import connect, import_ray, nodes, pin, require_same_version
from fedac.errors import InputError
from fedac.experiments import pool
from fedac.experiments.pool import Answer, Order, Report, Runner
from fedac.experiments.store import this_origin
from fedac.experiments.workload import Cost, Workload
from fedac.processes import WorkerDiedError

# How often Ray restarts a group that it lost with its process or node.
RETRIES = 3
SECONDS_BETWEEN_REPORTS = 0.5
# Tasks queued beyond the free cores, so that the cluster never waits for the driver.
QUEUED = 4


class ProgressBoard:
    """Ray actor that collects the progress of tasks until the driver reads it."""

    def __init__(self) -> None:
        self._progress: dict[int, tuple[int, str]] = {}
        self._compiling = False

    def add(self, number: int, queries: int, node: str) -> None:
        """Add gradient queries of an order that runs on a node."""
        before, _ = self._progress.get(number, (0, ""))
        self._progress[number] = (before + queries, node)

    def set_compiling(self) -> None:
        """Note that an engine compiles."""
        self._compiling = True

    def read(self) -> tuple[dict[int, tuple[int, str]], bool]:
        """Return and forget the progress since the last call."""
        progress, compiling = self._progress, self._compiling
        self._progress, self._compiling = {}, False
        return progress, compiling


@lru_cache(maxsize=1)
def _load(data: Any) -> Workload:
    """Read the data, once per process."""
    task: Workload = pickle.loads(import_ray().get(data))
    return task


def _run(data: list[Any], order: Order, threads: int, board: Any, names: dict[str, str]) -> Answer:
    """Run an order in a process of the cluster."""
    node = names.get(import_ray().get_runtime_context().get_node_id(), "a new node")

    def add(queries: int) -> None:
        board.add.remote(order.number, queries, node)

    add(0)
    report = pool.throttled(add, SECONDS_BETWEEN_REPORTS)
    compiling = board.set_compiling.remote
    task = _load(data[0])
    answer = pool.run_order(task, order, threads=threads, on_progress=report, on_compile=compiling)
    return replace(answer, origin=this_origin())


class OnRay(Runner):
    """Runs groups on the cluster at an address, or as `fedac.cluster.connect` finds one."""

    def __init__(
        self,
        task: Workload,
        costs: Sequence[Cost],
        address: str | None,
        report: Report,
        on_compile: Callable[[], object],
    ) -> None:
        self._workload = task
        self._costs = costs
        self._address = address
        self._report = report
        self._on_compile = on_compile
        self._running: dict[Any, Order] = {}  # by Ray task

    def __enter__(self) -> Self:
        ray = import_ray()
        with ExitStack() as stack:
            on_sigterm = signal.getsignal(signal.SIGTERM)
            stack.enter_context(connect(self._address))
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_sigterm)  # ray.init has replaced it
            cluster = nodes()
            require_same_version(cluster)
            cores = sum(node.cpus for node in cluster)
            if cores == 0:
                raise InputError("the Ray cluster has no CPUs: start a node with --num-cpus")
            # Many threads for few large groups, but no more than a node has.
            threads = max(1, cores // pool.best_jobs(self._costs, cores))
            self._threads = min(threads, max(node.cpus for node in cluster))
            self.slots = sum(node.cpus // self._threads for node in cluster) + QUEUED
            self._names = {node.id: node.name for node in cluster}
            # As an array, which processes read where it is.
            self._data = ray.put(np.frombuffer(pool.to_bytes(self._workload), np.uint8))
            here = ray.get_runtime_context().get_node_id()
            (driver,) = (node for node in cluster if node.id == here)
            make = ray.remote(num_cpus=0)(ProgressBoard).options(scheduling_strategy=pin(driver))
            self._board = make.remote()
            self._task = ray.remote(
                num_cpus=self._threads, max_retries=RETRIES, scheduling_strategy="SPREAD"
            )(_run)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # Running tasks end with the connection or, if it stays open, here.
        ray = import_ray()
        tasks = list(self._running)
        # Ray may abort this process if a finished task is cancelled.
        unfinished = ray.wait(tasks, num_returns=len(tasks), timeout=0)[1] if tasks else []
        for task in unfinished:
            ray.cancel(task, force=True)
        ray.kill(self._board)
        self._stack.close()

    def start(self, order: Order) -> None:
        """Queue the order on the cluster."""
        # Ray would replace a reference by its value, unless it is in a list.
        task = self._task.remote([self._data], order, self._threads, self._board, self._names)
        self._running[task] = order

    def wait(self) -> Answer:
        """Wait for the next task to end."""
        ray = import_ray()
        try:
            done: list[Any] = []
            while not done:
                done, _ = ray.wait(list(self._running), timeout=SECONDS_BETWEEN_REPORTS)
                self._read_board()
        except ray.exceptions.RayError as error:
            raise WorkerDiedError(
                f"lost the Ray node of this process ({_first_line(error)})"
            ) from error
        order = self._running.pop(done[0])
        try:
            answer: Answer = ray.get(done[0])
        except ray.exceptions.RayError as error:
            what = f"Ray lost it {RETRIES + 1} times ({_first_line(error)})"
            answer = Answer(order, [], WorkerDiedError(what))
        return answer

    def _read_board(self) -> None:
        orders = {order.number: order for order in self._running.values()}
        progress, compiling = import_ray().get(self._board.read.remote())
        if compiling:
            self._on_compile()
        for number, (queries, node) in progress.items():
            if number in orders:  # otherwise it is done, and its last report came late
                self._report(node, orders[number], queries)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
