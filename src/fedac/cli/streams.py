"""stdout and stderr, whatever the caller connected them to."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def prepare_streams() -> None:
    """Let nothing we print fail for where it goes or how it is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as `2>&-` does
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            # A file name may hold what the terminal's encoding does not.
            stream.reconfigure(errors="backslashreplace")


def flush_results() -> None:
    """Write out stdout now, so that a full disk or a closed pipe is noticed while we can speak.

    Raises
    ------
    OSError
        When that fails.
    """
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try again at exit, and complain: let what is left go nowhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise


def notice(message: str) -> None:
    """Say something on stderr, in one line whatever a file is called."""
    line = "".join(c if c.isprintable() else " " for c in message)
    print(f"fedac: {line}", file=sys.stderr)


def results_console() -> Console:
    """Return a console for tables; in a pipe or a file their lines are not cut."""
    from rich.console import Console

    class Results(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would end with code 1; we end as other commands do

    return Results(width=None if sys.stdout.isatty() else 10_000)
