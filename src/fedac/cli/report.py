"""`fedac report`: the runs of a store as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from fedac.cli.options import BAND, LINK, WAN, Command, argument, nonempty_path, output_file


@click.command("report", cls=Command)
@argument("directory", type=nonempty_path, metavar="DIR", help="The output folder of a sweep.")
@click.option(
    "--out",
    type=nonempty_path,
    metavar="FILE",
    help="The file to write. Default: DIR/report.html.",
)
@click.option("--band", default="range", help=BAND)
@click.option("--link", default=WAN, help=LINK)
def command(*, directory: Path, out: Path | None, band: str, link: str) -> None:
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
