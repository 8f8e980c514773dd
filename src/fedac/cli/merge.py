"""`fedac merge`: merge the stores of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedac.cli.options import Command, argument, nonempty_path, output_folder

if TYPE_CHECKING:
    from fedac.experiments.merge import Joined


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
def command(*, out: Path, sources: tuple[Path, ...]) -> None:
    """Merge the runs of several sweeps into one folder.

    Runs that are already there are not added again. If two folders disagree on a run, nothing from
    the second is added.
    """
    from fedac.experiments.merge import merge_stores

    merged = merge_stores(output_folder(out, option="OUT"), sources, _print_joined)
    added = sum(each.added for each in merged.joined)
    print(f"{out}: {added} runs added, {merged.runs} in all")


def _print_joined(joined: Joined) -> None:
    """Report each folder at once: a later one may be refused."""
    print(f"{joined.source}: {joined.added} runs added, {joined.before} already there")
