"""`fedac demo`: four algorithms on the embedded data set, no network needed."""

from __future__ import annotations

from pathlib import Path

import typer

from fedac.cli.parse import output_folder
from fedac.cli.progress import progress_bar
from fedac.cli.streams import results_console


def demo(
    out: Path = typer.Option(Path("fedac-demo"), help="Folder for the figure."),
) -> None:
    """Show how few rounds each of four algorithms needs on the embedded data."""
    from rich.table import Table

    from fedac import data
    from fedac.algorithms import get
    from fedac.experiments import demo as experiment
    from fedac.objectives import LogisticRegression

    path = output_folder(out, option="--out") / "rounds.png"
    dataset = data.load("synthetic")
    objective = LogisticRegression(dataset.X, dataset.y, l2=1e-3)
    with progress_bar("demo", total=experiment.queries()) as advance:
        cells = experiment.run(objective, advance)

    table = Table(
        title=f"rounds to reach {experiment.TARGET:g}: {experiment.M} workers, "
        f"{experiment.T} steps each, synthetic data"
    )
    for heading in ("algorithm", "rounds", "K", "eta", "suboptimality", "MB per worker"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    needed = {name: experiment.fewest_rounds(cells, name) for name in experiment.ALGORITHMS}
    for name, cell in needed.items():
        if cell is None:
            table.add_row(get(name).label, f"more than {experiment.T}", "", "", "", "")
            continue
        table.add_row(
            get(name).label,
            str(cell.rounds),
            str(cell.K),
            f"{cell.eta:g}",
            f"{cell.suboptimality:.2e}",
            f"{cell.megabytes:.3g}",
        )
    results_console().print(table)
    print(_verdict({name: cell.rounds for name, cell in needed.items() if cell is not None}))
    title = "Embedded data: accuracy against communication"
    experiment.figure(cells, title).savefig(path, dpi=150)
    print(f"Figure: {path}")


def _verdict(rounds: dict[str, int]) -> str:
    """Name the algorithm, or the several, that needed the fewest rounds."""
    from fedac.algorithms import get
    from fedac.experiments.demo import TARGET

    if not rounds:
        return f"No algorithm reached the target of {TARGET:g}."
    fewest = min(rounds.values())
    winners = [get(name).label for name, needed in rounds.items() if needed == fewest]
    return f"Fewest rounds: {' and '.join(winners)}, {fewest}."
