"""`fedac run`: one algorithm, one or many step sizes and values of its numbers."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from fedac.cli.console import (
    announced,
    download_bar,
    new_table,
    notice,
    notice_compiling,
    print_table,
    progress_bar,
)
from fedac.cli.options import (
    ALGORITHM_NAMES,
    BATCH,
    DECAY,
    LINK,
    LOSS_NAMES,
    MEGABYTES,
    PARTICIPATION,
    RAY_ADDRESS,
    SPLIT,
    TEST,
    WAN,
    WEIGHTING,
    WIRE,
    WORKERS,
    Command,
    FederationOptions,
    batch_size,
    numbers,
)
from fedac.errors import InputError

if TYPE_CHECKING:
    from fedac.data import Clients, Dataset
    from fedac.federation.link import Link
    from fedac.objectives import Objective
    from fedac.simulation import Result, Run

# A larger number is more likely a typo than a simulation.
LARGEST = 10**8


@click.command("run", cls=Command)
@click.option("--dataset", default="synthetic", help="A registered name or a LIBSVM file.")
@click.option("--loss", default="logistic", help=f"{LOSS_NAMES}, or your own class as module:name.")
@click.option("--l2", type=float, default=1e-3, help="Regularization strength, at least 0.")
@click.option("--intercept", is_flag=True, help="Append a column of ones.")
@click.option(
    "--algorithm",
    default="fedac-i",
    help=f"{ALGORITHM_NAMES}, or your own record as module:name. Several values of a number "
    "are separated by |, as in 'fedavg+nesterov(0.7|1, 0.9)'.",
)
@click.option(
    "--workers", "-M", type=click.IntRange(max=LARGEST), help=f"Workers, M; {WORKERS} unless given."
)
@click.option(
    "--clients",
    type=click.IntRange(max=LARGEST),
    help="In place of workers: clients that hold rows of their own.",
)
@click.option("--split", help=SPLIT)
@click.option("--split-seed", type=int, default=0, help="Seed of the split.")
@click.option("--participation", type=float, default=1.0, help=PARTICIPATION)
@click.option("--batch", default="1", help=BATCH)
@click.option("--weighting", default="examples", help=WEIGHTING)
@click.option("--local-steps", "-K", type=int, default=16, help="Steps per round, K.")
@click.option(
    "--steps", "-T", type=click.IntRange(max=LARGEST), default=1024, help="Steps per worker, T."
)
@click.option("--eta", default="0.5", help="Step sizes, separated by commas.")
@click.option("--decay", help=DECAY)
@click.option("--wire", default="float32", help=WIRE)
@click.option("--link", default=WAN, help=LINK)
@click.option("--mu", type=float, help="Strong-convexity estimate; l2 if not given.")
@click.option("--seed", type=int, default=1, help="Seed of the random draws.")
@click.option("--test", help=TEST)
@click.option(
    "--record-every", type=int, default=512, help="Record the loss every this many steps."
)
@click.option("--engine", help="fast or reference; fast if possible.")
@click.option("--precision", default="float32", help="Of local states: float32 or float64.")
@click.option("--threads", type=int, help="Threads; all cores if not given.")
@click.option(
    "--on",
    metavar="ray",
    help="Share the workers among all nodes of a Ray cluster: needs pip install 'fedac[ray]'.",
)
@click.option("--ray-address", metavar="HOST:PORT", help=RAY_ADDRESS)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; a diverged run has final_loss null.",
)
def command(
    *,
    dataset: str,
    loss: str,
    l2: float,
    intercept: bool,
    algorithm: str,
    workers: int | None,
    clients: int | None,
    split: str | None,
    split_seed: int,
    participation: float,
    batch: str,
    weighting: str,
    local_steps: int,
    steps: int,
    eta: str,
    decay: str | None,
    wire: str,
    link: str,
    mu: float | None,
    seed: int,
    test: str | None,
    record_every: int,
    engine: str | None,
    precision: str,
    threads: int | None,
    on: str | None,
    ray_address: str | None,
    as_json: bool,
) -> None:
    """Simulate one algorithm with one or many step sizes."""
    etas = numbers(eta, option="--eta")
    if split is None:
        split = "" if clients is None else "iid"
    elif not split:  # as from an unset variable
        raise InputError(f"--split is empty: {SPLIT}")
    options = FederationOptions(
        workers=workers,
        clients=clients,
        split=split,
        split_seed=split_seed,
        participation=participation,
        batch=batch_size(batch),
        weighting=weighting,
        decay=decay,
        wire=wire,
    )
    from fedac.algorithms import expand
    from fedac.algorithms.checks import check_decay
    from fedac.data.holdout import check_test, load_with_test, parse_test
    from fedac.experiments.run_key import federation_name
    from fedac.federation.federation import make_federation
    from fedac.federation.link import Link
    from fedac.federation.schedule import Decay
    from fedac.objectives.heterogeneity import minimized
    from fedac.plugins import find_algorithm, find_loss, make_objective
    from fedac.simulation import Schedule, SimulationInterrupted, simulate
    from fedac.simulation.problem import require_cluster, require_seed, require_threads
    from fedac.validate import require_count, require_nonnegative, require_positive

    # Report bad options before reading the data, which may take minutes.
    methods = [find_algorithm(name) for name in expand(algorithm)]
    find_loss(loss)
    require_nonnegative("l2", l2)
    options.check()
    on_link = Link.parse(link)
    test_rows = None if test is None else parse_test(test)
    check_test(test_rows, options.split or "iid")
    require_seed(seed)
    require_count("record_every", record_every)
    require_threads(threads)
    require_cluster(on, engine)
    if ray_address is not None and on is None:
        raise InputError("--ray-address needs --on ray")
    schedule = Schedule.every(local_steps, steps=steps)
    if mu is not None:
        require_positive("mu", mu)
    for step_size, method in product(etas, methods):
        require_positive("eta", step_size)
        coupled: dict[str, Any] = {"mu": l2 if mu is None else mu, "K": schedule.K}
        try:
            method.couple(eta=step_size, **coupled)
        except InputError:
            if mu is None and l2 == 0:
                raise InputError(f"{algorithm} needs mu > 0: with --l2 0, pass --mu") from None
            raise
        if decay is not None:
            check_decay(method, eta=Decay(step_size, decay).start, **coupled)
    with download_bar(dataset) as show:
        loaded, tested = load_with_test(dataset, test_rows, show)
    objective = make_objective(loss, loaded.X, loaded.y, l2=l2, intercept=intercept)
    parts = options.load(loaded)
    f_star = _f_star(minimized(objective, parts, weighting), l2)
    how: dict[str, Any] = {
        "M": None if parts else options.M, "clients": parts, "participation": participation,
        "batch": options.batch, "weighting": weighting, "seed": seed,
    }  # fmt: skip
    federation = make_federation(objective, **how)
    in_rounds = [federation.queries(span) * len(etas) * len(methods) for span in schedule]
    interrupted = False
    with (
        progress_bar(algorithm, total=sum(in_rounds)) as advance,
        announced(on, ray_address, in_rounds, advance) as (clock, advance),
    ):
        try:
            result = simulate(
                objective,
                methods,
                K=schedule,
                eta=etas if decay is None else [Decay(each, decay) for each in etas],
                mu=mu or l2 or None,
                test=tested,
                record_every=record_every,
                engine=engine,
                precision=precision,
                wire=wire,
                threads=threads,
                on=on,
                callbacks=clock,
                on_progress=advance,
                on_compile=notice_compiling,
                **how,
            )
        except SimulationInterrupted as stop:
            result, interrupted = stop.result, True
    if as_json:
        shape = {"n_samples": loaded.n_samples, "n_features": loaded.n_features}
        problem = {"dataset": {"name": loaded.name, **shape}, "loss": loss, "l2": l2}
        record = _as_json(result, f_star, on_link) | {"interrupted": interrupted}
        record |= _federation_as_json(options, parts, tested)
        print(json.dumps({**problem, "algorithm": algorithm, **record}, allow_nan=False))
    elif result.runs:
        who = f"{len(parts)} clients" if parts else f"M={result.M}"
        title = ", ".join(filter(None, (who, federation_name(options))))
        _print_table(result, f_star, f"{loaded.name}: {title}", on_link)
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


def _as_json(result: Result, f_star: float, link: Link) -> dict[str, Any]:
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
        "wire": result.wire,
        "link": str(link),
        "runs": [
            _run_as_json(run, f_star) | _expenses_as_json(result, run, link) for run in result.runs
        ],
        "best": best
        and {
            "algorithm": best.algorithm,
            "eta": best.eta,
            "suboptimality": _finite(best.trained_loss - f_star),
            "edge": result.edge,
        },
        "gradient_queries": result.gradient_queries,
        "seconds": result.seconds,
    }


def _federation_as_json(
    options: FederationOptions, clients: Clients | None, test: Dataset | None
) -> dict[str, Any]:
    return {
        "clients": clients and len(clients),
        "split": clients and clients.how,
        "split_seed": clients and options.split_seed,
        "participation": options.participation,
        "batch": options.batch,
        "weighting": options.weighting,
        "decay": options.decay,
        "test": test and {"name": test.name, "n_samples": test.n_samples},
    }


def _run_as_json(run: Run, f_star: float) -> dict[str, Any]:
    from fedac.algorithms.hyperparameters import as_fedac

    # The coefficients of FedAc, which every algorithm has, then those of its own.
    hp = dataclasses.asdict(as_fedac(run.hyperparameters)) | dataclasses.asdict(run.hyperparameters)
    hp.pop("eta")
    return {
        "algorithm": run.algorithm,
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
        **_test_as_json(run),
    }


def _expenses_as_json(result: Result, run: Run, link: Link) -> dict[str, Any]:
    """Return what each record cost in rounds, megabytes of a client, and seconds on the link.

    These megabytes are sent and received by a client that is present in every round;
    megabytes_per_worker are sent only, on average over all clients.
    """
    rounds, megabytes, seconds = (
        values.tolist()
        for values in (
            result.rounds_of(run), result.megabytes_of(run), result.seconds_of(run, link),
        )
    )  # fmt: skip
    return {
        "rounds": rounds[-1],
        "megabytes": megabytes[-1],
        "link_seconds": seconds[-1],
        "expenses": list(zip(rounds, megabytes, seconds, strict=True)),
    }


def _test_as_json(run: Run) -> dict[str, Any]:
    """Return loss and accuracy on the test set, at the end and along the run; else nulls."""
    if not run.test_loss.size:
        return {"test_loss": None, "test_accuracy": None, "test_trace": None}
    losses, accuracies = ([*map(_finite, each)] for each in (run.test_loss, run.test_accuracy))
    ended = run.status == "ok"
    return {
        "test_loss": losses[-1] if ended else None,
        "test_accuracy": accuracies[-1] if ended else None,
        "test_trace": list(zip(run.steps.tolist(), losses, accuracies, strict=True)),
    }


def _finite(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def _print_table(result: Result, f_star: float, what_is_run: str, link: Link) -> None:
    from rich.markup import escape

    schedule = result.schedule
    no_minimum = math.isnan(f_star)
    what, zero = ("loss", 0.0) if no_minimum else ("suboptimality", f_star)
    tested = any(run.test_loss.size for run in result.runs)
    several = len({run.algorithm for run in result.runs}) > 1
    table = new_table(
        *(["algorithm"] if several else []),
        *("eta", "status", f"best {what}", f"final {what}"),
        *(("test loss", "test accuracy") if tested else ()),
        *("MB", "seconds on link"),
        words={"algorithm", "status"},
        title=f"{escape(what_is_run)}, K={schedule.K}, T={schedule.T}, "
        f"{schedule.rounds} rounds, {'no F*' if no_minimum else f'F*={f_star:.6f}'}",
        caption=MEGABYTES,
    )
    for run in result.runs:
        losses = (run.trained_loss, run.final_loss)
        table.add_row(
            *([escape(run.algorithm)] if several else []),
            f"{run.eta:g}",
            run.status,
            *("-" if math.isnan(loss) else f"{loss - zero:.4e}" for loss in losses),
            *(_test_cells(run) if tested else ()),
            f"{result.megabytes_of(run)[-1]:.3g}",
            f"{result.seconds_of(run, link)[-1]:.3g}",
            style="bold" if run is result.best else None,
        )
    print_table(table)
    if edge := result.edge:
        notice(f"the best step size is the {edge} one tried; the optimum may lie beyond it")
    if result.seconds:
        rate = result.gradient_queries / result.seconds / 1e6
        print(f"{result.seconds:.2f} s, {rate:.2f} M gradients/s", file=sys.stderr)


def _test_cells(run: Run) -> tuple[str, str]:
    if run.status != "ok":
        return "-", "-"
    return f"{run.test_loss[-1]:.4e}", f"{run.test_accuracy[-1]:.4f}"
