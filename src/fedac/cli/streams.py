"""Standard output and error, whatever they are connected to."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def prepare_streams() -> None:
    """Make printing safe: no failure for a closed stream or a character it cannot encode."""
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
    """Say why the first run takes longer."""
    notice("compiling the simulator for this kind of problem, once; this takes up to a minute")


def duration(seconds: float) -> str:
    """Format a time for people.

    Examples
    --------
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
    """Print a table to stdout without cutting a number, however narrow the terminal is.

    Where the table is too wide, headings and text wrap between words; where that is not enough,
    the rows are printed as lists.
    """
    console = results_console()
    if _fit(table, console.width):
        console.print(table)
    else:
        _print_lists(table, console)


def _fit(table: Table, width: int) -> bool:
    """Choose widths of columns that cut no word and no number; False if there are none."""
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
