"""`fedac demo`: four algorithms on the embedded data set, no network needed."""

from __future__ import annotations

from pathlib import Path

import typer

from fedac.cli.progress import progress_bar


def demo(
    out: Path = typer.Option(Path("fedac-demo"), help="Folder for the figure."),
) -> None:
    """Show how few rounds each of four algorithms needs on the embedded data."""
    from rich.console import Console
    from rich.table import Table

    from fedac import data
    from fedac.algorithms import get
    from fedac.experiments import demo as experiment
    from fedac.objectives import LogisticRegression

    out.mkdir(parents=True, exist_ok=True)  # fail before computing, not after
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
    console = Console()
    console.print(table)
    reached = {name: cell for name, cell in needed.items() if cell is not None}
    winner = min(reached, key=lambda name: reached[name].rounds)
    console.print(f"Fewest rounds: {get(winner).label}, {reached[winner].rounds}.")
    path = out / "rounds.png"
    title = "Embedded data: accuracy against communication"
    experiment.figure(cells, title).savefig(path, dpi=150)
    console.print(f"Figure: {path}", soft_wrap=True)
