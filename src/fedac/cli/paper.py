# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments: `fedac reproduce`, `fedac demo` and `fedac instability`."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.algorithms import get
from fedac.cli import console, options
from fedac.cli.compare import QUICK, answer_with_bars
from fedac.cli.sweep import counts, run_with_bar
from fedac.errors import DataError, InputError
from fedac.validate import unknown_name

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.comparison import Comparison
    from fedac.experiments.reproduction.figures import Figure
    from fedac.experiments.store import Store
    from fedac.experiments.workload import Group, Workload
    from fedac.federation.spec import Spec
    from fedac.theory.instability import Instance, Separation

NEXT = """
Next, about a minute each:
  your own table    fedac compare --quick --dataset hospitals.csv --label COLUMN --client COLUMN
  a network         fedac compare --quick --model 'mlp(32)' --dataset digits --clients 20 \\
                        --split label --test 0.2 --target 'accuracy 0.9' --link home
                    (needs PyTorch: pip install torch)"""
STAND_IN = "synthetic-dense"
# A dense step costs a hundred times as much as one on a9a; 128 workers take minutes.
STAND_IN_WORKERS = 128
WITHOUT_EPSILON = (
    "epsilon is not on this machine: 'fedac data fetch epsilon' downloads it (12 GB), or "
    f"--dataset {STAND_IN} draws figures 6 and 7 from generated data of the same shape"
)


