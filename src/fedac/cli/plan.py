"""`fedac plan`: which algorithm, K and step size for M workers, and how many rounds."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from fedac.cli.progress import progress_bar
from fedac.cli.streams import results_console
from fedac.errors import InputError

if TYPE_CHECKING:
    from fedac.experiments.calibration import Calibration, Measured
    from fedac.objectives import Objective
    from fedac.theory.constants import Constants
    from fedac.theory.planner import Choice

DEFAULT_STEPS = 4096  # as in the paper's experiments
FEW_DIVISORS = 5
# These bounds are known up to constants, which are set to 1.
UNKNOWN_CONSTANTS = ("fedavg_a1", "mb_sgd", "mb_ac_sgd", "mb_sgd_convex", "mb_ac_sgd_convex")


def plan(
    dataset: str | None = typer.Option(None, help="A registered name or a LIBSVM file."),
    l2: float = typer.Option(1e-3, help="Regularization strength, with --dataset."),
    intercept: bool = typer.Option(False, "--intercept", help="Append a column of ones."),
    smoothness: float | None = typer.Option(None, help="L, instead of a data set."),
    strong_convexity: float = typer.Option(0.0, help="mu; 0 is a general convex objective."),
    noise: float | None = typer.Option(None, help="sigma, of one gradient."),
    distance: float | None = typer.Option(None, help="D0, from the start to the optimum."),
    third_order: float | None = typer.Option(None, help="Q, if it is known."),
    dim: int | None = typer.Option(None, min=1, help="Dimension, for the megabytes."),
    workers: int = typer.Option(256, "--workers", "-M", help="Workers, M."),
    steps: int | None = typer.Option(
        None, "--steps", "-T", help=f"Steps per worker, T; {DEFAULT_STEPS} unless --target."
    ),
    target: float | None = typer.Option(None, help="Instead of T: the suboptimality to reach."),
    round_cost: float = typer.Option(1000.0, help="Cost of a round in gradients (--target)."),
    calibrate: bool = typer.Option(False, "--calibrate", help="Measure on the data set."),
    seed: int = typer.Option(1, help="Seed of the draws, with --calibrate."),
    tables: bool = typer.Option(False, "--tables", help="Print the paper's two tables."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Recommend K, a step size and a number of rounds, by the paper's bounds or by measurement."""
    if tables:
        _print_paper_tables(as_json)
        return
    from fedac.theory import planner

    given = {"smoothness": smoothness, "noise": noise, "distance": distance}
    objective, constants = _problem(dataset, l2, intercept, strong_convexity, third_order, given)
    if calibrate and objective is None:
        raise InputError("--calibrate measures on data; give a --dataset")
    if target is None and steps is None:
        steps = DEFAULT_STEPS
    how: dict[str, Any] = {"M": workers, "T": steps, "target": target, "round_cost": round_cost}
    dim = objective.dim if objective is not None else dim
    choices = planner.plan(constants, dim=dim, **how)
    if not as_json:
        _print_constants(constants, estimated=objective is not None)
        _print_choices(choices, how, can_measure=objective is not None)
    if steps is not None and len(planner.divisors(steps)) < FEW_DIVISORS:
        print(
            f"T={steps} can be cut into rounds in {len(planner.divisors(steps))} ways only; a "
            "power of two leaves more choice of K.",
            file=sys.stderr,
        )
    found = None
    if calibrate and objective is not None:
        found = _calibrate(objective, constants, seed, how)
    if as_json:
        print(json.dumps(_as_json(constants, choices, found), allow_nan=False))
    elif found is not None:
        _print_calibration(found, how)
    elif objective is not None:
        print("Use --calibrate to measure on the data.", file=sys.stderr)


