"""`fedac export`: the runs of a store as a file for other programs."""

from __future__ import annotations

from pathlib import Path

import typer

from fedac.errors import InputError


def export(
    directory: Path = typer.Argument(help="The --out folder of a sweep."),
    csv: Path | None = typer.Option(None, help="Write a line per run to this file."),
    parquet: Path | None = typer.Option(None, help="The same, and how it was made, as Parquet."),
) -> None:
    """Write all runs of a store to a CSV or Parquet file."""
    if csv is None and parquet is None:
        raise InputError("say where to: --csv FILE, --parquet FILE, or both")
    from fedac.experiments.store import Store

    with Store(directory) as store:
        if csv is not None:
            store.export_csv(csv)
        if parquet is not None:
            store.export_parquet(parquet)
