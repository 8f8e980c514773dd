# SPDX-License-Identifier: Apache-2.0
"""`fedac run`: simulate one algorithm with one or more step sizes."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from fedac.algorithms.hyperparameters import as_fedac
from fedac.cli import console, options
from fedac.cli.console import notice
from fedac.errors import InputError
from fedac.federation.spec import (
    COMPARE,
    FederationOptions,
    MethodOptions,
    OptionSet,
    Spec,
    options_of,
)

if TYPE_CHECKING:
    from fedac.data import Clients, Dataset
    from fedac.federation.link import Link
    from fedac.objectives import Objective
    from fedac.simulation import Record, Result, Run

RUN = OptionSet(
    without=("name", "target", "budget", "tries", "repeats"),
    several=("eta",),
    defaults={"workers": 256, "steps": 1024},
)
# What a comparison tunes, or names in another way.
METHOD = ("algorithm", "local_steps", "epochs", "rounds", "seed")
Advance = Callable[[int], object]
# Metrics in tables, by name. Log loss is left out: it equals the loss.
METRIC_FORMATS = {
    "loss": ".4e", "accuracy": ".4f", "auc": ".4f", "r2": ".4f", "mae": ".4g", "top-5": ".4f",
    "perplexity": ".4g",
}  # fmt: skip


@click.command("run", cls=options.Command)
@options.spec_options(RUN)
@options.option(
    "--engine",
    help="fast, network or reference (default: chosen automatically).",
    heading=options.WHERE,
)
@options.option("--threads", type=int, help="Threads (default: all cores).", heading=options.WHERE)
@options.on_ray_options(
    "Share the workers among all nodes of a Ray cluster: needs pip install ray."
)
@options.json_option("Print one JSON object; a diverged run has final_loss null.")
@click.pass_context
def run_command(
    context: click.Context,
    /,
    *,
    engine: str | None,
    threads: int | None,
    on: str | None,
    ray_address: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Simulate one algorithm with one or more step sizes."""
    # All options are checked before the data is read, which may take minutes.
    spec = options.read_spec(RUN, given)
    from fedac.experiments.workload import load_data, make_workload, with_own_clients
    from fedac.federation.federation import minimized
    from fedac.federation.link import Link
    from fedac.federation.spec import federation_name
    from fedac.simulation import SimulationInterrupted
    from fedac.simulation.problem import require_cluster, require_threads
    from fedac.simulation.simulator import make_schedule

    require_threads(threads)
    require_cluster(on, engine)
    if ray_address is not None and on is None:
        raise InputError("--ray-address needs --on ray")
    with console.download_bar(spec.dataset) as show:
        data, test = load_data(spec, show)
    spec = options.read_spec(RUN, with_own_clients(given, data))
    task = make_workload(spec, data, test)
    networks = spec.model is not None  # they have their own intercepts
    console.notice_targets(data, task.loss, intercept=spec.intercept or networks)
    federation = task.federation(spec)
    clients = federation.clients
    f_star = math.nan
    if not task.objective.is_network:
        f_star = _f_star(minimized(task.objective, clients, spec.weighting), spec.l2)
    runs = spec.expand()
    schedule = make_schedule(spec, federation)
    in_rounds = [federation.queries(span) * len(runs) for span in schedule]
    interrupted = False
    algorithm, link = given["algorithm"] or spec.algorithm, Link.parse(spec.link)
    with (
        console.progress_bar(algorithm, total=sum(in_rounds)) as advance,
        _connected(on, ray_address, in_rounds, advance) as (callbacks, advance),
    ):
        try:
            result = task.simulate(
                runs, federation, engine=engine, threads=threads, on=on, callbacks=callbacks,
                backend=spec.backend,
                on_progress=advance, on_compile=console.notice_compiling,
            )  # fmt: skip
        except SimulationInterrupted as stop:
            result, interrupted = stop.result, True
    if as_json:
        shape = {"n_samples": data.n_samples, "n_features": data.n_features}
        answer = {
            "dataset": {"name": data.name, **shape},
            **({"model": spec.model} if networks else {}),
            "loss": task.loss,
            "l2": spec.l2,
            "algorithm": algorithm,
            **_as_json(result, f_star, link),
            "interrupted": interrupted,
            **_federation_as_json(spec, clients, test),
        }
        print(json.dumps(answer, allow_nan=False))
    elif result.runs:
        who = f"{len(clients)} clients" if clients else f"M={result.M}"
        named = replace(spec, split=clients.how if clients else None)
        title = ", ".join(filter(None, (spec.model, who, federation_name(named))))
        _print_result(result, f_star, f"{data.name}: {title}", link)
        _say_next(context, result)
    if interrupted:
        raise KeyboardInterrupt


