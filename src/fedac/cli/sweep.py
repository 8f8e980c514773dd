"""`fedac sweep`: all runs of a grid, kept in a store."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedac.cli.console import (
    download_bar,
    duration,
    new_table,
    notice,
    notice_compiling,
    print_table,
    sweep_bar,
)
from fedac.cli.options import (
    BAND,
    JOBS,
    ON_RAY,
    RAY_ADDRESS,
    Command,
    argument,
    nonempty_path,
    output_folder,
    read_spec,
    spec_options,
)
from fedac.errors import InputError
from fedac.federation.spec import SWEEP, command_option

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.store import Store
    from fedac.experiments.sweep import Summary
    from fedac.experiments.workload import Group, Workload
    from fedac.federation.spec import RunSpec, Spec

NEEDED = "--dataset, --l2, --algorithms, --workers or --clients, --local-steps and --eta"
# Shorter sweeps are predicted without measuring, which would take as long (seconds).
WORTH_MEASURING = 20.0
KEYS = [SWEEP.name_of(name) for name in SWEEP.fields()]
LISTS = [SWEEP.name_of(name) for name in SWEEP.several]
HELP = f"""Run all combinations of a grid of settings.

Finished runs are kept in the folder --out and are not repeated: an interrupted sweep resumes where
it stopped. By default a sweep uses the whole machine.

