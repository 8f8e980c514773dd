"""`fedac plan`: algorithm, K, step size and number of rounds for M workers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import typer

from fedac.cli.parse import LOSS_NAMES
from fedac.cli.plan_tables import print_constants, print_plan
from fedac.cli.progress import download_bar, progress_bar
from fedac.cli.streams import new_table, notice, print_table, results_console
from fedac.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from fedac.experiments.calibration import Calibration, Measured
    from fedac.objectives import Objective
    from fedac.theory.constants import Constants
    from fedac.theory.planner import Choice, Plan

DEFAULT_STEPS = 4096  # as in the paper's experiments
FEW_DIVISORS = 5


def command(
    dataset: str | None = typer.Option(None, help="A registered name or a LIBSVM file."),
    loss: str = typer.Option(
        "logistic", help=f"With --dataset: {LOSS_NAMES}, or your own class as module:name."
    ),
    l2: float = typer.Option(1e-3, help="With --dataset: regularization strength, above 0."),
    intercept: bool = typer.Option(False, "--intercept", help="Append a column of ones."),
    smoothness: float | None = typer.Option(None, help="L, instead of a data set."),
    strong_convexity: float = typer.Option(0.0, help="mu; 0 for a general convex objective."),
    noise: float | None = typer.Option(None, help="sigma, the noise of one gradient."),
    fourth_moment: float | None = typer.Option(
        None, help="sigma4, fourth root of the noise's fourth moment; sigma if not given."
    ),
    distance: float | None = typer.Option(None, help="D0, from the start to the optimum."),
    third_order: float | None = typer.Option(None, help="Q, third-order smoothness, if known."),
    bounded_noise: bool = typer.Option(
        False, "--bounded-noise", help="With --dataset: bound the noise (logistic), not measure it."
    ),
    dim: int | None = typer.Option(None, min=1, help="Dimension, to compute megabytes."),
    workers: int = typer.Option(256, "--workers", "-M", help="Workers, M."),
    steps: int | None = typer.Option(
        None, "--steps", "-T", help=f"Steps per worker, T; {DEFAULT_STEPS} without --target."
    ),
    target: float | None = typer.Option(None, help="Suboptimality to reach, instead of -T."),
    round_cost: float = typer.Option(
        1000.0, help="With --target: cost of one round, in gradients."
    ),
    calibrate: bool = typer.Option(False, "--calibrate", help="Measure on the data set."),
    seed: int = typer.Option(1, help="With --calibrate: seed of the random draws."),
    tables: bool = typer.Option(False, "--tables", help="Print the paper's two tables."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Recommend K, a step size and a number of rounds, by the paper's bounds or by measurement."""
    if tables:
        _print_paper_tables(as_json)
        return
    from fedac.theory import planner
    from fedac.theory.constants import Constants, estimate

    given = {"smoothness": smoothness, "noise": noise, "distance": distance}
    if dataset is None:
        missing = [f"--{name}" for name, value in given.items() if value is None]
        if missing:
            raise InputError(f"pass a --dataset, or the constants: {', '.join(missing)} missing")
        if bounded_noise:
            raise InputError("--bounded-noise needs a --dataset; without one, --noise is the bound")
        L, sigma, D0 = (float(value) for value in given.values() if value is not None)
        objective = None
        sigma4 = math.nan if fourth_moment is None else fourth_moment
        constants = Constants(
            L=L, mu=strong_convexity, sigma=sigma, sigma4=sigma4, D0=D0, Q=third_order
        )
    else:
        given |= {"strong-convexity": strong_convexity or None, "third-order": third_order}
        given |= {"fourth-moment": fourth_moment}
        if extra := [f"--{name}" for name, value in given.items() if value is not None]:
            raise InputError(f"the constants come from the data set; omit {', '.join(extra)}")
        objective = _objective(dataset, loss, l2, intercept)
        constants, dim = estimate(objective, bounded=bounded_noise), objective.dim
    if calibrate and objective is None:
        raise InputError("--calibrate needs a --dataset to measure on")
    if target is None and steps is None:
        steps = DEFAULT_STEPS
    how: dict[str, Any] = {"M": workers, "T": steps, "target": target, "round_cost": round_cost}
    plan = planner.plan(constants, dim=dim, **how)
    if not as_json:
        print_constants(constants)
        print_plan(plan, constants, how, can_measure=objective is not None)
    if steps is not None and len(divisors := planner.divisors(steps)) < FEW_DIVISORS:
        notice(f"K must divide T={steps}, which has only {len(divisors)} divisors; "
               "a power of two has more")  # fmt: skip
    found = None
    if calibrate and objective is not None:
        found = _calibrate(objective, constants, seed, how)
    if as_json:
        print(json.dumps(_as_json(constants, plan, found), allow_nan=False))
    elif found is not None:
        _print_calibration(found, how)
    elif objective is not None:
        notice("--calibrate measures on the data")


def _objective(dataset: str, loss: str, l2: float, intercept: bool) -> Objective:
    from fedac.data import load
    from fedac.experiments.plugins import find_loss, make_objective
    from fedac.require import require_positive

    find_loss(loss)
    require_positive("l2", l2)
    with download_bar(dataset) as show:
        loaded = load(dataset, show)
    return make_objective(loss, loaded.X, loaded.y, l2=l2, intercept=intercept)