@click.command("reproduce", cls=options.Command)
@options.argument(
    "figures", nargs=-1, required=True, metavar="FIGURE...", help="figure-1 to figure-7, or all."
)
@options.folder_option(
    "Folder for the store, the figures and the report; created if missing.",
    default="fedac-reproduction",
)
@options.option(
    "--dataset",
    help="Use this data set instead of the paper's: a name or a file.",
    heading="Problem",
)
@options.option(
    "--seeds",
    default="1",
    help="Seeds, separated by commas. Several give a line with a band.",
    heading="Problem",
)
@options.band_option
@options.jobs_option
def reproduce_command(
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
    seed_list = options.read_list(seeds, option="--seeds")
    if (out / "figures").is_file():
        raise InputError(f"--out takes a writable folder; '{out / 'figures'}' is a file")
    grids = {figure.sweep: _grid(figure.sweep, dataset, seed_list) for figure in wanted}
    # Load the data first: if that fails, no empty store is left behind.
    loaded = {name: prepare(grid) for name, grid in grids.items()}
    with Store(out, create=True) as store:
        best = {name: _tuned_runs(name, *each, store, jobs) for name, each in loaded.items()}
        page = report.write(store, out / "report.html", band)
    (out / "figures").mkdir(exist_ok=True)
    drawn = []
    for figure in wanted:
        runs = best[figure.sweep]
        figure = figure.drawn_from(grids[figure.sweep], runs)
        png, pdf = save_figure(draw(runs, figure, band), out / "figures", figure.name)
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
            console.notice(f"skipping figures 6 and 7: {WITHOUT_EPSILON}")
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
    """Compare our runs with the published ones: overall, the worst cells, and the rounds."""
    from fedac.experiments.reproduction import published as paper
    from fedac.experiments.summary import edge_note, fewest_note, records

    cells = paper.published_cells(runs, paper.published_runs())
    if cells.empty:
        print("There are no published runs to compare these with.")
        return
    parts = [
        (f"{name}, l2 = {l2:g}", part) for (name, l2), part in cells.groupby(["dataset", "l2"])
    ]
    rows = []
    for name, part in parts if len(parts) == 1 else [*parts, ("all", cells)]:
        off = paper.judged(part)["deviation"]
        row = {"problem": name, "cells": str(len(part))}
        row[f"with M >= {paper.MANY_WORKERS}"] = str(len(off))
        row["median of these"] = f"{off.median():.3f}"
        rows.append(row | {"95th percentile": f"{off.quantile(0.95):.3f}"})
    title = "Our runs and the published ones: |log2(ours/published)|"
    console.print_table(rows, words={"problem"}, title=title)
    worst = [
        {"problem": f"{cell.dataset}, l2 = {cell.l2:g}", "algorithm": get(cell.algorithm).label,
         "M": str(cell.M), "K": str(cell.K), "step size": cell.step_size,
         "ours": f"{cell.middle:.2e}", "published": f"{cell.published:.2e}",
         "log2 ratio": f"{cell.log2_ratio:+.2f}"}
        for cell in records(paper.judged(cells)[:5])
    ]  # fmt: skip
    if worst:
        words = {"problem", "algorithm"}
        console.print_table(worst, words=words, title="The largest deviations")
    rounds = paper.headlines(runs, cells, [claim.target for claim in paper.CLAIMS])
    rounds = rounds.dropna(subset=["paper", "published"])
    if len(rounds):
        console.print_table(
            [
                {"target": f"{row.target:g} on {row.dataset}, l2 = {row.l2:g}, M = {row.M}",
                 "algorithm": get(row.algorithm).label, "ours": row.text,
                 "step size": row.step_size, "published": row.published,
                 "paper's text": f"{row.paper:.0f}"}
                for row in records(rounds)
            ],
            words={"target", "algorithm"},
            title="Rounds to the target suboptimality",
            caption="Several seeds: median, with the range in brackets. The paper's 32 rounds end "
            f"at 1.04e-3 in its authors' own table. {fewest_note(rounds)}",
        )  # fmt: skip
    if note := edge_note(cells):
        print(note)


@click.command("demo", cls=options.Command)
@options.folder_option(
    "Folder for the runs, figures and reports; created if missing.", default="fedac-demo"
)
def demo_command(out: Path) -> None:
    """Compare five methods on digits, then show the paper's headline.

    Takes about half a minute. Both parts use data of the package and need no PyTorch.
    """
    from threadpoolctl import threadpool_limits

    from fedac.experiments.comparison.report import NAME, write_files
    from fedac.experiments.reproduction import demo
    from fedac.experiments.store import Store

    # On matrices this small, threads of BLAS only wait for each other.
    with (
        Store(out / "digits", create=True) as store,
        console.stoppable("demo", store),
        threadpool_limits(1),
    ):
        found = answer_with_bars(demo.study(QUICK), store)
    write_files(found, out / "digits")
    _print_methods(found)
    with Store(out, create=True) as store:
        headline, picture, page = _paper_headline(store, out)
    _print_rounds(headline)
    compared = out / "digits" / NAME
    print()
    print(f"Figures: {compared}.png, {picture}")
    print(f"Reports: {compared}.html, {page}")
    print(NEXT)


def _print_methods(found: Comparison) -> None:
    """Print the cost of the target for each method, and the verdict."""
    rows = []
    for row in found.best_rows:
        cells = {"method": found.labels[row.method]}
        for heading, axis in {"rounds": "rounds", "MB": "megabytes", "seconds": "seconds"}.items():
            cells[heading] = f"{getattr(row, axis).middle:.3g}" if row.reached else "not reached"
        rows.append(cells)
    spec = found.spec
    print(f"Digits, {spec.clients} clients split by {spec.split}: cost of {spec.target}")
    best = [number for number, row in enumerate(found.best_rows) if number == 0 or row.level]
    console.print_table(rows, words={"method"}, bold=best)
    print(
        f"Softmax regression; each method at the best of {spec.tries} settings, geometric mean of\n"
        f"{spec.repeats} fresh seeds. Seconds: on home connections.\n{options.MEGABYTES}\n"
        f"{found.verdict}\n"
    )


def _paper_headline(store: Store, out: Path) -> tuple[pd.DataFrame, Path, Path]:
    """Run the paper's main example; return its table, figure and report."""
    from fedac.experiments import report
    from fedac.experiments.export import with_costs
    from fedac.experiments.reproduction import demo
    from fedac.experiments.reproduction.published import headlines, published_cells, published_runs
    from fedac.experiments.summary import tuned
    from fedac.experiments.workload import prepare
    from fedac.federation.link import DEFAULT_LINK

    done = run_with_bar("demo", *prepare(demo.GRID), store)
    runs = store.frame()
    runs = with_costs(runs[runs["key"].isin(done.keys)], DEFAULT_LINK)
    best = tuned(runs.drop(columns="rounds"))
    picture, page = out / "rounds.png", report.write(store, out / "report.html")
    demo.figure(best).savefig(picture, dpi=150)
    published = published_cells(best, published_runs())
    return headlines(best, published, [demo.TARGET]), picture, page


def _print_rounds(curves: pd.DataFrame) -> None:
    """Print the fewest rounds of every algorithm, and the winner."""
    from fedac.experiments.reproduction.demo import GRID, TARGET
    from fedac.experiments.summary import fewest_note, records

    curves = curves.set_index("algorithm", drop=False).loc[list(GRID.several("algorithm"))]
    rows = []
    for row in records(curves):
        cells = {"algorithm": get(row.algorithm).label, "rounds": row.text}
        cells["published"] = row.published if isinstance(row.published, str) else ""
        numbers = {"K": f"{row.K:.0f}", "step size": row.step_size, "F - F*": f"{row.middle:.2e}"}
        numbers["MB"] = f"{row.megabytes:.3g}"
        rows.append(cells | (numbers if row.step_size else dict.fromkeys(numbers, "")))
    console.print_table(
        rows,
        words={"algorithm"},
        title=f"Rounds to come within {TARGET:g} of the optimum: {GRID.dataset}, "
        f"l2 = {GRID.l2:g}, {GRID.workers} workers",
        caption=f"Median of {len(GRID.several('seed'))} seeds, range in brackets. Published: the "
        "authors' runs with the same number of workers. "
        f"{options.MEGABYTES} {fewest_note(curves)}",
    )
    fewest = curves["rounds"].min()
    winners = [get(name).label for name in curves[curves["rounds"] == fewest]["algorithm"]]
    if math.isinf(fewest):
        print(f"No algorithm reached the target of {TARGET:g}.")
    else:
        print(f"Fewest rounds: {' and '.join(winners)}, {fewest:.0f}.")


# More columns do not fit on a terminal, and a longer interval is a typo.
MOST_INTERVALS, LONGEST_INTERVAL = 4, 10**8
ROWS = 10
LEGEND = """\
Distance between two runs, in units of their initial distance eps. A block is three steps.
AGD: measured. exact: from the formula. proven >=: the lower bound of the proof. FedAc-I: run
with its hyperparameters for K on the same curvatures, which are chosen to separate AGD."""


@click.command("instability", cls=options.Command)
@options.option(
    "--kappa",
    type=float,
    default=100.0,
    help="Condition number L/mu, at least 25.",
    heading="Problem",
)
@options.option(
    "--blocks",
    type=int,
    default=20,
    help="Number of blocks of three steps, from 1 to 100.",
    heading="Problem",
)
@options.option(
    "--local-steps",
    "-K",
    default="4,16,64",
    help="Synchronization intervals of FedAc-I to compare, separated by commas.",
    heading="Method",
)
@options.folder_option("Folder for the figure as PNG and PDF; created if missing.")
@options.json_option()
def instability_command(
    *, kappa: float, blocks: int, local_steps: str, out: Path | None, as_json: bool
) -> None:
    """Show how fast two nearby runs of AGD separate, and how FedAc-I limits it."""
    intervals = options.read_list(local_steps, option="--local-steps")
    if len(intervals) > MOST_INTERVALS or not all(1 <= K <= LONGEST_INTERVAL for K in intervals):
        raise InputError(
            f"--local-steps takes up to {MOST_INTERVALS} numbers from 1 to {LONGEST_INTERVAL}, got "
            f"{local_steps:.60}"
        )
    from mpmath import mp

    from fedac.theory.instability import construct, fedac_separation

    before = time.perf_counter()
    instance = construct(kappa, blocks)
    measured = instance.separation()
    fedac_i = {K: fedac_separation(kappa, blocks, K=K) for K in intervals}
    seconds = time.perf_counter() - before
    figures = []
    if out is not None:
        from fedac.experiments.reproduction.instability import draw
        from fedac.plotting import save_figure

        out.mkdir(parents=True, exist_ok=True)
        figures = save_figure(draw(instance, measured, fedac_i), out, "instability")
    answer = _separation_as_json(instance, measured, fedac_i)
    if as_json:
        answer |= {"figures": [str(path) for path in figures], "seconds": seconds}
        print(json.dumps(answer, allow_nan=False))
        return
    _print_separation(answer)
    for path in figures:
        print(f"Figure: {path}")
    print(
        f"{seconds:.2f} s at {instance.bits} bits: eps = {mp.nstr(instance.eps, 3)}; "
        f"measured and exact agree to {answer['largest_relative_error']:.0e}",
        file=sys.stderr,
    )


def _separation_as_json(
    instance: Instance,
    measured: Sequence[Separation],
    fedac_i: Mapping[int, Sequence[Separation]],
) -> dict[str, Any]:
    from mpmath import mp

    from fedac.theory.instability import predicted_separation, proven_bound

    rows, errors = [], []
    for k in range(1, instance.blocks + 1):
        exact = predicted_separation(instance.kappa, k)
        errors += [abs(ours / one - 1) for ours, one in zip(measured[k], exact, strict=True)]
        rows.append(
            {
                "block": k,
                "measured": measured[k]._asdict(),
                "exact": exact._asdict(),
                "bound": proven_bound(k)._asdict(),
                "fedac_i": {str(K): apart[k]._asdict() for K, apart in fedac_i.items()},
            }
        )
    return {
        "kappa": instance.kappa,
        "blocks": instance.blocks,
        "bits": instance.bits,
        # Logarithms, because the numbers themselves may be too small for a double.
        "log10_delta": float(mp.log10(instance.delta)),
        "log10_eps": float(mp.log10(instance.eps)),
        "separation": rows,
        "largest_relative_error": max(errors),
    }


def _print_separation(answer: Mapping[str, Any]) -> None:
    blocks = answer["blocks"]
    shown = {1, *range(0, blocks + 1, -(-blocks // ROWS)), blocks}
    rows = [row for row in answer["separation"] if row["block"] in shown]
    for sequence, name in {"w": "|w - u| / eps", "w_ag": "|w_ag - u_ag| / eps"}.items():
        table = []
        for row in rows:
            apart = {"AGD": row["measured"], "exact": row["exact"], "proven >=": row["bound"]}
            apart |= {f"FedAc-I K={K}": one for K, one in row["fedac_i"].items()}
            cells = {heading: f"{abs(one[sequence]):.3g}" for heading, one in apart.items()}
            table.append({"block": str(row["block"])} | cells)
        console.print_table(table, title=f"{name}, kappa={answer['kappa']:g}")
    print(LEGEND)