Keys of FILE.toml: {", ".join(KEYS)}. They mean the same as the options. Lists make a grid:
{", ".join(LISTS)}.
"""


@click.command("sweep", cls=Command, help=HELP)
@argument(
    "file",
    type=nonempty_path,
    required=False,
    metavar="[FILE.toml]",
    help="The grid, or the name of one that comes with fedac; or give it by options.",
)
@click.option(
    "--out", type=nonempty_path, metavar="DIR", help="Folder of the store; made if missing."
)
@click.option("--dry-run", is_flag=True, help="Only print how much there is to do.")
@spec_options(SWEEP)
@click.option("--band", default="range", help=BAND)
@click.option("--jobs", "-j", type=int, help=JOBS)
@click.option("--on", metavar="ray", help=ON_RAY)
@click.option("--ray-address", metavar="HOST:PORT", help=RAY_ADDRESS)
@click.option(
    "--shard",
    metavar="I/N",
    help="Run only part I of N, of about equal work; 'fedac merge' joins the stores.",
)
def command(
    *,
    file: Path | None,
    out: Path | None,
    dry_run: bool,
    band: str,
    jobs: int | None,
    on: str | None,
    ray_address: str | None,
    shard: str | None,
    **given: Any,
) -> None:
    """Run a grid, or say how much there is to do."""
    typed = [name for name, value in given.items() if value is not None and value is not False]
    if file is not None and typed:
        raise InputError(f"{file} defines the grid: remove {command_option(typed[0])}")
    if file is None and not typed:
        raise InputError(f"no grid given: pass FILE.toml, or {NEEDED}")
    if out is None and not dry_run:
        raise InputError("--out is missing: the folder in which the runs are kept")
    from fedac.experiments.grid import read_grid, shipped
    from fedac.experiments.merge import Shard
    from fedac.experiments.summary import find_spread
    from fedac.experiments.sweep import require_where, select

    find_spread(band)
    require_where(jobs, on, ray_address)
    part = None if shard is None else Shard.parse(shard)
    if file is not None:
        is_name = file.parent == Path() and not file.suffix and not file.exists()
        grid = read_grid(shipped(file.name) if is_name else file)
    else:
        grid = read_spec(SWEEP, given)
    if out is not None:
        output_folder(out, option="--out")
    # The data comes first: if it cannot be loaded, no empty store is left behind.
    task, groups = load_grid(grid)
    groups = select(task, groups, part)
    if dry_run:
        if on is not None:
            raise InputError("--dry-run predicts the time on this machine only: omit --on")
        _print_plan(task, groups, out, jobs)
    elif not groups:
        print(f"{grid.name}: nothing to do for shard {part}: there are fewer groups")
    elif out is not None:
        from fedac.experiments.store import Store

        with Store(out, create=True) as store:
            summary = run_with_bar(
                grid.name, task, groups, store, jobs=jobs, on=on, ray_address=ray_address
            )
            runs = store.frame()
        ours = runs.set_index("key").loc[list(summary.keys)].reset_index()  # in the grid's order
        _print_summary(grid, summary, ours, band)
        if summary.beyond:
            notice(
                f"{summary.beyond} of {len(grid.several('eta'))} step sizes exceed 1/L; the theory "
                "covers eta <= 1/L only"
            )
        notice_disguised(summary.disguised, len(summary.keys))


def load_grid(grid: Spec) -> tuple[Workload, list[Group]]:
    """Load the data of a grid, with a bar while it is downloaded."""
    from fedac.experiments.workload import prepare

    with download_bar(grid.dataset) as show:
        return prepare(grid, show)


def notice_disguised(disguised: int, runs: int) -> None:
    """Report runs of FedAc that degenerate to FedAvg."""
    if disguised:
        notice(
            f"{disguised} of {runs} runs are FedAvg in disguise: with eta mu K >= 1 FedAc does not "
            "accelerate"
        )


def run_with_bar(
    name: str, task: Workload, groups: list[Group], store: Store, **where: Any
) -> Summary:
    """Run what a store lacks of some groups, with a progress bar and a notice after an interrupt.

    `where` are the keywords of `fedac.experiments.sweep.run_groups`.
    """
    from fedac.experiments.sweep import run_groups

    with stoppable(name, store), sweep_bar(name) as show:
        return run_groups(
            task, groups, store, **where, on_progress=show, on_compile=cache(notice_compiling)
        )


@contextmanager
def stoppable(what: str, store: Store | None) -> Iterator[None]:
    """Report what is kept in a store if the sweep in this block stops early."""
    from fedac.experiments import sweep as experiment
    from fedac.processes import WorkerDiedError

    folder = store and store.path.parent
    # Cluster schedulers send SIGTERM: treat it like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except experiment.GroupsFailedError as error:
        notice(str(error))
        raise click.exceptions.Exit(1) from error
    except WorkerDiedError as error:
        notice(f"{error}; finished runs are kept in '{folder}'" if folder else str(error))
        raise click.exceptions.Exit(1) from error
    except experiment.SweepInterrupted as stop:
        if folder:
            notice(
                f"{what}: {stop.done} of {stop.cells} runs are kept in '{folder}'; the same "
                "command continues from there"
            )
        raise
    except KeyboardInterrupt:  # between two sweeps
        if folder:
            notice(f"{what}: finished runs are kept in '{folder}'; the same command continues "
                   "from there")  # fmt: skip
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def counts(summary: Summary) -> str:
    """Write how many runs were found, and how many another sweep made in the meantime."""
    others = len(summary.keys) - summary.new - summary.before
    return f"{summary.before} before" + (f", {others} by another sweep" if others else "")


def _print_summary(grid: Spec, summary: Summary, runs: pd.DataFrame, band: str) -> None:
    """Print the best cell of every algorithm in every federation, over its seeds."""
    from rich.markup import escape

    from fedac.experiments.summary import band_text, find_spread, records, summarize, tuned

    title = f"{grid.name}: {summary.new} runs now, {counts(summary)}, {len(runs)} in all"
    names = ["algorithm", "federation"] if runs["federation"].any() else ["algorithm"]
    tested = grid.test is not None
    headings = (*names, "runs", "diverged", "best suboptimality", "M", "K", "eta")
    seeds, spread = len(grid.several("seed")), find_spread(band)
    caption = f"{spread.middle.capitalize()} of {seeds} seeds, {spread.band} in brackets."
    table = new_table(
        *(*headings, *(["test accuracy"] if tested else [])),
        words=names,
        title=escape(title),
        caption=caption if seeds > 1 else "",
    )
    cells = summarize(tuned(runs), band).sort_values("middle", kind="stable")
    at_edge = []
    by_name: Any = runs.groupby(names, sort=False)
    for name, ours in by_name:
        best = next(records(cells[(cells[names] == list(name)).all(axis=1)]))
        row = [*map(escape, name), str(len(ours)), str((ours["status"] == "diverged").sum())]
        found = band_text((best.middle, best.low, best.high), "{:.4e}".format)
        row += [found, str(best.M), str(best.K), best.step_size]
        if tested:
            accuracy = (best.accuracy, best.accuracy_low, best.accuracy_high)
            row.append(band_text(accuracy, "{:.4f}".format))
        if math.isinf(best.middle):
            row[len(names) + 2 :] = ["-"] * (5 if tested else 4)
        elif best.edge in ("smallest", "largest"):
            at_edge.append(name[0])
        table.add_row(*row)
    print_table(table)
    if at_edge:
        listed = ", ".join(dict.fromkeys(at_edge))
        print(f"Best step size at an edge of the grid, try a wider one: {listed}.")


def _print_plan(task: Workload, groups: list[Group], out: Path | None, jobs: int | None) -> None:
    from fedac.experiments.store import FILE, Store
    from fedac.experiments.sweep import measure_speed, predict_seconds

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
    print(f"expected time: {duration(seconds)}{how}")
