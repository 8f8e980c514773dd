"""`fedac export`: the runs of a store as CSV or Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fedac.cli.options import LINK, WAN, Command, argument, nonempty_path, output_file
from fedac.errors import InputError


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
def command(
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
