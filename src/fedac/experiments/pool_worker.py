"""The process at the other end of `processes`: runs one group after the other."""

from __future__ import annotations

import pickle

from fedac.experiments.pool import Compiling, Hello, Progress, Ready, Throttle, run_order
from fedac.experiments.store import this_origin
from fedac.experiments.task import Task
from fedac.processes import Parent

SECONDS_BETWEEN_REPORTS = 0.1


def main() -> None:
    """Serve the process that started this one."""
    parent = Parent()
    hello: Hello = parent.read()
    task: Task = pickle.loads(hello.task)
    parent.write(Ready(this_origin()))
    throttle = Throttle(lambda queries: parent.write(Progress(queries)), SECONDS_BETWEEN_REPORTS)
    while True:
        order = parent.read()
        parent.write(
            run_order(task, order, hello.threads, throttle, lambda: parent.write(Compiling()))
        )


if __name__ == "__main__":
    main()
