# SPDX-License-Identifier: Apache-2.0
"""A pool of worker processes, each at the other end of two pipes.

Unlike multiprocessing, a worker never runs the user's script again, guarded by ``__main__`` or not;
unlike the pools of the standard library, this one survives a worker that is killed. The pipes carry
pickles, which only parent and worker can write. A worker exits as soon as its parent does, even if
the parent is killed and the worker is busy: it has no results worth keeping.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# Runs in the worker: handle(message, send) -> answer, where send(news) reports progress.
Handler = Callable[[Any, Callable[[object], None]], object]

# What a pipe raises when the process at its other end dies, perhaps in the middle of a message.
DIED = (OSError, EOFError, ValueError, pickle.UnpicklingError)


class WorkerDiedError(RuntimeError):
    """A worker process died; `started` is False if it was not ready for messages yet."""

    def __init__(self, message: str, *, started: bool = True) -> None:
        super().__init__(message)
        self.started = started


class Pool:
    """Worker processes that answer messages; `call` may be used from several threads.

    Each worker calls ``make_handler(payload, threads) -> handler`` once; `make_handler` must be a
    module-level function. `threads` lists how many threads each worker's numerical libraries may
    use (environment variables take precedence); its length is the number of workers to keep.
    """

    def __init__(
        self, make_handler: Callable[..., Handler], payload: bytes, threads: Sequence[int]
    ) -> None:
        self._make_handler = make_handler
        self._payload = payload
        self._threads = threads
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._closed = False
        self._lock = threading.Lock()
        # Also when the pool is garbage collected, or the interpreter exits.
        weakref.finalize(self, _end, self._workers)

    def start(self, number: int) -> None:
        """Wait until `number` workers are ready, but at most as many as the pool keeps."""
        self._closed = False
        new = [self._new() for _ in range(min(number, len(self._threads)) - len(self._workers))]
        for worker in new:
            with suppress(WorkerDiedError):  # its first call starts another one
                self._wait_until_ready(worker)
                self._put_back(worker)

    def call(
        self,
        message: object,
        *,
        on_begin: Callable[[], object] = lambda: None,
        on_progress: Callable[[Any], object] = lambda news: None,
    ) -> Any:
        """Return a worker's answer, or raise `WorkerDiedError`.

        If all workers are busy, another one is started; the surplus ends when work is done.
        `on_begin` is called when a worker is ready for the message.
        """
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = self._new()
            self._wait_until_ready(worker)
        on_begin()
        try:
            worker.write(message)
            is_answer, news = worker.read()
            while not is_answer:
                on_progress(news)
                is_answer, news = worker.read()
        except DIED as error:
            raise WorkerDiedError(self._bury(worker)) from error
        self._put_back(worker)
        return news

    def close(self) -> None:
        """Kill all workers; calls in progress raise `WorkerDiedError`. `start` starts new ones."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            _end(self._workers)
            self._workers.clear()

    def _new(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise WorkerDiedError("the pool is closed", started=False)
            free = list(self._threads)
            for worker in self._workers:
                if worker.threads in free:
                    free.remove(worker.threads)
            worker = _Worker((free or self._threads)[0])
            self._workers.add(worker)
        return worker

    def _wait_until_ready(self, worker: _Worker) -> None:
        try:
            # As bytes, so that it is imported in the worker's main thread.
            worker.write(pickle.dumps(self._make_handler))
            worker.write((self._payload, worker.threads))
            worker.read()
        except DIED as error:
            raise WorkerDiedError(self._bury(worker), started=False) from error

    def _put_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker in self._workers and len(self._idle) < len(self._threads):
                self._idle.append(worker)
                return
        worker.kill()
        self._bury(worker)

    def _bury(self, worker: _Worker) -> str:
        """Forget a worker that has died or is dying, and return the reason."""
        reason = worker.wait()
        with self._lock:
            self._workers.discard(worker)
        return reason


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # Modules are found where this process finds them.
        path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
        libraries = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._process = subprocess.Popen(
            # -P: the current folder is searched only if this process searches it, too.
            [sys.executable, "-P", "-m", "fedac.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict.fromkeys(libraries, str(threads)) | os.environ | {"PYTHONPATH": path},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def write(self, message: object) -> None:
        pickle.dump(message, self._stdin)
        self._stdin.flush()

    def read(self) -> Any:
        return pickle.load(self._stdout)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> str:
        """Wait for the end of a process that is dying, close its pipes and return the reason."""
        code = self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):  # a message that it has not read
                pipe.close()
        if code < 0:
            name = signal.Signals(-code).name
            return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
        return f"exit code {code}"


def _end(workers: Iterable[_Worker]) -> None:
    for worker in list(workers):
        worker.kill()
        worker.wait()


def serve_parent() -> None:
    """Answer the messages of the process that started this one."""
    # Ctrl-C reaches all processes of a terminal; the parent stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    messages, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The pipes are for messages only: printed text goes to stderr.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                inbox.put(pickle.load(messages))
        finally:  # the parent has ended, perhaps in the middle of a message
            os._exit(0)

    def write(is_answer: bool, news: object) -> None:
        try:
            pickle.dump((is_answer, news), answers)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    make_handler = pickle.loads(inbox.get())
    handle: Handler = make_handler(*inbox.get())
    write(True, None)
    while True:
        write(True, handle(inbox.get(), lambda news: write(False, news)))


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    serve_parent()
