"""`fedac sweep`: all runs of a grid, kept in a store; what is there is not run again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fedac.cli.parse import names, nonempty_path, numbers, output_folder, whole_numbers
from fedac.cli.progress import sweep_bar
from fedac.cli.streams import notice, results_console
from fedac.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.grid import Grid
    from fedac.experiments.store import Store
    from fedac.experiments.sweep import Summary

NEEDED = "--dataset, --l2, --algorithms, --workers, --local-steps and --eta"
T = TypeVar("T")


def sweep(
    file: Path | None = typer.Argument(
        None, metavar="FILE.toml", parser=nonempty_path, help="A grid, or use options."
    ),
    out: Path | None = typer.Option(
        None, metavar="DIR", parser=nonempty_path, help="Folder of the store."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say how much there is to do."),
    dataset: str | None = typer.Option(None, help="A registered name or a LIBSVM file."),
    l2: float | None = typer.Option(None, help="Regularization strength, above 0."),
    algorithms: str | None = typer.Option(None, help="Names, separated by commas."),
    workers: str | None = typer.Option(
        None, "--workers", "-M", help="M, whole numbers separated by commas."
    ),
    local_steps: str | None = typer.Option(
        None, "--local-steps", "-K", help="K, whole numbers separated by commas."
    ),
    steps: int | None = typer.Option(
        None, "--steps", "-T", help="T, steps per worker; 4096 unless given."
    ),
    eta: str | None = typer.Option(None, help="Step sizes, separated by commas."),
    seeds: str | None = typer.Option(None, help="Seeds, separated by commas; 1 unless given."),
) -> None:
    """Run all combinations of a grid; a sweep that was stopped goes on where it was."""
    options: dict[str, Any] = {
        "dataset": dataset,
        "l2": l2,
        "algorithms": _if_given(algorithms, lambda text: names(text, option="--algorithms")),
        "workers": _if_given(workers, lambda text: whole_numbers(text, option="--workers")),
        "local_steps": _if_given(
            local_steps, lambda text: whole_numbers(text, option="--local-steps")
        ),
        "steps": steps,
        "eta": _if_given(eta, lambda text: numbers(text, option="--eta")),
        "seeds": _if_given(seeds, lambda text: whole_numbers(text, option="--seeds")),
    }
    given = {name: value for name, value in options.items() if value is not None}
    if file is not None and given:
        raise InputError(f"{file} says what to run: leave --{_option(next(iter(given)))} out")
    if file is None and not given:
        raise InputError(f"give a grid as FILE.toml, or {NEEDED}")
    if out is None and not dry_run:
        raise InputError("--out is missing: the folder in which the runs are kept")
    from fedac.experiments.grid import Grid

    if file is not None:
        grid = Grid.from_toml(file)
    else:
        grid = Grid.checked({"name": "sweep", **given}, lambda key: f"--{_option(key)}")
    if dry_run:
        _print_plan(grid, out)
    elif out is not None:
        _run(grid, out)


def _if_given(text: str | None, read: Callable[[str], T]) -> T | None:
    return None if text is None else read(text)


def _option(key: str) -> str:
    return key.replace("_", "-")


def _run(grid: Grid, out: Path) -> None:
    from fedac.experiments import sweep as experiment
    from fedac.experiments.store import Store

    output_folder(out, option="--out")
    experiment.prepare(grid)  # data that cannot be had or read leave no empty store behind
    with Store(out, create=True) as store:
        summary = run_grid(grid, store)
        runs = store.frame()
    _print_summary(grid, summary, runs[runs.key.isin(summary.keys)])
    if summary.beyond:
        notice(
            f"{summary.beyond} of {len(grid.eta)} step sizes exceed 1/L; the theory covers "
            "eta <= 1/L only"
        )


def run_grid(grid: Grid, store: Store) -> Summary:
    """Run what a store lacks of a grid, with a progress bar; say what an interrupt leaves."""
    from fedac.experiments import sweep as experiment

    try:
        with _terminated_like_interrupted(), sweep_bar(grid.name) as show:
            return experiment.run(grid, store, on_event=show)
    except experiment.SweepInterrupted as stop:
        notice(
            f"{grid.name}: {stop.done} of {stop.cells} runs are kept in '{store.path.parent}'; "
            "the same command goes on from there"
        )
        raise


def counts(summary: Summary) -> str:
    """Say where the runs of a grid come from that this process did not make."""
    before = f"{summary.before} before"
    return f"{before}, {summary.others} by another sweep" if summary.others else before


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM, as a cluster's scheduler sends it, end the sweep as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_summary(grid: Grid, summary: Summary, runs: pd.DataFrame) -> None:
    from rich.markup import escape
    from rich.table import Table

    title = f"{grid.name}: {summary.new} runs now, {counts(summary)}, {len(runs)} in all"
    table = Table(title=escape(title))
    for heading in ("algorithm", "runs", "diverged", "best suboptimality", "M", "K", "eta"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for name in grid.algorithms:
        ours = runs[runs.algorithm == name].sort_values("best_suboptimality")
        best = ours.iloc[0]
        table.add_row(
            name,
            str(len(ours)),
            str((ours.status == "diverged").sum()),
            f"{best.best_suboptimality:.4e}",
            str(best.M),
            str(best.K),
            f"{best.eta:g}",
        )
    results_console().print(table)


def _print_plan(grid: Grid, out: Path | None) -> None:
    from fedac.experiments import sweep as experiment
    from fedac.experiments.cost import calibrate
    from fedac.experiments.store import FILE, Store

    if out is not None and (out / FILE).exists():
        with Store(out) as store:
            plan = experiment.plan(grid, store)
    else:
        plan = experiment.plan(grid, None)
    objective, _ = experiment.prepare(grid)
    seconds = plan.seconds(calibrate(grid, objective)) if plan.missing else 0.0
    print(f"cells: {plan.cells}, missing: {plan.missing}")
    print(f"gradient queries: {plan.gradient_queries:.3e}")
    print(f"expected time: {_duration(seconds)}")


def _duration(seconds: float) -> str:
    """Write a time as people read it.

    Examples
    --------
    >>> _duration(0.2), _duration(75), _duration(8000)
    ('0.2 s', '1 min 15 s', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