def _problem(
    dataset: str | None,
    l2: float,
    intercept: bool,
    mu: float,
    Q: float | None,
    given: dict[str, float | None],
) -> tuple[Objective | None, Constants]:
    """Return the objective, if there is one, and its constants."""
    from fedac.require import require_positive
    from fedac.theory.constants import Constants, estimate

    if dataset is None:
        missing = [f"--{name}" for name, value in given.items() if value is None]
        if missing:
            raise InputError(f"give a --dataset, or the constants: {', '.join(missing)} missing")
        L, sigma, D0 = (float(value) for value in given.values() if value is not None)
        return None, Constants(L=L, mu=mu, sigma=sigma, D0=D0, Q=Q)
    extra = [f"--{name}" for name, value in given.items() if value is not None]
    if extra or mu or Q is not None:
        extra += ["--strong-convexity"] * bool(mu) + ["--third-order"] * (Q is not None)
        raise InputError(f"the data set gives the constants; leave {', '.join(extra)} out")
    from fedac import data
    from fedac.objectives import LogisticRegression

    require_positive("l2", l2)
    loaded = data.load(dataset)
    objective = LogisticRegression(loaded.X, loaded.y, l2=l2, intercept=intercept)
    return objective, estimate(objective)


def _calibrate(
    objective: Objective, constants: Constants, seed: int, how: dict[str, Any]
) -> Calibration:
    from fedac.experiments import calibration

    total = int(calibration.PROBE_QUERIES + calibration.MEASURE_QUERIES)
    with progress_bar("calibrating", total=total) as advance:
        return calibration.calibrate(objective, constants, seed=seed, on_progress=advance, **how)


def _print_constants(constants: Constants, *, estimated: bool) -> None:
    from rich.table import Table

    from fedac.theory.constants import HOW

    table = Table(title="The problem's constants")
    table.add_column("letter")
    table.add_column("value", justify="right")
    if estimated:
        table.add_column("how it was found")
    for name, value in constants.letters.items():
        table.add_row(name, f"{value:.4g}", *([HOW[name]] if estimated else []))
    results_console().print(table)


def _print_choices(choices: list[Choice], how: dict[str, Any], *, can_measure: bool) -> None:
    from rich.table import Table

    aim = f"T={how['T']}" if how["target"] is None else f"target {how['target']:g}"
    if not choices:
        advice = "use --calibrate or a larger target" if can_measure else "use a larger target"
        results_console().print(f"No bound reaches {aim} within 2^40 steps; {advice}.")
        return
    rule = (
        "K: the fewest rounds whose bound is at most twice the best."
        if how["target"] is None
        else f"K and T: the least cost, a round being worth {how['round_cost']:g} gradients."
    )
    table = Table(
        title=f"By the paper's bounds: M={how['M']}, {aim}",
        pad_edge=False,  # fits a terminal of 80 columns
        caption=f"{rule} Bounds hold in the worst case; real runs are often orders of magnitude "
        "better. * no better than the start: this bound says nothing here. ' its constants are "
        "unknown and set to 1. Speedup: from so many rounds on M workers are worth M times one, "
        "by the rates without constants and logarithms. MB: sent by one worker.",
    )
    table.add_column("theorem", overflow="fold")
    for heading in ("K", "rounds", "eta", "bound", "largest term", "speedup", "MB"):
        left = heading == "largest term"
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left)
    for choice in choices:
        mark = "*" if choice.vacuous else ""
        unknown = "'" if choice.theorem in UNKNOWN_CONSTANTS else ""
        sent = choice.megabytes_per_worker
        table.add_row(
            choice.theorem.replace("_", "-") + unknown,
            f"{choice.K}",
            f"{choice.rounds}",
            f"{choice.hyperparameters.eta:.2g}",
            f"{choice.bound.total:.2g}{mark}",
            choice.bound.dominant.replace("_", " "),
            "never" if choice.speedup_rounds is None else f"{choice.speedup_rounds}",
            "" if sent is None else f"{sent:.2g}",
        )
    results_console().print(table)


