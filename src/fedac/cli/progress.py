"""A progress bar on stderr, for people only: nothing when output is piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances the bar; `total` is in gradient queries."""
    if not sys.stderr.isatty():
        yield lambda queries: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(queries: int) -> None:
            speed = bar.tasks[0].speed
            rate = "" if speed is None else f"{speed / 1e6:.2f} M gradients/s"
            bar.update(task, advance=queries, rate=rate)

        yield advance
