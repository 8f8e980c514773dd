"""`fedac demo`: the paper's main example on the embedded a9a, without a network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedac.cli.console import new_table, print_table
from fedac.cli.options import MEGABYTES, Command, nonempty_path, output_folder
from fedac.cli.sweep import run_with_bar

if TYPE_CHECKING:
    import pandas as pd


@click.command("demo", cls=Command)
@click.option(
    "--out",
    type=nonempty_path,
    default=Path("fedac-demo"),
    metavar="DIR",
    help="Folder for the runs, the figure and the report; created if missing.",
)
def command(out: Path) -> None:
    """Show how few rounds four algorithms need on the paper's data set a9a."""
    from fedac.experiments import report
    from fedac.experiments.export import with_costs
    from fedac.experiments.reproduction import demo as experiment
    from fedac.experiments.reproduction.published import headlines, published_cells, published_runs
    from fedac.experiments.store import Store
    from fedac.experiments.summary import tuned
    from fedac.experiments.workload import prepare
    from fedac.federation.link import DEFAULT_LINK

    folder = output_folder(out, option="--out")
    loaded = prepare(experiment.GRID)
    with Store(folder, create=True) as store:
        done = run_with_bar("demo", *loaded, store)
        runs = store.frame()
        runs = with_costs(runs[runs["key"].isin(done.keys)], DEFAULT_LINK)
        best = tuned(runs.drop(columns="rounds"))
        page = report.write(store, folder / "report.html")
    picture = folder / "rounds.png"
    experiment.figure(best).savefig(picture, dpi=150)
    published = published_cells(best, published_runs())
    _print_rounds(headlines(best, published, [experiment.TARGET]))
    print(f"Figure: {picture}")
    print(f"Report: {page}")


def _print_rounds(curves: pd.DataFrame) -> None:
    """Print the fewest rounds of every algorithm, and the winner."""
    from fedac.algorithms import get
    from fedac.experiments.reproduction.demo import GRID, TARGET
    from fedac.experiments.summary import fewest_note, records

    table = new_table(
        "algorithm", "rounds", "published", "K", "step size", "F - F*", "MB",
        words=("algorithm",),
        title=f"Rounds to come within {TARGET:g} of the optimum: {GRID.dataset}, "
        f"l2 = {GRID.l2:g}, {GRID.workers} workers",
        caption=f"Median of {len(GRID.several('seed'))} seeds, range in brackets. Published: the "
        f"authors' runs with the same number of workers. {MEGABYTES} {fewest_note(curves)}",
    )  # fmt: skip
    curves = curves.set_index("algorithm", drop=False).loc[list(GRID.several("algorithm"))]
    for row in records(curves):
        numbers = (f"{row.K:.0f}", row.step_size, f"{row.middle:.2e}", f"{row.megabytes:.3g}")
        published = row.published if isinstance(row.published, str) else ""
        found = numbers if row.step_size else ("", "", "", "")
        table.add_row(get(row.algorithm).label, row.text, published, *found)
    print_table(table)
    fewest = curves["rounds"].min()
    winners = [get(name).label for name in curves[curves["rounds"] == fewest]["algorithm"]]
    if math.isinf(fewest):
        print(f"No algorithm reached the target of {TARGET:g}.")
    else:
        print(f"Fewest rounds: {' and '.join(winners)}, {fewest:.0f}.")
