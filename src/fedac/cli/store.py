"""`fedac export`, `fedac merge` and `fedac report`: what to do with the runs of a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedac.cli.options import (
    BAND,
    LINK,
    WAN,
    Command,
    argument,
    nonempty_path,
    output_file,
    output_folder,
)
from fedac.errors import InputError

if TYPE_CHECKING:
    from fedac.experiments.merge import Joined


@click.command("export", cls=Command)
@argument("directory", type=nonempty_path, metavar="DIR", help="The --out folder of a sweep.")
@click.option(
    "--csv", type=nonempty_path, metavar="FILE", help="Write a line per run to this CSV file."
)
@click.option(
    "--traces",
    type=nonempty_path,
    metavar="FILE",
    help="Write a line per recorded loss to this CSV file.",
)
@click.option(
    "--parquet",
    type=nonempty_path,
    metavar="FILE",
    help="Write the runs, with all columns, to this Parquet file.",
)
@click.option("--link", default=WAN, help=LINK)
def export(
    *, directory: Path, csv: Path | None, traces: Path | None, parquet: Path | None, link: str
) -> None:
    """Write the runs of a sweep to CSV or Parquet files.

    The file "-" is the standard output.
    """
    if csv is None and traces is None and parquet is None:
        raise InputError("no output given: pass --csv FILE, --traces FILE or --parquet FILE")
    given = {"--csv": csv, "--traces": traces, "--parquet": parquet}
    targets = {option: path for option, path in given.items() if path is not None}
    if len(set(targets.values())) < len(targets):
        raise InputError("two outputs go to the same file; give each its own")
    from fedac.experiments.export import write_csv, write_parquet, write_traces
    from fedac.experiments.store import Store
    from fedac.federation.link import Link

    on_link = Link.parse(link)
    for option, target in targets.items():
        output_file(target, option=option)
    with Store(directory) as store:
        for option, write, what in (
            ("--csv", write_csv, ("run", "runs")),
            ("--traces", write_traces, ("recorded loss", "recorded losses")),
            ("--parquet", write_parquet, ("run", "runs")),
        ):
            if path := targets.get(option):
                rows = write(store, path, on_link)
                where = "stdout" if str(path) == "-" else path
                print(f"{rows} {what[rows != 1]} written to {where}", file=sys.stderr)


@click.command("merge", cls=Command)
@argument(
    "out",
    type=nonempty_path,
    metavar="OUT",
    help="The folder to add the runs to; created if missing.",
)
@argument(
    "sources",
    type=nonempty_path,
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="The --out folders of sweeps.",
)
def merge(*, out: Path, sources: tuple[Path, ...]) -> None:
    """Merge the runs of several sweeps into one folder.

    Runs that are already there are not added again. If two folders disagree on a run, nothing from
    the second is added.
    """
    from fedac.experiments.merge import merge_stores

    merged = merge_stores(output_folder(out, option="OUT"), sources, _print_joined)
    added = sum(each.added for each in merged.joined)
    print(f"{out}: {added} runs added, {merged.runs} in all")


def _print_joined(joined: Joined) -> None:
    """Report each folder immediately: a later one may fail."""
    print(f"{joined.source}: {joined.added} runs added, {joined.before} already there")


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
def report(*, directory: Path, out: Path | None, band: str, link: str) -> None:
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
