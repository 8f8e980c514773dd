"""Runs groups in processes side by side.

A pool of our own: those of the standard library break as a whole when a process is killed, and
leave processes behind when their own is. Each worker has a thread here that listens to it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

from fedac.experiments.runners import Answer, Order, Report, WorkerLostError
from fedac.experiments.runners.messages import (
    Compiling,
    Done,
    Failed,
    Hello,
    Message,
    Progress,
    Ready,
    to_answer,
)
from fedac.experiments.runners.transport import to_bytes
from fedac.experiments.store import Origin
from fedac.experiments.task import Task
from fedac.subprocesses import Child

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
        self.child = Child("fedac.experiments.runners.worker", threads)

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
