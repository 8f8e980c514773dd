"""`fedac reproduce`: the paper's figures, and our runs compared with the published ones."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedac.cli.console import new_table, notice, print_table
from fedac.cli.options import (
    BAND,
    JOBS,
    Command,
    argument,
    nonempty_path,
    output_folder,
    whole_numbers,
)
from fedac.cli.sweep import counts, run_with_bar
from fedac.errors import DataError
from fedac.validate import unknown_name

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.reproduction.figures import Figure
    from fedac.experiments.store import Store
    from fedac.experiments.workload import Group, Workload
    from fedac.federation.spec import Spec

STAND_IN = "synthetic-dense"
# A dense step costs a hundred times as much as one on a9a; 128 workers take minutes.
STAND_IN_WORKERS = 128
WITHOUT_EPSILON = (
    "epsilon is not on this machine: 'fedac data fetch epsilon' downloads it (12 GB), or "
    f"--dataset {STAND_IN} draws figures 6 and 7 from generated data of the same shape"
)


@click.command("reproduce", cls=Command)
@argument(
    "figures", nargs=-1, required=True, metavar="FIGURE...", help="figure-1 to figure-7, or all."
)
@click.option(
    "--out",
    type=nonempty_path,
    default=Path("fedac-reproduction"),
    metavar="DIR",
    help="Folder for the store, the figures and the report; created if missing.",
)
@click.option(
    "--dataset", help="Use this data set instead of the paper's: a name or a LIBSVM file."
)
@click.option(
    "--seeds", default="1", help="Seeds, separated by commas. Several give a line with a band."
)
@click.option("--band", default="range", help=BAND)
@click.option("--jobs", "-j", type=int, help=JOBS)
def command(
    *,
    figures: tuple[str, ...],
    out: Path,
    dataset: str | None,
    seeds: str,
    band: str,
    jobs: int | None,
) -> None:
    """Draw the paper's figures and compare our runs with the published ones.

    Runs that are already in DIR are not repeated. The figures show suboptimality:

    \b
    figure-1  a9a, l2 = 0.001, against the workers M
    figure-2  a9a, l2 = 0.0001, against the workers M (instability)
    figure-3  a9a, l2 = 0.001, against the local steps K
    figure-4  a9a, l2 = 0.01, against the workers M
    figure-5  a9a, l2 = 0.01, against the local steps K
    figure-6  epsilon, l2 = 0.0001, against the workers M
    figure-7  epsilon, l2 = 0.0001, against the local steps K
    """  # noqa: D301 - click leaves lines after a backspace as they are
    import pandas as pd

    from fedac.experiments import report
    from fedac.experiments.reproduction.figures import draw
    from fedac.experiments.store import Store
    from fedac.experiments.summary import find_spread
    from fedac.experiments.workload import prepare
    from fedac.plotting import save_figure

    find_spread(band)
    wanted = _figures(figures, dataset)
    seed_list = whole_numbers(seeds, option="--seeds")
    folder = output_folder(out, option="--out")
    pictures = output_folder(out / "figures", option="--out")
    grids = {figure.sweep: _grid(figure.sweep, dataset, seed_list) for figure in wanted}
    # Load the data first: if that fails, no empty store is left behind.
    loaded = {name: prepare(grid) for name, grid in grids.items()}
    with Store(folder, create=True) as store:
        best = {name: _tuned_runs(name, *each, store, jobs) for name, each in loaded.items()}
        page = report.write(store, folder / "report.html", band)
    pictures.mkdir(exist_ok=True)
    drawn = []
    for figure in wanted:
        runs = best[figure.sweep]
        figure = figure.drawn_from(grids[figure.sweep], runs)
        png, pdf = save_figure(draw(runs, figure, band), pictures, figure.name)
        print(f"{figure.title}: {png}, {pdf.name}")
        drawn.append(figure.select(runs))
    print(f"Everything in one file: {page}")
    _print_comparison(pd.concat(drawn).drop_duplicates("key"))


def _figures(names: tuple[str, ...], dataset: str | None) -> list[Figure]:
    """Look up the figures: each once, in the paper's order.

    If epsilon is needed but missing, its figures raise, or are skipped from "all" with a notice.
    Other data sets are small: they are downloaded when they are needed.
    """
    from fedac.data import registry
    from fedac.experiments.reproduction.figures import FIGURES

    for name in names:
        if name not in FIGURES and name != "all":
            raise unknown_name("figure", name, [*FIGURES, "all"])
    wanted = [figure for name, figure in FIGURES.items() if name in names or "all" in names]
    if dataset is None and any(figure.dataset == "epsilon" for figure in wanted):
        try:
            registry.find("epsilon")
        except DataError:
            if "all" not in names:
                raise DataError(WITHOUT_EPSILON) from None
            notice(f"skipping figures 6 and 7: {WITHOUT_EPSILON}")
            return [figure for figure in wanted if figure.dataset != "epsilon"]
    return wanted


def _grid(sweep: str, dataset: str | None, seeds: list[int]) -> Spec:
    """Return a shipped grid with these seeds, on another data set if one is given."""
    from fedac.experiments.grid import given_values, read_grid, shipped
    from fedac.federation.spec import SWEEP, command_option
    from fedac.federation.spec_checks import check_spec

    grid = read_grid(shipped(sweep))
    values = {**given_values(grid), "seeds": seeds}
    if dataset is not None:
        values["dataset"] = dataset
    if dataset == STAND_IN:
        values["workers"] = [M for M in grid.several("workers") if M <= STAND_IN_WORKERS]
    return check_spec(replace(SWEEP, spell=command_option), values)


def _tuned_runs(
    name: str, task: Workload, groups: list[Group], store: Store, jobs: int | None
) -> pd.DataFrame:
    """Run what is missing from the store, and return the best run of each cell of the grid."""
    from fedac.experiments.summary import tuned

    before = time.perf_counter()
    done = run_with_bar(name, task, groups, store, jobs=jobs)
    seconds = time.perf_counter() - before
    print(f"{name}: {done.new} runs in {seconds:.0f} s, {counts(done)}", file=sys.stderr)
    runs = store.frame()
    return tuned(runs[runs["key"].isin(done.keys)])


def _print_comparison(runs: pd.DataFrame) -> None:
    from fedac.experiments.reproduction import published as paper
    from fedac.experiments.summary import edge_note

    cells = paper.published_cells(runs, paper.published_runs())
    if cells.empty:
        print("There are no published runs to compare these with.")
        return
    _print_deviations(cells)
    _print_worst(cells)
    rounds = paper.headlines(runs, cells, [claim.target for claim in paper.CLAIMS])
    _print_rounds(rounds.dropna(subset=["paper", "published"]))
    if note := edge_note(cells):
        print(note)


def _print_deviations(cells: pd.DataFrame) -> None:
    from rich.markup import escape

    from fedac.experiments.reproduction.published import MANY_WORKERS, judged

    table = new_table(
        "problem", "cells", f"with M >= {MANY_WORKERS}", "median of these", "95th percentile",
        words=("problem",),
        title="Our runs and the published ones: |log2(ours/published)|",
    )  # fmt: skip
    parts = {f"{name}, l2 = {l2:g}": part for (name, l2), part in cells.groupby(["dataset", "l2"])}
    for name, part in parts.items() if len(parts) == 1 else [*parts.items(), ("all", cells)]:
        off = judged(part)["deviation"]
        numbers = (len(part), len(off), f"{off.median():.3f}", f"{off.quantile(0.95):.3f}")
        table.add_row(escape(name), *map(str, numbers))
    print_table(table)


def _print_worst(cells: pd.DataFrame) -> None:
    from rich.markup import escape

    from fedac.algorithms import get
    from fedac.experiments.reproduction.published import judged
    from fedac.experiments.summary import records

    table = new_table(
        "problem", "algorithm", "M", "K", "step size", "ours", "published", "log2 ratio",
        words=("problem", "algorithm"),
        title="The largest deviations",
    )  # fmt: skip
    for cell in records(judged(cells)[:5]):
        table.add_row(
            escape(f"{cell.dataset}, l2 = {cell.l2:g}"), get(cell.algorithm).label, str(cell.M),
            str(cell.K), cell.step_size, f"{cell.middle:.2e}", f"{cell.published:.2e}",
            f"{cell.log2_ratio:+.2f}",
        )  # fmt: skip
    print_table(table)


def _print_rounds(rounds: pd.DataFrame) -> None:
    from rich.markup import escape

    from fedac.algorithms import get
    from fedac.experiments.summary import fewest_note, records

    table = new_table(
        "target", "algorithm", "ours", "step size", "published", "paper's text",
        words=("target", "algorithm"),
        title="Rounds to the target suboptimality",
        caption="Several seeds: median, with the range in brackets. The paper's 32 rounds end at "
        f"1.04e-3 in its authors' own table. {fewest_note(rounds)}",
    )  # fmt: skip
    for row in records(rounds):
        target = escape(f"{row.target:g} on {row.dataset}, l2 = {row.l2:g}, M = {row.M}")
        ours = (get(row.algorithm).label, row.text, row.step_size)
        table.add_row(target, *ours, row.published, f"{row.paper:.0f}")
    if table.rows:
        print_table(table)
