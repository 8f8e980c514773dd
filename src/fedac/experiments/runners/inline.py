"""Runs groups in this process, one after the other, each on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from fedac.experiments.runners import Answer, Order, Report
from fedac.experiments.task import Task


class InThisProcess:
    """The simplest runner."""

    def __init__(self, task: Task, threads: int, on_compile: Callable[[], object]) -> None:
        self.task = task
        self.threads = threads
        self.on_compile = on_compile

    def run(self, orders: Iterator[Order], report: Report) -> Iterator[Answer]:
        """Run orders one after the other."""
        for order in orders:
            try:
                runs = self.task.run(
                    order.configs,
                    order.f_star,
                    threads=self.threads,
                    on_progress=partial(_report, report, order),
                    on_compile=self.on_compile,
                )
            except Exception as error:  # of a user's own objective or algorithm, for example
                yield Answer(order, [], error=error)
            else:
                yield Answer(order, runs)


def _report(report: Report, order: Order, queries: int) -> None:
    report(order, queries, "")
