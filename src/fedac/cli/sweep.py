# SPDX-License-Identifier: Apache-2.0
"""`fedac sweep`, and what to do with its runs: `fedac export`, `fedac merge`, `fedac report`."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli import console, options
from fedac.cli.run import METRIC_FORMATS
from fedac.errors import InputError
from fedac.federation.spec import SWEEP, command_option

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.merge import Joined
    from fedac.experiments.store import Store
    from fedac.experiments.sweep import Summary
    from fedac.experiments.workload import Group, Workload
    from fedac.federation.spec import RunSpec, Spec

NEEDED = "--dataset, --l2, --algorithms, --workers or --clients, --local-steps and --eta"
HELP = f"""Run all combinations of a grid of settings.

Finished runs are kept in the folder --out and are not repeated: an interrupted sweep resumes where
it stopped. By default a sweep uses the whole machine.

Keys of FILE.toml: {", ".join(SWEEP.name_of(name) for name in SWEEP.fields())}. They mean
the same as the options. Lists make a grid:
{", ".join(SWEEP.name_of(name) for name in SWEEP.several)}.
"""


@click.command("sweep", cls=options.Command, help=HELP)
@options.argument(
    "file",
    type=options.nonempty_path,
    required=False,
    metavar="[FILE.toml]",
    help="The grid, or the name of one that comes with fedac; or give it by options.",
)
@options.folder_option("Folder for the runs; created if missing.")
@options.option(
    "--dry-run",
    is_flag=True,
    help="Only count the missing runs and predict the time.",
    heading=options.LENGTH,
)
@options.spec_options(SWEEP)
@options.band_option
@options.jobs_option
@options.on_ray_options()
@options.option(
    "--shard",
    metavar="I/N",
    help="Run only part I of N, of about equal work; 'fedac merge' joins the stores.",
    heading=options.WHERE,
)
def sweep_command(
    *,
    file: Path | None,
    out: Path | None,
    dry_run: bool,
    band: str,
    shard: str | None,
    **given: Any,
) -> None:
    """Run a grid, or print the number of missing runs and the predicted time."""
    where = {name: given.pop(name) for name in ("jobs", "on", "ray_address")}
    typed = [name for name, value in given.items() if value is not None and value is not False]
    if file is not None and typed:
        raise InputError(f"{file} defines the grid: remove {command_option(typed[0])}")
    if file is None and not typed:
        raise InputError(f"no grid given: pass FILE.toml, or {NEEDED}")
    if out is None and not dry_run:
        raise InputError("--out is missing: the folder in which the runs are kept")
    from fedac.experiments.grid import read_grid, shipped
    from fedac.experiments.merge import Shard
    from fedac.experiments.store import Store
    from fedac.experiments.summary import find_spread
    from fedac.experiments.sweep import require_where, select
    from fedac.experiments.workload import prepare

    find_spread(band)
    require_where(**where)
    part = None if shard is None else Shard.parse(shard)
    if file is None:
        grid = options.read_spec(SWEEP, given)
    else:
        is_name = file.parent == Path() and not file.suffix and not file.exists()
        grid = read_grid(shipped(file.name) if is_name else file)
    # The data comes first: if it cannot be loaded, no empty store is left behind.
    with console.download_bar(grid.dataset) as show:
        task, groups = prepare(grid, show)
    groups = select(task, groups, part)
    if dry_run:
        if where["on"] is not None:
            raise InputError("--dry-run predicts the time on this machine only: omit --on")
        _print_plan(task, groups, out, where["jobs"])
    elif not groups:
        print(f"{grid.name}: nothing to do for shard {part}: there are fewer groups than shards")
    elif out is not None:
        with Store(out, create=True) as store:
            summary = run_with_bar(grid.name, task, groups, store, **where)
            runs = store.frame()
        ours = runs.set_index("key").loc[list(summary.keys)].reset_index()  # in the grid's order
        _print_summary(grid, summary, ours, band)
        if summary.beyond:
            console.notice(
                f"{summary.beyond} of {len(grid.several('eta'))} step sizes exceed 1/L; the theory "
                "covers eta <= 1/L only"
            )
        console.notice_disguised(summary.disguised, len(summary.keys))
        say_next_of(out)


def run_with_bar(
    name: str, task: Workload, groups: list[Group], store: Store, **where: Any
) -> Summary:
    """Run the missing runs of some groups, with a progress bar and a notice after an interrupt.

    `where` are the keywords of `fedac.experiments.sweep.run_groups`.
    """
    from fedac.experiments.sweep import run_groups

    compiling = cache(console.notice_compiling)
    with console.stoppable(name, store), console.sweep_bar(name) as show:
        return run_groups(task, groups, store, **where, on_progress=show, on_compile=compiling)


def say_next_of(folder: Path) -> None:
    """Name what to do with the runs of a sweep."""
    name = shlex.quote(str(folder))
    console.say_next(f"figures: fedac report {name}; a table: fedac export {name} --csv runs.csv")


def counts(summary: Summary) -> str:
    """Write how many runs were found, and how many another sweep made in the meantime."""
    others = len(summary.keys) - summary.new - summary.before
    return f"{summary.before} before" + (f", {others} by another sweep" if others else "")


def _print_summary(grid: Spec, summary: Summary, runs: pd.DataFrame, band: str) -> None:
    """Print the best cell of every algorithm in every federation, over its seeds."""
    from fedac.experiments.summary import (
        band_text,
        find_spread,
        metric_columns,
        records,
        summarize,
        tuned,
    )
    from fedac.objectives.metrics import TITLES

    names = ["algorithm", "federation"] if runs["federation"].any() else ["algorithm"]
    cells = summarize(tuned(runs), band).sort_values("middle", kind="stable")
    tested = [name for name in METRIC_FORMATS if name in cells and cells[name].notna().any()]
    measure = "suboptimality" if grid.model is None else "loss"
    rows, at_edge = [], []
    by_name: Any = runs.groupby(names, sort=False)
    for name, ours in by_name:
        best = next(records(cells[(cells[names] == list(name)).all(axis=1)]))
        found = band_text((best.middle, best.low, best.high), "{:.4e}".format)
        numbers = {f"best {measure}": found, "M": str(best.M), "K": str(best.K)}
        numbers["eta"] = best.step_size
        for metric in tested:
            middle, low, high = (getattr(best, column) for column in metric_columns(metric))
            found = band_text((middle, low, high), f"{{:{METRIC_FORMATS[metric]}}}".format)
            numbers[f"test {TITLES.get(metric, metric)}"] = found
        if math.isinf(best.middle):
            numbers = dict.fromkeys(numbers, "-")
        elif best.edge in ("smallest", "largest"):
            at_edge.append(name[0])
        diverged = (ours["status"] == "diverged").sum()
        counted = {"runs": str(len(ours)), "diverged": str(diverged)}
        rows.append(dict(zip(names, name, strict=True)) | counted | numbers)
    seeds, spread = len(grid.several("seed")), find_spread(band)
    caption = f"{spread.middle.capitalize()} of {seeds} seeds, {spread.band} in brackets."
    console.print_table(
        rows,
        words=names,
        title=f"{grid.name}: {summary.new} runs now, {counts(summary)}, {len(runs)} in all",
        caption=caption if seeds > 1 else None,
    )
    if at_edge:
        listed = ", ".join(dict.fromkeys(at_edge))
        print(f"Best step size at an edge of the grid, try a wider one: {listed}.")


def _print_plan(task: Workload, groups: list[Group], out: Path | None, jobs: int | None) -> None:
    from fedac.experiments.store import FILE, Store
    from fedac.experiments.sweep import WORTH_MEASURING, measure_speed, predict_seconds

    planned: list[Sequence[RunSpec]] = list(groups)
    if out and (out / FILE).exists():
        with Store(out) as store:
            planned = [store.missing(runs) for runs in groups]
    missing = [run for runs in planned for run in runs]
    seconds, how = predict_seconds(task, planned, jobs), ""
    if seconds > WORTH_MEASURING:
        seconds *= measure_speed(task, planned)
    elif seconds:
        how = " on a typical machine"
    print(f"cells: {sum(map(len, groups))}, missing: {len(missing)}")
    print(f"gradient queries: {task.queries(missing):.3e}")
    print(f"expected time: {console.duration(seconds)}{how}")


store_argument = options.argument(
    "directory", type=options.nonempty_path, metavar="DIR", help="The --out folder of a sweep."
)


@click.command("export", cls=options.Command)
@store_argument
@options.file_option("--csv", "Write a line per run to this CSV file.")
@options.file_option("--traces", "Write a line per recorded loss to this CSV file.")
@options.file_option("--parquet", "Write the runs, with all columns, to this Parquet file.")
@options.link_option
def export_command(*, directory: Path, link: str, **files: Path | None) -> None:
    """Write the runs of a sweep to CSV or Parquet files.

    The file "-" is the standard output.
    """
    targets = [path for path in files.values() if path is not None]
    if not targets:
        raise InputError("no output given: pass --csv FILE, --traces FILE or --parquet FILE")
    if len(set(targets)) < len(targets):
        raise InputError("two outputs go to the same file; give each its own")
    from fedac.experiments.export import write_csv, write_parquet, write_traces
    from fedac.experiments.store import Store
    from fedac.federation.link import Link

    on_link = Link.parse(link)
    with Store(directory) as store:
        for kind, write, what in (
            ("csv", write_csv, ("run", "runs")),
            ("traces", write_traces, ("recorded loss", "recorded losses")),
            ("parquet", write_parquet, ("run", "runs")),
        ):
            if path := files[kind]:
                rows = write(store, path, on_link)
                where = "stdout" if str(path) == "-" else path
                print(f"{rows} {what[rows != 1]} written to {where}", file=sys.stderr)


@click.command("merge", cls=options.Command)
@options.argument(
    "out",
    type=options.nonempty_path,
    callback=options.check_folder,
    metavar="OUT",
    help="The folder to add the runs to; created if missing.",
)
@options.argument(
    "sources",
    type=options.nonempty_path,
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="The --out folders of sweeps.",
)
def merge_command(*, out: Path, sources: tuple[Path, ...]) -> None:
    """Merge the runs of several sweeps into one folder.

    Runs that are already there are not added again. If two folders disagree on a run, nothing from
    the second is added.
    """
    from fedac.experiments.merge import merge_stores

    def report(joined: Joined) -> None:  # at once: a later folder may fail
        print(f"{joined.source}: {joined.added} runs added, {joined.before} already there")

    merged = merge_stores(out, sources, report)
    added = sum(each.added for each in merged.joined)
    print(f"{out}: {added} runs added, {merged.runs} in all")
    say_next_of(out)


@click.command("report", cls=options.Command)
@store_argument
@options.file_option("--out", "The file to write. Default: DIR/report.html.")
@options.band_option
@options.link_option
def report_command(*, directory: Path, out: Path | None, band: str, link: str) -> None:
    """Write the runs of a sweep as one HTML file with interactive figures."""
    from fedac.experiments.report import write
    from fedac.experiments.store import Store
    from fedac.federation.link import Link

    on_link = Link.parse(link)
    with Store(directory) as store:
        path = write(store, out or directory / "report.html", band, on_link)
    print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
