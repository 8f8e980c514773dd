"""`fedac report`: the runs of a store as one HTML file."""

from __future__ import annotations

from pathlib import Path

import typer

from fedac.cli.options import BAND, LINK, WAN, nonempty_path, output_file


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
    link: str = typer.Option(WAN, help=LINK),
) -> None:
    """Write the runs of a sweep as one HTML file with interactive figures."""
    from fedac.experiments.report import write
    from fedac.experiments.store import Store
    from fedac.federation.link import Link

    on_link = Link.parse(link)
    if out is not None:
        output_file(out, option="--out")
    with Store(directory) as store:
        path = write(store, out or directory / "report.html", band, on_link)
    print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
