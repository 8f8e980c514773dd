"""`fedac sweep`: all runs of a grid, kept in a store; finished runs are not repeated."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
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
    ALGORITHM_NAMES,
    BAND,
    BATCH,
    DECAY,
    JOBS,
    LOSS_NAMES,
    PARTICIPATION,
    RAY_ADDRESS,
    SPLIT,
    TEST,
    WEIGHTING,
    WIRE,
    Command,
    argument,
    batch_size,
    listed,
    names,
    nonempty_path,
    numbers,
    output_folder,
    whole_numbers,
)
from fedac.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.grid import Grid
    from fedac.experiments.store import Store
    from fedac.experiments.sweep import Summary

NEEDED = "--dataset, --l2, --algorithms, --workers or --clients, --local-steps and --eta"
# Options that take several values, and what reads them.
LISTS: dict[str, Callable[..., Any]] = {
    "algorithms": names,
    "workers": whole_numbers,
    "clients": whole_numbers,
    "split": names,
    "participation": numbers,
    "batch": partial(listed, batch_size, "numbers or full"),
    "local_steps": whole_numbers,
    "eta": numbers,
    "wire": names,
    "seeds": whole_numbers,
}
# Seconds of a sweep; a shorter one is predicted without measuring, which would take as long.
WORTH_MEASURING = 20.0


@click.command("sweep", cls=Command)
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
@click.option("--dataset", help="A registered name or a LIBSVM file.")
@click.option(
    "--loss", help=f"{LOSS_NAMES}, or a class of your own as module:name; logistic unless given."
)
@click.option("--l2", type=float, help="Regularization strength, above 0.")
@click.option("--intercept", is_flag=True, help="Append a column of ones.")
@click.option("--mu", type=float, help="Strong-convexity estimate; l2 unless given.")
@click.option(
    "--algorithms",
    help=f"Separated by commas: {ALGORITHM_NAMES}, or records of your own as module:name.",
)
@click.option("--workers", "-M", help="M, whole numbers separated by commas.")
@click.option(
    "--clients",
    help="In place of workers: numbers of clients that hold rows of their own, separated by "
    "commas.",
)
@click.option("--split", help=f"{SPLIT} Several are separated by commas.")
@click.option("--split-seed", type=int, help="Seed of the splits; 0 unless given.")
@click.option(
    "--participation", help=f"{PARTICIPATION} Several are separated by commas; 1 unless given."
)
@click.option("--batch", help=f"{BATCH} Several are separated by commas; 1 unless given.")
@click.option("--weighting", help=f"{WEIGHTING} examples unless given.")
@click.option("--local-steps", "-K", help="K, whole numbers separated by commas.")
@click.option("--steps", "-T", type=int, help="T, steps per worker; 4096 unless given.")
@click.option("--eta", help="Step sizes, separated by commas.")
@click.option("--wire", help=f"{WIRE} Several are separated by commas; float32 unless given.")
@click.option("--decay", help=f"{DECAY} Constant unless given.")
@click.option("--seeds", help="Seeds, separated by commas; 1 unless given.")
@click.option("--test", help=TEST)
@click.option(
    "--record-every", type=int, help="Steps between two records of the loss; 512 unless given."
)
@click.option("--precision", help="Of local states: float32 or float64; float32 unless given.")
@click.option("--band", default="range", help=BAND)
@click.option("--jobs", "-j", type=int, help=JOBS)
@click.option(
    "--on", metavar="ray", help="Run on a Ray cluster instead: needs pip install 'fedac[ray]'."
)
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
    dataset: str | None,
    loss: str | None,
    l2: float | None,
    intercept: bool,
    mu: float | None,
    algorithms: str | None,
    workers: str | None,
    clients: str | None,
    split: str | None,
    split_seed: int | None,
    participation: str | None,
    batch: str | None,
    weighting: str | None,
    local_steps: str | None,
    steps: int | None,
    eta: str | None,
    wire: str | None,
    decay: str | None,
    seeds: str | None,
    test: str | None,
    record_every: int | None,
    precision: str | None,
    band: str,
    jobs: int | None,
    on: str | None,
    ray_address: str | None,
    shard: str | None,
) -> None:
    """Run all combinations of a grid of settings.

    Finished runs are kept in the folder --out and are not repeated: a sweep that was stopped
    continues where it was. By default a sweep uses the whole machine.

    Keys of FILE.toml: name, dataset, loss, l2, intercept, mu, algorithms, steps, workers, split,
    clients, split_seed, participation, batch, weighting, local_steps, eta, wire, decay, seeds,
    test, record_every, precision. They mean the same as the options; algorithms, workers, split,
    clients, participation, batch, local_steps, eta, wire and seeds are lists.
    """
    options = {
        "dataset": dataset, "loss": loss, "l2": l2, "intercept": intercept or None, "mu": mu,
        "algorithms": algorithms, "workers": workers, "clients": clients, "split": split,
        "split_seed": split_seed, "participation": participation, "batch": batch,
        "weighting": weighting, "local_steps": local_steps, "steps": steps, "eta": eta,
        "wire": wire, "decay": decay, "seeds": seeds, "test": test, "record_every": record_every,
        "precision": precision,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if file is not None and given:
        raise InputError(f"{file} defines the grid: remove {_option(next(iter(given)))}")
    if file is None and not given:
        raise InputError(f"no grid given: pass FILE.toml, or {NEEDED}")
    if out is None and not dry_run:
        raise InputError("--out is missing: the folder in which the runs are kept")
    from fedac.data.holdout import parse_test
    from fedac.experiments.grid import Grid, shipped
    from fedac.experiments.merge import Shard
    from fedac.experiments.summary import find_spread
    from fedac.experiments.sweep import require_where

    find_spread(band)
    require_where(jobs, on, ray_address)
    where = {"jobs": jobs, "on": on, "ray_address": ray_address,
             "shard": None if shard is None else Shard.parse(shard)}  # fmt: skip
    if file is not None:
        is_name = file.parent == Path() and not file.suffix and not file.exists()
        grid = Grid.from_toml(shipped(file.name) if is_name else file)
    else:
        if test is not None:
            given["test"] = parse_test(test)
        for name, read in LISTS.items():
            if name in given:
                given[name] = read(given[name], option=_option(name))
        grid = Grid.checked({"name": "sweep", **given}, _option)
    if out is not None:
        output_folder(out, option="--out")
    load_data(grid)
    if dry_run:
        _print_plan(grid, out, where)
    elif out is not None:
        _run(grid, out, band, where)


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def load_data(grid: Grid) -> None:
    """Load the data first: if that fails, no empty store is left behind."""
    from fedac.data.registry import SOURCES, fetch
    from fedac.experiments.task import prepare

    if grid.dataset in SOURCES:
        with download_bar(grid.dataset) as show:
            fetch(grid.dataset, show)
    prepare(grid)


def _run(grid: Grid, out: Path, band: str, where: dict[str, Any]) -> None:
    from fedac.experiments.store import Store

    with Store(out, create=True) as store:
        summary = run_grid(grid, store, **where)
        runs = store.frame()
    if not summary.keys:
        print(f"{grid.name}: nothing to do for shard {where['shard']}: there are fewer groups")
        return
    ours = runs.set_index("key").loc[list(summary.keys)].reset_index()  # in the grid's order
    _print_summary(grid, summary, ours, band)
    if summary.beyond:
        notice(
            f"{summary.beyond} of {len(grid.eta)} step sizes exceed 1/L; the theory covers "
            "eta <= 1/L only"
        )
    notice_disguised(summary.disguised, len(summary.keys))


def notice_disguised(disguised: int, runs: int) -> None:
    """Say how many runs of FedAc were FedAvg, if some were."""
    if disguised:
        notice(
            f"{disguised} of {runs} runs are FedAvg in disguise: with eta mu K >= 1 FedAc does not "
            "accelerate"
        )


def run_grid(grid: Grid, store: Store, **where: Any) -> Summary:
    """Run what a store lacks of a grid, with a progress bar and a notice after an interrupt.

    `where` are the options of `fedac.experiments.sweep.run` that say where groups run.
    """
    from fedac.experiments import sweep as experiment

    with stoppable(grid.name, store), sweep_bar(grid.name) as show:
        return experiment.run(
            grid, store, **where, on_progress=show, on_compile=cache(notice_compiling)
        )


@contextmanager
def stoppable(what: str, store: Store | None) -> Iterator[None]:
    """Say what is kept in a store, if it stays, when the sweep in this block stops early."""
    from fedac.experiments import sweep as experiment
    from fedac.processes import WorkerDiedError

    folder = store and store.path.parent
    # The scheduler of a cluster sends SIGTERM: it stops the sweep as Ctrl-C does.
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
    """Say how many runs of a grid this process found, and how many another one made meanwhile."""
    others = len(summary.keys) - summary.new - summary.before
    return f"{summary.before} before" + (f", {others} by another sweep" if others else "")


def _print_summary(grid: Grid, summary: Summary, runs: pd.DataFrame, band: str) -> None:
    """Print the best cell of every algorithm in every federation, over its seeds."""
    from rich.markup import escape

    from fedac.experiments.summary import band_text, find_spread, records, summarize, tuned

    title = f"{grid.name}: {summary.new} runs now, {counts(summary)}, {len(runs)} in all"
    names = ["algorithm", "federation"] if runs["federation"].any() else ["algorithm"]
    tested = grid.test is not None
    headings = (*names, "runs", "diverged", "best suboptimality", "M", "K", "eta")
    seeds, spread = len(grid.seeds), find_spread(band)
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


def _print_plan(grid: Grid, out: Path | None, where: dict[str, Any]) -> None:
    from fedac.experiments import sweep as experiment
    from fedac.experiments.store import FILE, Store
    from fedac.experiments.task import prepare

    if where["on"] is not None:
        raise InputError("--dry-run predicts the time on this machine only: leave out --on")
    with Store(out) if out and (out / FILE).exists() else nullcontext() as store:
        groups, planned = experiment.plan(grid, store, where["shard"])
    missing = [config for configs in planned for config in configs]
    seconds, how = experiment.predict_seconds(grid, planned, where["jobs"]), ""
    if seconds > WORTH_MEASURING:
        seconds *= experiment.measure_speed(grid, planned)
    elif seconds:
        how = " on a typical machine"
    task = prepare(grid)
    print(f"cells: {sum(map(len, groups))}, missing: {len(missing)}")
    print(f"gradient queries: {task.queries(missing):.3e}")
    print(f"expected time: {duration(seconds)}{how}")
