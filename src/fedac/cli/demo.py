"""`fedac demo`: four algorithms on the embedded data set, no network needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedac.cli.parse import nonempty_path, output_folder
from fedac.cli.streams import results_console
from fedac.cli.sweep import run_grid

if TYPE_CHECKING:
    import pandas as pd


def demo(
    out: Path = typer.Option(
        Path("fedac-demo"),
        metavar="DIR",
        parser=nonempty_path,
        help="Folder for runs, figure and report.",
    ),
) -> None:
    """Show how few rounds each of four algorithms needs on the embedded data."""
    from fedac.experiments import demo as experiment
    from fedac.experiments import report
    from fedac.experiments.paper import tuned
    from fedac.experiments.store import Store

    folder = output_folder(out, option="--out")
    with Store(folder, create=True) as store:
        done = run_grid(experiment.GRID, store)
        runs = store.frame()
        cells = tuned(runs[runs["key"].isin(done.keys)])
        page = report.write(store, folder / "report.html")
    picture = folder / "rounds.png"
    title = "Embedded data: accuracy against communication"
    experiment.figure(cells, title).savefig(picture, dpi=150)
    _print_table(cells)
    print(f"Figure: {picture}")
    print(f"Report: {page}")


def _print_table(cells: pd.DataFrame) -> None:
    from rich.table import Table

    from fedac.algorithms import get
    from fedac.experiments.demo import GRID, TARGET, fewest_rounds

    table = Table(
        title=f"rounds to reach {TARGET:g}: {GRID.workers[0]} workers, {GRID.steps} steps each, "
        f"{GRID.dataset} data"
    )
    for heading in ("algorithm", "rounds", "K", "eta", "suboptimality", "MB per worker"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    rounds = {}
    for name in GRID.algorithms:
        cell = fewest_rounds(cells, name)
        if cell is None:
            table.add_row(get(name).label, f"more than {GRID.steps}", "", "", "", "")
            continue
        rounds[name] = cell["T"] // cell["K"]
        table.add_row(
            get(name).label,
            str(rounds[name]),
            str(cell["K"]),
            f"{cell['eta']:g}",
            f"{cell['suboptimality']:.2e}",
            f"{cell['megabytes_per_worker']:.3g}",
        )
    results_console().print(table)
    print(_verdict(rounds))


def _verdict(rounds: dict[str, int]) -> str:
    """Name the algorithm, or the several, that needed the fewest rounds."""
    from fedac.algorithms import get
    from fedac.experiments.demo import TARGET

    if not rounds:
        return f"No algorithm reached the target of {TARGET:g}."
    fewest = min(rounds.values())
    winners = [get(name).label for name, needed in rounds.items() if needed == fewest]
    return f"Fewest rounds: {' and '.join(winners)}, {fewest}."
