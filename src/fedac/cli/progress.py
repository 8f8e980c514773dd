"""Progress bars on stderr, shown on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedac.experiments.sweep import Progress


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances the bar by a number of gradient queries, of `total`."""
    start, done = None, 0
    with _bar(what) as update:

        def advance(queries: int) -> None:
            nonlocal start, done
            start = start or time.monotonic()  # after compiling
            done += queries
            update(completed=done, total=total, note=f"{done / total:4.0%} {_rate(done, start)}")

        yield advance


@contextmanager
def sweep_bar(what: str, *, best: bool = True) -> Iterator[Callable[[Progress], object]]:
    """Yield a function that shows the progress of a sweep, and if wanted its best run so far."""
    start = time.monotonic()
    with _bar(what) as update:

        def show(progress: Progress) -> None:
            note = f"{progress.done}/{progress.cells} {_rate(progress.queries, start)}"
            if progress.running:
                nodes = ", ".join(f"{node} {count}" for node, count in progress.running.items())
                note += f", running on {nodes}"
            if best and progress.best:
                suboptimality, algorithm, eta = progress.best
                note += f", best {suboptimality:.2e}: {algorithm}, eta={eta:g}"
            update(completed=progress.work, total=1.0, note=note)

        yield show


@contextmanager
def download_bar(what: str) -> Iterator[Callable[[int, int | None], object]]:
    """Yield a function that shows how many bytes have been downloaded, of how many if known."""
    with _bar(what) as update:

        def show(done: int, total: int | None) -> None:
            of_total = f" of {total / 1e6:.1f}" if total else ""
            update(completed=done, total=total, note=f"{done / 1e6:.1f}{of_total} MB")

        yield show


def _rate(queries: int, start: float) -> str:
    seconds = time.monotonic() - start
    return f"{queries / seconds / 1e6:.1f} M gradients/s" if seconds > 0.1 else ""


@contextmanager
def _bar(what: str) -> Iterator[Callable[..., object]]:
    """Yield Rich's function to update a bar, which appears with the first update."""
    if not sys.stderr.isatty():
        yield lambda **fields: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, visible=False, note="")
        yield partial(bar.update, task, visible=True)
