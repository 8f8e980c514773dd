"""`fedac bench`: the fast engine against the reference and against other tools."""

from __future__ import annotations

import sys

import typer

from fedac.cli.console import new_table, print_table


def command(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Compare the speed of the engine with other tools on this machine."""
    from fedac.experiments import bench as experiment
    from fedac.experiments.store import describe_machine

    lines = list(experiment.run(lambda what: print(f"measuring: {what}", file=sys.stderr)))
    if as_json:
        print(experiment.as_json(lines))
        return
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    headings = ("what", "ours", "other", "unit", "ratio", "bar")
    table = new_table(*headings, words=("what", "unit"), title=machine)
    for line in lines:
        bar = "" if line.bar is None else f"{'<=' if line.at_most else '>='} {line.bar:g}"
        table.add_row(
            line.what,
            f"{line.ours:.3g}",
            f"{line.theirs:.3g}",
            line.unit,
            f"{line.ratio:.3g}",
            bar,
            style=None if line.passed else "bold red",
        )
    print_table(table)