def _say_next(context: click.Context, result: Result) -> None:
    """Name other step sizes, and the comparison of methods on this problem."""
    best, smallest = result.best, min(run.eta for run in result.runs)
    etas = (
        [best.eta * factor for factor in (0.5, 1, 2)] if best else [smallest / 10**3, smallest / 10]
    )
    around = ",".join(f"{eta:.3g}" for eta in etas)
    shared = [COMPARE.name_of(name) for name in COMPARE.fields() if name not in METHOD]
    compare = options.typed_command(context, "compare --quick", shared)
    console.say_next(
        f"--eta {around}, or another --algorithm ('fedac methods' lists them);",
        f"which method suits this problem: {compare}",
    )


def _f_star(objective: Objective, l2: float) -> float:
    """Return F*, NaN if there is none. Called before the simulation: l2 may be too small."""
    from fedac.errors import NoOptimumError
    from fedac.objectives import optimum

    try:
        return optimum(objective).value
    except NoOptimumError:
        if l2 > 0:
            raise
        notice("no F* can be found with l2 = 0: losses are shown instead of suboptimalities")
        return math.nan


@contextmanager
def _connected(
    on: str | None, address: str | None, in_rounds: Sequence[int], advance: Advance
) -> Iterator[tuple[list[Callable[[Record], object]], Advance]]:
    """Connect to a cluster if requested, and announce how long a simulation takes on it.

    Yields callbacks and an `on_progress` that calls `advance`. The time is predicted from the first
    round; `in_rounds` has the gradient queries of every round.
    """
    if on is None:
        yield [], advance
        return
    from fedac.cluster import connect, nodes

    started, done = 0.0, 0

    def start(record: Record) -> None:  # the first record comes after compilation
        nonlocal started
        started = started or time.monotonic()

    def count(queries: int) -> None:
        nonlocal done
        advance(queries)
        before, done = done, done + queries
        if started and before < in_rounds[0] <= done:
            seconds = (time.monotonic() - started) * sum(in_rounds) / in_rounds[0]
            notice(f"this takes about {console.duration(seconds)} on {where}")

    with connect(address):
        cores = [node.cpus for node in nodes() if node.cpus]
        counted = ((len(cores), "node"), (sum(cores), "core"))
        where = " with ".join(f"{number} {name}{'s' * (number > 1)}" for number, name in counted)
        yield [start], count


def _as_json(result: Result, f_star: float, link: Link) -> dict[str, Any]:
    """Return the JSON of a result; numbers that do not exist are null."""
    best = result.best
    return {
        "workers": result.M,
        "local_steps": result.schedule.K,
        "steps": result.schedule.T,
        "steps_made": max((int(run.steps[-1]) for run in result.runs), default=0),
        "rounds": result.schedule.rounds,
        "seed": result.seed,
        "engine": result.engine,
        **({"backend": result.backend} if result.backend else {}),
        "f_star": _finite(f_star),
        "wire": result.wire,
        "link": str(link),
        "runs": [_run_as_json(result, run, f_star, link) for run in result.runs],
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
    spec: Spec, clients: Clients | None, test: Dataset | None
) -> dict[str, Any]:
    named = (options_of(FederationOptions) | options_of(MethodOptions)).items()
    values = {name: getattr(spec, name) for name, option in named if option.json}
    for name in ("workers", "algorithm", "local_steps", "eta", "wire"):  # printed elsewhere
        del values[name]
    return values | {
        "clients": clients and len(clients),
        "split": clients and clients.how,
        "split_seed": clients and spec.split_seed,
        "test": test and {"name": test.name, "n_samples": test.n_samples},
    }


