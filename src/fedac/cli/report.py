"""`fedac report`: all runs of a store in one HTML file."""

from __future__ import annotations

from pathlib import Path

import typer

from fedac.cli.parse import nonempty_path


def report(
    directory: Path = typer.Argument(
        metavar="DIR", parser=nonempty_path, help="The folder of a sweep."
    ),
    out: Path | None = typer.Option(
        None,
        metavar="FILE",
        parser=nonempty_path,
        help="The file to write; DIR/report.html unless given.",
    ),
) -> None:
    """Write one self-contained HTML file: interactive figures, and the published numbers beside."""
    from fedac.experiments.report import write
    from fedac.experiments.store import Store

    with Store(directory) as store:
        path = write(store, out or directory / "report.html")
    print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
