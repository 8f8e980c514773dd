"""Output of the command: results on stdout, notices and progress bars on stderr."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from fedac.data import Dataset
    from fedac.experiments.store import Store
    from fedac.experiments.sweep import Progress

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
    title: str | None = None,
    caption: str | None = None,
    bold: Collection[int] = (),
) -> None:
    """Print a table of numbers; rows are cells by heading, columns named in `words` contain text.

    On a narrow terminal, headings and text wrap between words; no word and no number is cut.
    """
    from rich.cells import cell_len
    from rich.table import Table

    console, rows = results_console(), list(rows)
    columns = list(zip(rows[0], *(row.values() for row in rows), strict=True))
    narrowest = []
    for heading, *cells in columns:
        whole = " ".join(cells).split() if heading in words else cells
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
