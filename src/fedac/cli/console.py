"""Output of the command: results on stdout, notices and progress bars on stderr."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedac.experiments.sweep import Progress
    from fedac.simulation import Record


def prepare_streams() -> None:
    """Make printing safe on closed streams, and for characters that a stream cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as `2>&-` does
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            # A file name may contain characters that the terminal's encoding lacks.
            stream.reconfigure(errors="backslashreplace")


def flush_results() -> None:
    """Flush stdout, and raise `OSError` for a full disk or a closed pipe while we can report it."""
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try again at exit and print a traceback: discard what is left.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
        raise


def notice(message: str) -> None:
    """Print a message to stderr on one line, even if it quotes an odd file name."""
    line = "".join(c if c.isprintable() else " " for c in message)
    print(f"fedac: {line}", file=sys.stderr)


def notice_compiling() -> None:
    """Explain why the first run takes longer."""
    notice("compiling the simulator for this kind of problem, once; this takes up to a minute")


def duration(seconds: float) -> str:
    """Format a time.

    >>> duration(0.2), duration(75), duration(8000)
    ('0.2 s', '1 min 15 s', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def results_console() -> Console:
    """Return a console on stdout that never cuts lines in a pipe or a file."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with code 1; `main` exits like other commands

    return Results(width=None if sys.stdout.isatty() else 10_000, highlight=False)


def new_table(
    *headings: str, words: Collection[str] = (), title: str | None = None, caption: str = ""
) -> Table:
    """Start a table of numbers; the columns named in `words` contain text."""
    from rich.table import Table

    table = Table(title=title, caption=caption or None)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    return table


def print_table(table: Table) -> None:
    """Print a table to stdout without cutting a number, even on a narrow terminal.

    If the table is too wide, headings and text wrap between words; if that is not enough, the rows
    are printed as lists.
    """
    console = results_console()
    if _fit(table, console.width):
        console.print(table)
    else:
        _print_lists(table, console)


def _fit(table: Table, width: int) -> bool:
    """Set column widths that cut no word and no number; return False if that is impossible."""
    narrowest, natural = [], []
    for column in table.columns:
        heading, cells = str(column.header), [str(cell) for cell in column.cells]
        whole = cells if column.justify == "right" else [word for c in cells for word in c.split()]
        narrowest.append(_longest([*heading.split(), *whole]))
        natural.append(_longest([heading, *cells]))
    # A column has a border on its left and a space on either side.
    spare = width - sum(narrowest) - 3 * len(narrowest) - 1
    if spare < 0:
        return False
    for column, low, high in zip(table.columns, narrowest, natural, strict=True):
        column.width = min(high, low + spare)
        spare -= column.width - low
    return True


def _longest(texts: list[str]) -> int:
    from rich.text import Text

    return max((Text.from_markup(text).cell_len for text in texts), default=0)


def _print_lists(table: Table, console: Console) -> None:
    if table.title:
        console.print(table.title, style="italic")
    cells = zip(*(column.cells for column in table.columns), strict=True)
    for row, values in zip(table.rows, cells, strict=True):
        console.print()
        for column, value in zip(table.columns, values, strict=True):
            console.print(f"{column.header}: {value}", style=row.style, soft_wrap=True)
    if table.caption:
        console.print(f"\n{table.caption}", style="dim")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances a bar of `total` gradient queries."""
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
    """Yield a function that shows the progress of a sweep, optionally with its best run so far."""
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
def stage_bars() -> Iterator[tuple[Callable[[str], object], Callable[[Progress], object]]]:
    """Yield `on_stage` and `on_progress` of a comparison, with a progress bar for each stage."""
    with ExitStack() as bar:
        show: list[Callable[[Progress], object]] = []

        def begin(stage: str) -> None:
            bar.close()
            # Without the best run so far, which may be a lucky one: fresh seeds decide.
            show[:] = [bar.enter_context(sweep_bar(stage, best=False))]

        yield begin, lambda progress: show[0](progress)


@contextmanager
def download_bar(what: str) -> Iterator[Callable[[int, int | None], object]]:
    """Yield a function that shows the bytes downloaded, and the total if known."""
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
    """Yield a function that updates a bar, which appears at the first update, on terminals only."""
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


Advance = Callable[[int], object]
Callbacks = list[Callable[["Record"], object]]


@contextmanager
def announced(
    on: str | None, address: str | None, in_rounds: Sequence[int], advance: Advance
) -> Iterator[tuple[Callbacks, Advance]]:
    """Connect to a cluster if requested, and announce the time that a simulation takes on it.

    Yields callbacks and an `on_progress` that calls `advance`. `in_rounds` are the gradient queries
    of the rounds.
    """
    if on is None:
        yield [], advance
        return
    from fedac.cluster import connect, nodes

    with connect(address):
        found = [node.cpus for node in nodes() if node.cpus]
        estimate = _Estimate(in_rounds, _where(len(found), sum(found)), advance)
        yield [estimate.start], estimate.advance


class _Estimate:
    """Predicts the time of a simulation from its first round."""

    def __init__(self, in_rounds: Sequence[int], where: str, advance: Advance) -> None:
        self._first, self._total = in_rounds[0], sum(in_rounds)
        self._where = where
        self._advance = advance
        self._started: float | None = None
        self._done = 0

    def start(self, record: Record) -> None:
        """Start the clock at the first record, after compilation."""
        self._started = self._started or time.monotonic()

    def advance(self, queries: int) -> None:
        """Count queries; announce the time of the simulation after the first round."""
        self._advance(queries)
        before, self._done = self._done, self._done + queries
        if before < self._first <= self._done and self._started is not None:
            seconds = (time.monotonic() - self._started) * self._total / self._first
            notice(f"this takes about {duration(seconds)} on {self._where}")


def _where(nodes: int, cores: int) -> str:
    """Describe a cluster.

    >>> _where(2, 16), _where(1, 1)
    ('2 nodes with 16 cores', '1 node with 1 core')
    """
    many = (
        f"{count} {name}{'s' * (count > 1)}" for count, name in ((nodes, "node"), (cores, "core"))
    )
    return " with ".join(many)
