"""A Python process of our own at the other end of two pipes: what pools of workers are made of.

Unlike multiprocessing it never runs the user's script again, guarded by ``__main__`` or not. The
pipes carry pickles; only these two processes have them. A child ends when its parent does, also
if that is killed.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


class Child:
    """A new process that runs one of our modules, as its parent sees it.

    Parameters
    ----------
    module : str
        What it runs; this module talks to us through a `Parent`.
    threads : int
        How many threads its numerical libraries use, unless the environment says so already.
    """

    def __init__(self, module: str, threads: int) -> None:
        self._process = subprocess.Popen(
            # -P: nothing is imported from the current folder that we would not import from it.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(threads),
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def write(self, message: object) -> None:
        """Send something to the process; an OSError if it has died."""
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()

    def read(self) -> Any:
        """Return the next thing that the process sends; an exception if it has died."""
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def wait(self) -> str:
        """Wait for a process that is ending by itself, and say why it does."""
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
        return f"exit code {code}"

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the pipes of a process that has ended, when no thread reads from them any more."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # it has not read everything
                pipe.close()


class Parent:
    """The process that started this one, as a child sees it. A child has one, for all its life.

    A child that is in the middle of its work when the parent ends does not finish it: nothing that
    it has is worth keeping.
    """

    def __init__(self) -> None:
        # Ctrl-C goes to all processes of a terminal; our parent stops us.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._orders, self._answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        # The pipes are for messages only: what anybody prints goes to stderr.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def read(self) -> Any:
        """Return the parent's next message."""
        return self._inbox.get()

    def write(self, message: object) -> None:
        """Send something to the parent."""
        try:
            pickle.dump(message, self._answers)
            self._answers.flush()
        except BrokenPipeError:
            os._exit(0)

    def _listen(self) -> None:
        try:
            while True:
                self._inbox.put(pickle.load(self._orders))
        finally:  # the end of the file, or a message cut off
            os._exit(0)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of a child: modules from where we have them, and few threads."""
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    libraries = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(libraries, str(threads)) | os.environ | {"PYTHONPATH": path}
