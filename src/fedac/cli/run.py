"""`fedac run`: one algorithm, one or many step sizes."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import typer

from fedac.cli.parse import numbers
from fedac.cli.progress import progress_bar
from fedac.cli.streams import new_table, print_table

if TYPE_CHECKING:
    from fedac.data import Dataset
    from fedac.simulation import Result, Run

# Beyond this a typing error is likelier than a simulation.
LARGEST = 10**8


def run(
    dataset: str = typer.Option("synthetic", help="A registered name or a LIBSVM file."),
    l2: float = typer.Option(1e-3, help="Regularization strength, above 0."),
    intercept: bool = typer.Option(False, "--intercept", help="Append a column of ones."),
    algorithm: str = typer.Option(
        "fedac-i",
        help="fedac-i, fedac-ii, fedac-vanilla, fedavg, fedavg-weighted, mb-sgd or mb-ac-sgd.",
    ),
    workers: int = typer.Option(256, "--workers", "-M", max=LARGEST, help="Workers, M."),
    local_steps: int = typer.Option(16, "--local-steps", "-K", help="Steps per round, K."),
    steps: int = typer.Option(1024, "--steps", "-T", max=LARGEST, help="Steps per worker, T."),
    eta: str = typer.Option("0.5", help="Step sizes, separated by commas."),
    mu: float | None = typer.Option(None, help="Strong-convexity estimate; l2 unless given."),
    seed: int = typer.Option(1, help="Seed of the draws."),
    record_every: int = typer.Option(512, help="Record the loss every so many steps."),
    engine: str | None = typer.Option(None, help="fast or reference; fast where it can."),
    precision: str = typer.Option("float32", help="Of local states: float32 or float64."),
    threads: int | None = typer.Option(None, help="Threads; all cores unless given."),
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON object; the final loss of what diverged is null."
    ),
) -> None:
    """Simulate one algorithm with one or many step sizes."""
    etas = numbers(eta, option="--eta")
    from fedac import data
    from fedac.algorithms import get
    from fedac.objectives import LogisticRegression
    from fedac.require import require_count, require_positive
    from fedac.simulation import Schedule, SimulationInterrupted, simulate
    from fedac.simulation.inputs import require_threads

    # What is wrong should be said before the data are read, which may take minutes.
    method = get(algorithm)
    require_positive("l2", l2)
    mu = l2 if mu is None else require_positive("mu", mu)
    require_count("M (workers)", workers)
    require_count("record_every", record_every)
    require_threads(threads)
    schedule = Schedule.every(local_steps, steps=steps)
    for step_size in etas:
        method.couple(eta=step_size, mu=mu, K=schedule.K)
    loaded = data.load(dataset)
    objective = LogisticRegression(loaded.X, loaded.y, l2=l2, intercept=intercept)
    interrupted = False
    with progress_bar(algorithm, total=workers * steps * len(etas)) as advance:
        try:
            result = simulate(
                objective,
                method,
                M=workers,
                K=schedule,
                eta=etas,
                mu=mu,
                seed=seed,
                record_every=record_every,
                engine=engine,
                precision=precision,
                threads=threads,
                on_progress=advance,
            )
        except SimulationInterrupted as stop:
            result, interrupted = stop.result, True
    if as_json:
        print(json.dumps(_as_json(result, loaded, algorithm), allow_nan=False))
    else:
        _print_table(result, loaded)
    if interrupted:
        raise KeyboardInterrupt


def _as_json(result: Result, dataset: Dataset, algorithm: str) -> dict[str, Any]:
    """Return the object of the command's contract.

    A run that diverged has no final loss: ``final_loss`` and ``final_suboptimality`` are null,
    and the trace ends before that.
    """
    f_star = result.optimum.value
    objective = result.objective
    best = result.best if result.runs else None
    return {
        "dataset": {
            "name": dataset.name,
            "n_samples": dataset.n_samples,
            "n_features": dataset.n_features,
        },
        "l2": objective.strong_convexity,
        "algorithm": algorithm,
        "workers": result.M,
        "local_steps": result.schedule.K,
        "steps": result.schedule.T,
        "rounds": result.schedule.rounds,
        "seed": result.seed,
        "f_star": f_star,
        "runs": [_run_as_json(run, f_star) for run in result.runs],
        "best": best and {"eta": best.eta, "suboptimality": _finite(best.best_loss - f_star)},
        "gradient_queries": result.gradient_queries,
        "seconds": result.seconds,
    }


def _run_as_json(run: Run, f_star: float) -> dict[str, Any]:
    from fedac.algorithms.couplings import as_fedac

    hp = as_fedac(run.hyperparameters)
    final = math.nan if run.status == "diverged" else run.final_loss
    return {
        "eta": hp.eta,
        "hyperparameters": {"gamma": hp.gamma, "alpha": hp.alpha, "beta": hp.beta},
        "status": run.status,
        "best_loss": _finite(run.best_loss),
        "best_suboptimality": _finite(run.best_loss - f_star),
        "final_loss": _finite(final),
        "final_suboptimality": _finite(final - f_star),
        "megabytes_per_worker": run.megabytes_per_worker,
        "trace": [
            [int(step), _finite(loss)] for step, loss in zip(run.steps, run.loss, strict=True)
        ],
    }


def _finite(value: float) -> float | None:
    """Return null for a loss that is none or overflowed (l2 near 1e308): JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def _print_table(result: Result, dataset: Dataset) -> None:
    from rich.markup import escape

    schedule = result.schedule
    table = new_table(
        *("eta", "status", "best suboptimality", "final suboptimality", "MB per worker"),
        words={"status"},
        title=f"{escape(dataset.name)}: M={result.M}, K={schedule.K}, T={schedule.T}, "
        f"{schedule.rounds} rounds, F*={result.optimum.value:.6f}",
    )
    for run in result.runs:
        suboptimality = result.suboptimality(run)
        table.add_row(
            f"{run.eta:g}",
            run.status,
            f"{suboptimality.min():.4e}",
            "-" if run.status == "diverged" else f"{suboptimality[-1]:.4e}",
            f"{run.megabytes_per_worker:.3g}",
            style="bold" if run is result.best else None,
        )
    print_table(table)
    rate = result.gradient_queries / result.seconds / 1e6
    print(f"{result.seconds:.2f} s, {rate:.2f} M gradients/s", file=sys.stderr)
