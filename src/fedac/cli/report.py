"""`fedac report`: the runs of a store as one HTML file."""

from __future__ import annotations

from pathlib import Path

import typer

from fedac.cli.parse import BAND, nonempty_path


def command(
    directory: Path = typer.Argument(
        metavar="DIR", parser=nonempty_path, help="The output folder of a sweep."
    ),
    out: Path | None = typer.Option(
        None,
        metavar="FILE",
        parser=nonempty_path,
        help="The file to write; by default DIR/report.html.",
    ),
    band: str = typer.Option("range", help=BAND),
) -> None:
    """Write the runs of a sweep as one HTML file with interactive figures."""
    from fedac.experiments.report import write
    from fedac.experiments.store import Store

    with Store(directory) as store:
        path = write(store, out or directory / "report.html", band)
    print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