def _calibrate(
    objective: Objective, constants: Constants, seed: int, how: dict[str, Any]
) -> Calibration:
    from fedac.experiments import calibration

    total = int(calibration.PROBE_QUERIES + calibration.MEASURE_QUERIES)
    with progress_bar("calibrating", total=total) as advance:
        return calibration.calibrate(objective, constants, seed=seed, on_progress=advance, **how)


def _print_calibration(found: Calibration, how: dict[str, Any]) -> None:
    from fedac.algorithms import get

    table = new_table(
        *("algorithm", "K", "rounds", "eta", "reached", "expected", "largest term", "MB"),
        words={"algorithm", "largest term"},
        title="Measured on the data",
        caption="Each algorithm with its best step size. Expected: the lemma's terms with "
        "constants fitted to short runs, and the largest of them. Recommended: the fewest rounds "
        "within twice the best result, or the cheapest way to the target. MB: sent by one "
        "worker. * the smallest or largest step size tried; a better one may lie beyond it.",
    )
    for m in sorted(found.measured, key=lambda m: (m.rounds, m.suboptimality)):
        table.add_row(
            get(m.algorithm).label,
            f"{m.K}",
            f"{m.rounds}",
            f"{m.eta:.2g}" + ("*" if m.edge else ""),
            f"{m.suboptimality:.3g}",
            f"{m.fitted.total:.2g}",
            m.fitted.dominant.replace("_", " "),
            f"{m.megabytes_per_worker:.2g}",
            style="bold" if m is found.recommended else None,
        )
    print_table(table)
    best, console = found.recommended, results_console()
    fewer = "" if how["M"] == best.M else f" (measured with {best.M} workers to save time)"
    missed = how["target"] is not None and best.suboptimality > how["target"]
    console.print(
        f"{'The target was not reached; closest' if missed else 'Recommended'}: "
        f"{get(best.algorithm).label} with K={best.K}, eta={best.eta:.3g}: {best.rounds} rounds, "
        f"suboptimality {best.suboptimality:.3g}{fewer}"
    )
    if best.edge:
        console.print(f"eta={best.eta:.3g} is the {best.edge} step size tried; a better one may "
                      "lie beyond it.")  # fmt: skip
    similar = [
        get(m.algorithm).label
        for m in found.measured
        if m is not best and m.K == best.K and m.suboptimality <= 1.2 * best.suboptimality
    ]
    if similar:
        console.print(f"About as good with the same K: {', '.join(similar)}")


def _print_paper_tables(as_json: bool) -> None:
    from fedac.theory.tables import TABLE_1, TABLE_2

    if as_json:
        rows = {"table_1": TABLE_1, "table_2": TABLE_2}
        print(json.dumps({name: list(map(_row_as_json, table)) for name, table in rows.items()}))
        return
    first = _table_of_words(
        "Table 1: rounds R for linear speedup in M (no constants, no logarithms)",
        *("assumption", "algorithm", "strongly convex", "general convex", "source"),
    )
    for row in TABLE_1:
        cells = (row.algorithm, row.strongly_convex, row.convex or "", row.reference)
        first.add_row(f"asm{row.assumption}", *map(str, cells))
    second = _table_of_words(
        "Table 2: rates (no constants, no logarithms, no exponential decay)",
        *("assumption", "algorithm", "rate", "source"),
    )
    for rate in TABLE_2:
        what = f"asm{rate.assumption}, mu {'>' if rate.strongly_convex else '='} 0"
        second.add_row(what, rate.algorithm, str(rate), rate.reference)
    print_table(first)
    print_table(second)


def _table_of_words(title: str, *headings: str) -> Table:
    return new_table(*headings, words=headings, title=title)


def _row_as_json(row: Any) -> dict[str, Any]:
    """Return a row of the paper's tables, with its formulas as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: str(term) for name, term in value.items()}
        return value if value is None or isinstance(value, int) else str(value)

    return {field.name: plain(getattr(row, field.name)) for field in fields(row)}


def _as_json(constants: Constants, plan: Plan, found: Calibration | None) -> dict[str, Any]:
    answer = {
        "constants": constants.letters,
        "how": {letter: constants.how[letter] for letter in constants.letters},
        "start": constants.start,
        "already_reached": plan.already_reached,
        "bounds": list(map(_choice_as_json, plan)),
        "left_out": plan.left_out,
    }
    if found is None:
        return answer
    measured = list(map(_measured_as_json, found.measured))
    return answer | {"measured": measured, "recommended": _measured_as_json(found.recommended)}


def _choice_as_json(choice: Choice) -> dict[str, Any]:
    from fedac.algorithms.couplings import as_fedac

    theorem, bound, hp = choice.theorem, choice.bound, choice.step_size.hp
    lam = {} if theorem.strongly_convex else {"lam": choice.step_size.lam}
    return {
        "algorithm": theorem.algorithm,
        "theorem": theorem.name,
        "label": theorem.label,
        "workers": choice.M,
        "local_steps": choice.K,
        "steps": choice.T,
        "rounds": choice.rounds,
        "hyperparameters": {"rho": 1.0} | asdict(as_fedac(hp)) | asdict(hp) | lam,
        "bound": bound.total,
        "constants_known": theorem.paper_constants,
        "closed_form": choice.closed_form and choice.closed_form.total,
        "floor": choice.floor,
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
        "edge": m.edge,
        "suboptimality": m.suboptimality,
        "expected": m.fitted.total,
        "dominant": m.fitted.dominant,
        "fit": asdict(m.fit),
        "megabytes_per_worker": m.megabytes_per_worker,
    }
