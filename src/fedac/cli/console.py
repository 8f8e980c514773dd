# SPDX-License-Identifier: Apache-2.0
"""Output of the command: results on stdout, notices and progress bars on stderr."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from fedac.data import Dataset
    from fedac.experiments.store import Store
    from fedac.experiments.sweep import Progress

# Work that is over sooner needs neither an estimate nor lines of progress (seconds).
LONG = 5.0
# Lines of progress where there is no terminal: the first one, and those after it.
FIRST_LINE, SECONDS_BETWEEN_LINES, SHARE_OF_A_LINE = 2.0, 30.0, 0.1
# Columns of a progress bar, and of the time that is left.
BAR, LEAST_BAR, TIME_LEFT = 40, 6, 7
# From this ratio of the columns' deviations on, all methods are slow.
MUCH_WIDER = 20.0


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


def wants_color(stream: Any) -> bool:
    """Return whether output to a stream is colored: on terminals, unless a variable decides."""
    if os.environ.get("NO_COLOR"):
        return False
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return bool(os.environ.get("FORCE_COLOR")) or terminal


def notice(message: str) -> None:
    """Print a message to stderr on one line, even if it quotes an odd file name."""
    line = "".join(c if c.isprintable() else " " for c in message)
    print(f"fedac: {line}", file=sys.stderr)


def notice_compiling() -> None:
    """Explain why the first run takes longer."""
    notice("compiling the simulator for this kind of problem, once; this takes up to a minute")


def notice_targets(data: Dataset, loss: str, *, intercept: bool) -> None:
    """Print how the targets are interpreted, unless the classes are -1 and +1.

    Advise on options that the data need.
    """
    from fedac.data.tables import has_constant_column, scale_spread
    from fedac.objectives.losses import describe_target, targets_of

    if data.classes != (-1.0, 1.0):
        column = f", column '{data.columns.target}'" if data.columns and data.columns.target else ""
        notice(f"{data.name}{column}: {describe_target(data, loss)}")
    spread = scale_spread(data)
    if spread > MUCH_WIDER:
        notice(f"a column is {spread:.2g} times as wide as most others: try --standardize")
    y = targets_of(data, loss)
    far = loss in ("least-squares", "huber", "poisson") and abs(y.mean()) > y.std()
    if far and not intercept and not has_constant_column(data):
        notice(f"the targets are far from 0, {y.mean():.3g} on average: try --intercept")


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


def notice_long(seconds: float, advice: str = "") -> None:
    """Print how long the work takes, if it takes long."""
    if seconds > LONG:
        notice(f"this takes up to {duration(seconds)}{f': {advice}' if advice else ''}")


def say_next(*lines: str) -> None:
    """Print what to do next, on a terminal only: a program that reads the output gets results."""
    if sys.stdout.isatty():
        print("Next:", "\n      ".join(lines))


def results_console() -> Console:
    """Return a console on stdout that never cuts lines in a pipe or a file."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with code 1; `main` exits like other commands

    width = None if sys.stdout.isatty() else 10_000
    return Results(width=width, highlight=False, markup=False, emoji=False)


