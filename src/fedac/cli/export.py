"""`fedac export`: the runs of a store as a file for other programs."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from fedac.cli.parse import nonempty_path
from fedac.errors import InputError


def export(
    directory: Path = typer.Argument(
        metavar="DIR", parser=nonempty_path, help="The --out folder of a sweep."
    ),
    csv: Path | None = typer.Option(
        None, metavar="FILE", parser=nonempty_path, help="Write a line per run to this file."
    ),
    parquet: Path | None = typer.Option(
        None,
        metavar="FILE",
        parser=nonempty_path,
        help="The same, and how it was made, as Parquet.",
    ),
) -> None:
    """Write all runs of a store to a CSV or Parquet file."""
    if csv is None and parquet is None:
        raise InputError("say where to: --csv FILE, --parquet FILE, or both")
    from fedac.experiments.store import Store

    with Store(directory) as store:
        if csv is not None:
            _say(store.export_csv(csv), csv)
        if parquet is not None:
            _say(store.export_parquet(parquet), parquet)


def _say(rows: int, path: Path) -> None:
    # Not to stdout: with --csv /dev/stdout the rows are there.
    print(f"{rows} run{'s' if rows != 1 else ''} written to {path}", file=sys.stderr)
