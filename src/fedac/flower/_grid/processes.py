"""Processes in which nodes run side by side, each message in one of them."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Iterable

import cloudpickle
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedac.errors import InputError
from fedac.flower._grid.inprocess import App, error_reply
from fedac.processes import Child, usable_cores

# What a pipe gives when the process at its other end dies, perhaps in the middle of a message.
DIED = (OSError, EOFError, ValueError, pickle.UnpicklingError)


class Processes:
    """Up to `count` processes that have a ClientApp.

    The state of a node travels with its messages: any process may answer any of them, and one that
    is killed takes nothing with it.
    """

    def __init__(self, app: App, count: int) -> None:
        try:
            self._app = bytes(cloudpickle.dumps(app))
        except Exception as problem:
            raise InputError(
                f"workers= sends the ClientApp to other processes, which failed: {problem}"
            ) from problem
        self._count, self._threads = count, max(1, usable_cores() // count)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        # Also when nobody has the grid any more, or the interpreter exits.
        weakref.finalize(self, _end, self._all)

    def start(self, number: int) -> None:
        """Wait until so many processes are ready, `count` at most, so that no message waits."""
        children = [self._new() for _ in range(min(number, self._count) - len(self._all))]
        for child in children:
            self._load(child)
        with self._lock:
            self._idle += children

    def answer(
        self, message: Message, context: Context, begin: Callable[[], None]
    ) -> tuple[Message, RecordDict]:
        """Return the app's reply, and the state of its node afterwards.

        Calls `begin` when a process is ready for the message.
        """
        child = self._take()
        try:
            begin()
            child.write((message, context))
            answer: tuple[Message, RecordDict] = child.read()
        except DIED:
            reason = f"the process that ran this node died: {child.wait()}"
            self._forget(child)
            return error_reply(message, ErrorCode.CLIENT_APP_CRASHED, reason), context.state
        with self._lock:
            if len(self._idle) < self._count:
                self._idle.append(child)
                return answer
        child.kill()  # another one has taken its place, because it was so slow
        self._forget(child)
        return answer

    def close(self) -> None:
        """End all processes; those in the middle of a message give an error."""
        with self._lock:
            self._idle.clear()
            _end(self._all)
            self._all.clear()

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        # All others work on messages that take too long.
        child = self._new()
        self._load(child)
        return child

    def _new(self) -> Child:
        with self._lock:
            child = Child("fedac.flower._grid.worker", self._threads)
            self._all.add(child)
        return child

    def _load(self, child: Child) -> None:
        """Give a new process the app; it has imported what it needs when this returns."""
        try:
            child.write(self._app)
            child.read()  # it is ready
        except DIED:
            pass  # the first message will say so

    def _forget(self, child: Child) -> None:
        child.close()
        with self._lock:
            self._all.discard(child)


def _end(children: Iterable[Child]) -> None:
    for child in children:
        child.kill()
        child.close()
