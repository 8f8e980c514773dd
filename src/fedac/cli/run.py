"""`fedac run`: one algorithm, one or many step sizes."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Any

import typer

from fedac.cli.parse import ALGORITHM_NAMES, LOSS_NAMES, numbers
from fedac.cli.progress import download_bar, progress_bar
from fedac.cli.streams import new_table, notice, notice_compiling, print_table

if TYPE_CHECKING:
    from fedac.objectives import Objective
    from fedac.simulation import Result, Run

# A larger number is more likely a typo than a simulation.
LARGEST = 10**8


def command(
    dataset: str = typer.Option("synthetic", help="A registered name or a LIBSVM file."),
    loss: str = typer.Option("logistic", help=f"{LOSS_NAMES}, or your own class as module:name."),
    l2: float = typer.Option(1e-3, help="Regularization strength, at least 0."),
    intercept: bool = typer.Option(False, "--intercept", help="Append a column of ones."),
    algorithm: str = typer.Option(
        "fedac-i", help=f"{ALGORITHM_NAMES}, or your own record as module:name."
    ),
    workers: int = typer.Option(256, "--workers", "-M", max=LARGEST, help="Workers, M."),
    local_steps: int = typer.Option(16, "--local-steps", "-K", help="Steps per round, K."),
    steps: int = typer.Option(1024, "--steps", "-T", max=LARGEST, help="Steps per worker, T."),
    eta: str = typer.Option("0.5", help="Step sizes, separated by commas."),
    mu: float | None = typer.Option(None, help="Strong-convexity estimate; l2 if not given."),
    seed: int = typer.Option(1, help="Seed of the random draws."),
    record_every: int = typer.Option(512, help="Record the loss every this many steps."),
    engine: str | None = typer.Option(None, help="fast or reference; fast if possible."),
    precision: str = typer.Option("float32", help="Of local states: float32 or float64."),
    threads: int | None = typer.Option(None, help="Threads; all cores if not given."),
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON object; a diverged run has final_loss null."
    ),
) -> None:
    """Simulate one algorithm with one or many step sizes."""
    etas = numbers(eta, option="--eta")
    from fedac.data import load
    from fedac.errors import InputError
    from fedac.experiments.plugins import find_algorithm, find_loss, make_objective
    from fedac.require import require_count, require_nonnegative, require_positive
    from fedac.simulation import Schedule, SimulationInterrupted, simulate
    from fedac.simulation.inputs import require_threads

    # Report bad options before reading the data, which may take minutes.
    method = find_algorithm(algorithm)
    find_loss(loss)
    require_nonnegative("l2", l2)
    require_count("M (workers)", workers)
    require_count("record_every", record_every)
    require_threads(threads)
    schedule = Schedule.every(local_steps, steps=steps)
    if mu is not None:
        require_positive("mu", mu)
    for step_size in etas:
        require_positive("eta", step_size)
        try:
            method.couple(eta=step_size, mu=l2 if mu is None else mu, K=schedule.K)
        except InputError:
            if mu is None and l2 == 0:
                raise InputError(f"{algorithm} needs mu > 0: with --l2 0, pass --mu") from None
            raise
    with download_bar(dataset) as show:
        loaded = load(dataset, show)
    objective = make_objective(loss, loaded.X, loaded.y, l2=l2, intercept=intercept)
    f_star = _f_star(objective, l2)
    interrupted = False
    with progress_bar(algorithm, total=workers * steps * len(etas)) as advance:
        try:
            result = simulate(
                objective,
                method,
                M=workers,
                K=schedule,
                eta=etas,
                mu=mu or l2 or None,
                seed=seed,
                record_every=record_every,
                engine=engine,
                precision=precision,
                threads=threads,
                on_progress=advance,
                on_compile=notice_compiling,
            )
        except SimulationInterrupted as stop:
            result, interrupted = stop.result, True
    if as_json:
        shape = {"n_samples": loaded.n_samples, "n_features": loaded.n_features}
        problem = {"dataset": {"name": loaded.name, **shape}, "loss": loss, "l2": l2}
        record = _as_json(result, f_star) | {"interrupted": interrupted}
        print(json.dumps({**problem, "algorithm": algorithm, **record}, allow_nan=False))
    elif result.runs:
        _print_table(result, f_star, loaded.name)
    if interrupted:
        raise KeyboardInterrupt


def _f_star(objective: Objective, l2: float) -> float:
    """Return F*, NaN if there is none; before the simulation, as an l2 may be too small."""
    from fedac.errors import NoOptimumError
    from fedac.objectives import optimum

    try:
        return optimum(objective).value
    except NoOptimumError:
        if l2 > 0:
            raise
        notice("no F* can be found with l2 = 0: losses are shown instead of suboptimalities")
        return math.nan


def _as_json(result: Result, f_star: float) -> dict[str, Any]:
    """Return what the command promises about a result; numbers that do not exist are null."""
    best = result.best
    return {
        "workers": result.M,
        "local_steps": result.schedule.K,
        "steps": result.schedule.T,
        "steps_made": max((int(run.steps[-1]) for run in result.runs), default=0),
        "rounds": result.schedule.rounds,
        "seed": result.seed,
        "engine": result.engine,
        "f_star": _finite(f_star),
        "runs": [_run_as_json(run, f_star) for run in result.runs],
        "best": best
        and {
            "eta": best.eta,
            "suboptimality": _finite(best.trained_loss - f_star),
            "edge": result.edge,
        },
        "gradient_queries": result.gradient_queries,
        "seconds": result.seconds,
    }


def _run_as_json(run: Run, f_star: float) -> dict[str, Any]:
    from fedac.algorithms.couplings import as_fedac

    # The coefficients of FedAc, which every algorithm has, then those of its own.
    hp = dataclasses.asdict(as_fedac(run.hyperparameters)) | dataclasses.asdict(run.hyperparameters)
    hp.pop("eta")
    return {
        "eta": run.eta,
        "hyperparameters": hp,
        "status": run.status,
        "best_loss": _finite(run.best_loss),
        "best_suboptimality": _finite(run.best_loss - f_star),
        "trained_loss": _finite(run.trained_loss),
        "final_loss": _finite(run.final_loss),
        "final_suboptimality": _finite(run.final_loss - f_star),
        "megabytes_per_worker": run.megabytes_per_worker,
        "trace": list(zip(run.steps.tolist(), map(_finite, run.loss), strict=True)),
    }


def _finite(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def _print_table(result: Result, f_star: float, dataset: str) -> None:
    from rich.markup import escape

    schedule = result.schedule
    no_minimum = math.isnan(f_star)
    what, zero = ("loss", 0.0) if no_minimum else ("suboptimality", f_star)
    table = new_table(
        *("eta", "status", f"best {what}", f"final {what}", "MB per worker"),
        words={"status"},
        title=f"{escape(dataset)}: M={result.M}, K={schedule.K}, T={schedule.T}, "
        f"{schedule.rounds} rounds, {'no F*' if no_minimum else f'F*={f_star:.6f}'}",
    )
    for run in result.runs:
        losses = (run.trained_loss, run.final_loss)
        table.add_row(
            f"{run.eta:g}",
            run.status,
            *("-" if math.isnan(loss) else f"{loss - zero:.4e}" for loss in losses),
            f"{run.megabytes_per_worker:.3g}",
            style="bold" if run is result.best else None,
        )
    print_table(table)
    if edge := result.edge:
        notice(f"the best step size is the {edge} one tried; the optimum may lie beyond it")
    if result.seconds:
        rate = result.gradient_queries / result.seconds / 1e6
        print(f"{result.seconds:.2f} s, {rate:.2f} M gradients/s", file=sys.stderr)
