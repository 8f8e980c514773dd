"""The process at the other end of `processes`: runs one group after the other.

It reads orders from stdin and writes what happens to stdout, both as pickles; the only other
process that has these pipes is the one that started it. When stdin ends, its parent has finished
or died, and it ends too, in the middle of a group if need be: nothing that it has is worth keeping.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from typing import BinaryIO

from fedac.experiments.runners import Order
from fedac.experiments.runners.messages import (
    Compiling,
    Hello,
    Message,
    Progress,
    Ready,
    Throttle,
    run_order,
)
from fedac.experiments.store import this_origin
from fedac.experiments.task import Task

SECONDS_BETWEEN_REPORTS = 0.1


def main() -> None:
    """Serve the process that started this one."""
    # Ctrl-C goes to all processes of a terminal; our parent stops us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, answers = _take_pipes()
    inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
    hello: Hello = pickle.load(orders)

    def listen() -> None:
        try:
            while True:
                inbox.put(pickle.load(orders))
        finally:  # the end of the file, or a message cut off
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    task: Task = pickle.loads(hello.task)

    def send(message: Message) -> None:
        try:
            pickle.dump(message, answers)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)

    send(Ready(this_origin()))
    throttle = Throttle(lambda queries: send(Progress(queries)), SECONDS_BETWEEN_REPORTS)
    while True:
        order = inbox.get()
        send(run_order(task, order, hello.threads, throttle, lambda: send(Compiling())))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for messages: what anybody prints goes to stderr."""
    pipes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return pipes


if __name__ == "__main__":
    main()