def print_table(
    rows: Iterable[Mapping[str, str]],
    *,
    words: Collection[str] = (),
    bands: Collection[str] = (),
    title: str | None = None,
    caption: str | None = None,
    bold: Collection[int] = (),
) -> None:
    """Print a table of numbers; rows are cells by heading, columns named in `words` contain text.

    On a narrow terminal, headings, text and the intervals in the columns named in `bands` wrap
    between words; no word and no number is cut.
    """
    from rich.cells import cell_len
    from rich.table import Table

    console, rows = results_console(), list(rows)
    columns = list(zip(rows[0], *(row.values() for row in rows), strict=True))
    narrowest = []
    for heading, *cells in columns:
        whole = " ".join(cells).split() if heading in words or heading in bands else cells
        narrowest.append(max(map(cell_len, [*heading.split(), *whole])))
    # A column has a border on its left and a space on either side. If not even the narrowest
    # table fits, the terminal wraps its lines.
    console.width = max(console.width, sum(narrowest) + 3 * len(columns) + 1)
    spare = console.width - sum(narrowest) - 3 * len(columns) - 1
    table = Table(title=title, caption=caption)
    for column, low in zip(columns, narrowest, strict=True):
        width = min(max(map(cell_len, column)), low + spare)
        spare -= width - low
        justify: Any = "left" if column[0] in words else "right"
        table.add_column(column[0], justify=justify, width=width)
    for number, row in enumerate(rows):
        table.add_row(*row.values(), style="bold" if number in bold else None)
    console.print(table)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances a bar of `total` gradient queries."""
    start, done = None, 0
    with _bar(what) as update:

        def advance(queries: int) -> None:
            nonlocal start, done
            start = start or time.monotonic()  # after compiling
            done += queries
            update(done, total, [f"{done / total:4.0%}", _rate(done, start)])

        yield advance


@contextmanager
def sweep_bar(what: str, *, best: bool = True) -> Iterator[Callable[[Progress], object]]:
    """Yield a function that shows the progress of a sweep, optionally with its best run so far."""
    start = time.monotonic()
    with _bar(what) as update:

        def show(progress: Progress) -> None:
            parts = [f"{progress.done}/{progress.cells}", _rate(progress.queries, start)]
            if best and progress.best:
                suboptimality, algorithm, eta = progress.best
                parts += [f"best {suboptimality:.2e}", f"{algorithm}, eta={eta:g}"]
            if progress.running:
                nodes = ", ".join(f"{node} {count}" for node, count in progress.running.items())
                parts.append(f"running on {nodes}")
            update(progress.work, 1.0, parts)

        yield show


@contextmanager
def stage_bars(*, long: bool = False) -> Iterator[tuple[Callable[[str], object], Any]]:
    """Yield `on_stage` and `on_progress` of a comparison, with a progress bar for each stage.

    If it takes `long` and there is no terminal, a line announces each stage.
    """
    with ExitStack() as bar:
        show: list[Callable[[Progress], object]] = []

        def begin(stage: str) -> None:
            bar.close()
            if long and not sys.stderr.isatty():
                notice(stage)
            # Without the best run so far, which may be a lucky one: fresh seeds decide.
            show[:] = [bar.enter_context(sweep_bar(stage, best=False))]

        yield begin, lambda progress: show[0](progress)


@contextmanager
def download_bar(what: str) -> Iterator[Callable[[int, int | None], object]]:
    """Yield a function that shows the bytes downloaded, and the total if known."""
    with _bar(what) as update:

        def show(done: int, total: int | None) -> None:
            of_total = f" of {total / 1e6:.1f}" if total else ""
            update(done, total, [f"{done / 1e6:.1f}{of_total} MB"])

        yield show


def _rate(queries: int, start: float) -> str:
    seconds = time.monotonic() - start
    return f"{queries / seconds / 1e6:.1f} M gradients/s" if seconds > 0.1 else ""


@contextmanager
def _bar(what: str) -> Iterator[Callable[[float, float | None, Sequence[str]], object]]:
    """Yield a function that shows how much is done of a total, and notes, the first ones first.

    On a terminal, a bar appears at the first update; elsewhere, a line now and then.
    """
    if not sys.stderr.isatty():
        yield _Lines(what).update
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        # It takes what the numbers leave.
        BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=BAR)),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", visible=False, note="")

        def update(done: float, total: float | None, notes: Sequence[str]) -> None:
            name, note = fit(what, notes, console.width)
            bar.update(task, completed=done, total=total, description=name, note=note, visible=True)

        yield update


def fit(what: str, notes: Sequence[str], width: int) -> tuple[str, str]:
    """Return the name and the notes of a bar that fit into a line, the first notes first.

    >>> fit("search 1 of 4", ["12/60", "3.1 M gradients/s", "best 1e-3"], 60)
    ('search 1 of 4', '12/60, 3.1 M gradients/s')
    """
    room = width - LEAST_BAR - TIME_LEFT - 3  # and spaces between the columns
    note = notes[0]
    most = max(min(width // 3, room - len(note)), 8)
    name = what if len(what) <= most else f"{what[: most - 1]}…"
    for more in filter(None, notes[1:]):
        if len(name) + len(note) + 2 + len(more) > room:
            break
        note += f", {more}"
    return name, note


class _Lines:
    """Progress as plain lines, for pipes and logs: rarely, and not for short work."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.began: tuple[float, float] | None = None  # the time and the share done
        self.said: tuple[float, float] | None = None

    def update(self, done: float, total: float | None, notes: Sequence[str]) -> None:
        """Print a line, if it is time for one."""
        if not total or not done:
            return
        now, share = time.monotonic(), done / total
        if self.began is None:  # what comes before is compilation
            self.began = now, share
        (start, before), left = self.began, math.inf
        if share > before:
            left = (now - start) * (1 - share) / (share - before)
        if now - start < FIRST_LINE or left < LONG:
            return
        if self.said is None or (
            now - self.said[0] >= SECONDS_BETWEEN_LINES and share - self.said[1] >= SHARE_OF_A_LINE
        ):
            ends = f", {duration(left)} left" if left < math.inf else ""
            notice(f"{self.what}: {share:.0%} done{ends}")
            self.said = now, share


@contextmanager
def stoppable(what: str, store: Store | None) -> Iterator[None]:
    """Report what is kept in a store if the sweep in this block stops early."""
    from fedac.experiments import sweep
    from fedac.processes import WorkerDiedError

    folder = store and store.path.parent
    # Cluster schedulers send SIGTERM: treat it like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except sweep.GroupsFailedError as error:
        notice(str(error))
        raise click.exceptions.Exit(1) from error
    except WorkerDiedError as error:
        notice(f"{error}; finished runs are kept in '{folder}'" if folder else str(error))
        raise click.exceptions.Exit(1) from error
    except KeyboardInterrupt as stop:
        if folder:
            runs = "finished runs"
            if isinstance(stop, sweep.SweepInterrupted):  # and not between two sweeps
                runs = f"{stop.done} of {stop.cells} runs"
            notice(f"{what}: {runs} are kept in '{folder}'; the same command continues from there")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def notice_disguised(disguised: int, runs: int) -> None:
    """Report runs of FedAc that degenerate to FedAvg."""
    if disguised:
        notice(
            f"{disguised} of {runs} runs are FedAvg in disguise: with eta mu K >= 1 FedAc does not "
            "accelerate"
        )
