"""`fedac bench`: the fast engine against the reference and against other tools."""

from __future__ import annotations

import sys

import typer


def bench(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Measure the engine: ratios of medians, taken in turn in one run."""
    from fedac.experiments import bench as experiment
    from fedac.experiments.machine import describe_machine

    lines = []
    for line in experiment.run(lambda what: print(f"measuring: {what}", file=sys.stderr)):
        lines.append(line)
    if as_json:
        print(experiment.as_json(lines))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=", ".join(f"{key} {value}" for key, value in describe_machine().items()))
    for heading in ("what", "ours", "other", "unit", "ratio", "bar"):
        table.add_column(heading, justify="left" if heading in ("what", "unit") else "right")
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
    Console().print(table)