def _print_calibration(found: Calibration, how: dict[str, Any]) -> None:
    from rich.table import Table

    from fedac.algorithms import get

    table = Table(
        title="Measured on the data",
        caption="Each algorithm with its best step size. Expected: by the lemma's terms with "
        "constants fitted to short runs; the largest of them is named. Recommended: the fewest "
        "rounds within twice the best of all, or the cheapest that reach the target. MB: sent by "
        "one worker.",
    )
    table.add_column("algorithm", no_wrap=True)
    for heading in ("K", "rounds", "eta", "reached", "expected", "largest term", "MB"):
        left = heading == "largest term"
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left)
    for m in sorted(found.measured, key=lambda m: (m.rounds, m.suboptimality)):
        table.add_row(
            get(m.algorithm).label,
            f"{m.K}",
            f"{m.rounds}",
            f"{m.eta:.2g}",
            f"{m.suboptimality:.3g}",
            f"{m.fitted.total:.2g}",
            m.fitted.dominant.replace("_", " "),
            f"{m.megabytes_per_worker:.2g}",
            style="bold" if m is found.recommended else None,
        )
    results_console().print(table)
    best = found.recommended
    small = "" if how["M"] == best.M else f" (with {best.M} workers, as many as time allows)"
    missed = how["target"] is not None and best.suboptimality > how["target"]
    results_console().print(
        f"{'The target was not reached; closest' if missed else 'Recommended'}: "
        f"{get(best.algorithm).label} with K={best.K}, eta={best.eta:.3g}: {best.rounds} rounds, "
        f"suboptimality {best.suboptimality:.3g}{small}"
    )
    equal = [
        get(m.algorithm).label
        for m in found.measured
        if m is not best and m.K == best.K and m.suboptimality <= 1.2 * best.suboptimality
    ]
    if equal:
        results_console().print(f"About as good with as many rounds: {', '.join(equal)}")


def _print_paper_tables(as_json: bool) -> None:
    from rich.table import Table

    from fedac.theory.tables import TABLE_1, TABLE_2

    if as_json:
        print(json.dumps(_tables_as_json()))
        return
    first = Table(title="Table 1: rounds R for linear speedup in M (no constants, no logarithms)")
    for heading in ("assumption", "algorithm", "strongly convex", "general convex", "source"):
        first.add_column(heading)
    for row in TABLE_1:
        convex = "" if row.convex is None else str(row.convex)
        cells = (row.algorithm, str(row.strongly_convex), convex, row.reference)
        first.add_row(f"asm{row.assumption}", *cells)
    second = Table(title="Table 2: rates (no constants, no logarithms, no exponential decay)")
    for heading in ("assumption", "algorithm", "rate", "source"):
        second.add_column(heading)
    for rate in TABLE_2:
        what = f"asm{rate.assumption}, mu {'>' if rate.strongly_convex else '='} 0"
        second.add_row(what, rate.algorithm, str(rate), rate.reference)
    results_console().print(first)
    results_console().print(second)


def _tables_as_json() -> dict[str, Any]:
    from fedac.theory.tables import TABLE_1, TABLE_2

    return {
        "table_1": [
            {
                "assumption": row.assumption,
                "algorithm": row.algorithm,
                "strongly_convex": str(row.strongly_convex),
                "convex": None if row.convex is None else str(row.convex),
                "reference": row.reference,
            }
            for row in TABLE_1
        ],
        "table_2": [
            {
                "assumption": row.assumption,
                "strongly_convex": row.strongly_convex,
                "algorithm": row.algorithm,
                "terms": {name: str(term) for name, term in row.terms.items()},
                "reference": row.reference,
            }
            for row in TABLE_2
        ],
    }


def _as_json(
    constants: Constants, choices: list[Choice], found: Calibration | None
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "constants": constants.letters,
        "bounds": [_choice_as_json(choice) for choice in choices],
    }
    if found is not None:
        answer["measured"] = [_measured_as_json(m) for m in found.measured]
        answer["recommended"] = _measured_as_json(found.recommended)
    return answer


def _choice_as_json(choice: Choice) -> dict[str, Any]:
    hp = asdict(choice.hyperparameters)
    bound = choice.bound
    return {
        "algorithm": choice.algorithm,
        "theorem": choice.theorem,
        "workers": choice.M,
        "local_steps": choice.K,
        "steps": choice.T,
        "rounds": choice.rounds,
        "hyperparameters": {name: value for name, value in hp.items() if math.isfinite(value)},
        "bound": bound.total,
        "terms": bound.terms,
        "dominant": bound.dominant,
        "speedup_rounds": choice.speedup_rounds,
        "megabytes_per_worker": choice.megabytes_per_worker,
        "vacuous": choice.vacuous,
    }


def _measured_as_json(m: Measured) -> dict[str, Any]:
    return {
        "algorithm": m.algorithm,
        "workers": m.M,
        "local_steps": m.K,
        "steps": m.T,
        "rounds": m.rounds,
        "eta": m.eta,
        "suboptimality": m.suboptimality,
        "expected": m.fitted.total,
        "dominant": m.fitted.dominant,
        "fit": asdict(m.fit),
        "megabytes_per_worker": m.megabytes_per_worker,
    }