def _run_as_json(result: Result, run: Run, f_star: float, link: Link) -> dict[str, Any]:
    # The coefficients of FedAc, which every algorithm has, then its own numbers.
    hp = asdict(as_fedac(run.hyperparameters)) | asdict(run.hyperparameters)
    hp.pop("eta")
    steps, losses = run.steps.tolist(), [*map(_finite, run.loss)]
    costs = (result.rounds_of(run), result.megabytes_of(run), result.seconds_of(run, link))
    rounds, megabytes, seconds = (values.tolist() for values in costs)
    tested, ended = bool(run.test_loss.size), run.status == "ok"
    tests = [*zip(map(_finite, run.test_loss), map(_finite, run.test_accuracy), strict=True)]
    traces = {name: [*map(_finite, values)] for name, values in run.metrics.items()}
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
        # Only sent, and averaged over all clients.
        "megabytes_per_worker": run.megabytes_per_worker,
        "trace": list(zip(steps, losses, strict=True)),
        "test_loss": tests[-1][0] if tested and ended else None,
        "test_accuracy": tests[-1][1] if tested and ended else None,
        "test_trace": [(step, *at) for step, at in zip(steps, tests, strict=True)]
        if tested
        else None,
        # By name: at the end, and at the steps of the trace.
        "metrics": {
            name: {"last": trace[-1] if ended else None, "trace": trace}
            for name, trace in traces.items()
        }
        if traces
        else None,
        # Sent and received by a client that is present in every round.
        "rounds": rounds[-1],
        "megabytes": megabytes[-1],
        "link_seconds": seconds[-1],
        "expenses": list(zip(rounds, megabytes, seconds, strict=True)),
    }


def _finite(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def _print_result(result: Result, f_star: float, what_is_run: str, link: Link) -> None:
    from fedac.objectives.metrics import TITLES

    schedule, no_minimum = result.schedule, math.isnan(f_star)
    what, zero = ("loss", 0.0) if no_minimum else ("suboptimality", f_star)
    minimum = ", no F*" if no_minimum else f", F*={f_star:.6f}"
    if result.objective.is_network:
        minimum = ""
    several = len({run.algorithm for run in result.runs}) > 1
    tested = [name for name in METRIC_FORMATS if any(name in run.metrics for run in result.runs)]
    rows = []
    for run in result.runs:
        row, ended = {"algorithm": run.algorithm} if several else {}, run.status == "ok"
        row |= {"eta": f"{run.eta:g}", "status": run.status}
        for when, loss in (("best", run.trained_loss), ("final", run.final_loss)):
            row[f"{when} {what}"] = "-" if math.isnan(loss) else f"{loss - zero:.4e}"
        for name in tested:
            last = f"{run.metrics[name][-1]:{METRIC_FORMATS[name]}}" if ended else "-"
            row[f"test {TITLES.get(name, name)}"] = last
        row["MB"] = f"{result.megabytes_of(run)[-1]:.3g}"
        row["seconds on link"] = f"{result.seconds_of(run, link)[-1]:.3g}"
        rows.append(row)
    console.print_table(
        rows,
        words={"algorithm", "status"},
        title=f"{what_is_run}, K={schedule.K}, T={schedule.T}, {schedule.rounds} rounds{minimum}",
        caption=options.MEGABYTES,
        bold=[number for number, run in enumerate(result.runs) if run is result.best],
    )
    if edge := result.edge:
        notice(f"the best step size is the {edge} one tried; the optimum may lie beyond it")
    if result.seconds:
        rate = result.gradient_queries / result.seconds / 1e6
        print(f"{result.seconds:.2f} s, {rate:.2f} M gradients/s", file=sys.stderr)
