"""`fedac reproduce`: the paper's figures, and its authors' numbers beside ours."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedac.cli.parse import nonempty_path, output_folder, whole_numbers
from fedac.cli.streams import results_console
from fedac.cli.sweep import counts, run_grid
from fedac.errors import DataError, unknown_name

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from fedac.experiments.grid import Grid
    from fedac.experiments.paper import Comparison, Figure
    from fedac.experiments.store import Store

STAND_IN = "synthetic-dense"
# A dense step costs a hundred times one of a9a: so many workers take minutes, not hours.
STAND_IN_WORKERS = 128
WITHOUT_EPSILON = (
    "epsilon is not on this machine and is 12 GB to download: 'fedac data fetch epsilon' gets it; "
    f"--dataset {STAND_IN} draws figures 6 and 7 from generated data of its shape"
)


def reproduce(
    figures: list[str] = typer.Argument(metavar="FIGURE...", help="figure-1 to figure-7, or all."),
    out: Path = typer.Option(
        Path("fedac-reproduction"),
        metavar="DIR",
        parser=nonempty_path,
        help="Folder for the store, the figures and the report.",
    ),
    dataset: str | None = typer.Option(
        None, help="Another data set than the paper's: a name or a LIBSVM file."
    ),
    seeds: str = typer.Option(
        "1", help="Seeds, separated by commas; several give a median and a band."
    ),
) -> None:
    """Run what is missing, draw the figures of the paper, compare with the published runs."""
    import pandas as pd

    from fedac.experiments import figures as drawing
    from fedac.experiments import report, sweep
    from fedac.experiments.paper import compare, tuned
    from fedac.experiments.published import published
    from fedac.experiments.store import Store

    wanted = _figures(figures)
    draws = whole_numbers(seeds, option="--seeds")
    if dataset is None:
        wanted = _those_with_data(wanted, leave_out="all" in figures)
    folder = output_folder(out, option="--out")
    pictures = output_folder(out / "figures", option="--out")
    grids = {figure.sweep: _grid(figure.sweep, dataset, draws) for figure in wanted}
    # Data that cannot be had or read leave no empty store behind.
    sweep.prepare(next(iter(grids.values())))
    with Store(folder, create=True) as store:
        best = {name: tuned(_runs(grid, store)) for name, grid in grids.items()}
        page = report.write(store, folder / "report.html")
    pictures.mkdir(exist_ok=True)
    shown = []
    for figure in wanted:
        runs = best[figure.sweep]
        # The data's own name: that of a file, without its folder.
        figure = figure.of(grids[figure.sweep], dataset=runs["dataset"].iloc[0])
        png, pdf = drawing.save(drawing.draw(runs, figure), pictures, figure.name)
        print(f"{figure.title}: {png}, {pdf.name}")
        shown.append(figure.select(runs))
    print(f"All of it in one file: {page}")
    _print_comparison(compare(pd.concat(shown).drop_duplicates("key"), published()))


def _figures(names: list[str]) -> list[Figure]:
    """Look the figures up: each once, in the paper's order."""
    from fedac.experiments.paper import FIGURES

    for name in names:
        if name not in FIGURES and name != "all":
            raise unknown_name("figure", name, [*FIGURES, "all"])
    return [figure for name, figure in FIGURES.items() if name in names or "all" in names]


def _those_with_data(figures: list[Figure], *, leave_out: bool) -> list[Figure]:
    """Refuse figures of epsilon without epsilon, or leave them out and say so.

    Other data sets are small: they are downloaded when they are needed.
    """
    from fedac.data import registry

    if all(figure.dataset != "epsilon" for figure in figures):
        return figures
    try:
        registry.find("epsilon")
    except DataError:
        if not leave_out:
            raise DataError(WITHOUT_EPSILON) from None
        print(f"fedac: figures 6 and 7 are left out: {WITHOUT_EPSILON}", file=sys.stderr)
        return [figure for figure in figures if figure.dataset != "epsilon"]
    return figures


def _grid(sweep: str, dataset: str | None, seeds: list[int]) -> Grid:
    """Return a shipped grid, with the seeds given, and on another data set if one is given."""
    from fedac.experiments.grid import Grid, shipped

    values = Grid.from_toml(shipped(sweep)).model_dump() | {"seeds": seeds}
    if dataset is not None:
        values["dataset"] = dataset
    if dataset == STAND_IN:
        values["workers"] = tuple(M for M in values["workers"] if M <= STAND_IN_WORKERS)
    return Grid.checked(values, lambda key: f"--{key}")


def _runs(grid: Grid, store: Store) -> pd.DataFrame:
    """Run what the store lacks of a grid, and return all its runs."""
    before = time.perf_counter()
    done = run_grid(grid, store)
    seconds = time.perf_counter() - before
    print(f"{grid.name}: {done.new} runs in {seconds:.0f} s, {counts(done)}", file=sys.stderr)
    runs = store.frame()
    return runs[runs["key"].isin(done.keys)]


def _print_comparison(comparison: Comparison) -> None:
    if comparison.cells.empty:
        print("No published runs to compare these with.")
        return
    console = results_console()
    console.print(_summary(comparison))
    console.print(_worst(comparison))
    if comparison.headlines:
        console.print(_headlines(comparison))


def _summary(comparison: Comparison) -> Table:
    from fedac.experiments.paper import MANY_WORKERS

    title = "Our runs beside the published ones: |log2(ours/published)|"
    columns = ("cells", f"with M >= {MANY_WORKERS}", "median of these", "95th percentile")
    table = _table(title, ("problem",), columns)
    parts = comparison.by_problem()
    for name, part in parts if len(parts) == 1 else [*parts, ("all", comparison)]:
        numbers = (f"{value:.3f}" for value in (part.median, part.p95))
        table.add_row(name, str(len(part.cells)), str(len(part.judged)), *numbers)
    return table


def _worst(comparison: Comparison) -> Table:
    from fedac.algorithms import get

    columns = ("M", "K", "ours", "published", "log2 ratio")
    table = _table("The cells that differ most", ("problem", "algorithm"), columns)
    for _, cell in comparison.worst().iterrows():
        table.add_row(
            f"{cell['dataset']}, l2 = {cell['l2']:g}",
            get(cell["algorithm"]).label,
            *(str(cell[axis]) for axis in ("M", "K")),
            *(f"{cell[who]:.2e}" for who in ("ours", "theirs")),
            f"{cell['log2_ratio']:+.2f}",
        )
    return table


def _headlines(comparison: Comparison) -> Table:
    from fedac.algorithms import get

    columns = ("ours", "published", "in the paper's words")
    table = _table("Rounds to reach a suboptimality", ("target", "algorithm"), columns)
    table.caption = (
        "10% above the target counts as reached: the 32 rounds are 1.04e-3 in their table"
    )
    for line in comparison.headlines:
        claim = line.claim
        table.add_row(
            f"{claim.target:g} on {claim.dataset}, l2 = {claim.l2:g}, M = {claim.M}",
            get(line.algorithm).label,
            _rounds(line.ours),
            _rounds(line.theirs),
            str(line.paper),
        )
    return table


def _rounds(rounds: int | None) -> str:
    return "not reached" if rounds is None else str(rounds)


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table(*words, title=title)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table
