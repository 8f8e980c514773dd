"""`fedac plan`: algorithm, K, step size and number of rounds for M workers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from fedac.cli.console import download_bar, new_table, notice, print_table, results_console
from fedac.cli.options import LINK, LOSS_NAMES, MEGABYTES, Command
from fedac.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from fedac.experiments.comparison import Comparison, Question
    from fedac.experiments.comparison.table import Row
    from fedac.objectives import ConvexObjective
    from fedac.theory.constants import Constants
    from fedac.theory.planner import Choice, Plan

DEFAULT_STEPS = 4096  # as in the paper's experiments
FEW_DIVISORS = 5
# Options that do nothing without another one.
NEEDS = {"loss": "dataset", "l2": "dataset", "intercept": "dataset", "seed": "calibrate"}


@click.command("plan", cls=Command)
@click.option("--dataset", help="A registered name or a LIBSVM file.")
@click.option(
    "--loss",
    default="logistic",
    help=f"With --dataset: {LOSS_NAMES}, or your own class as module:name.",
)
@click.option(
    "--l2", type=float, default=1e-3, help="With --dataset: regularization strength, above 0."
)
@click.option("--intercept", is_flag=True, help="Append a column of ones.")
@click.option("--smoothness", type=float, help="L, instead of a data set.")
@click.option(
    "--strong-convexity", type=float, default=0.0, help="mu; 0 for a general convex objective."
)
@click.option("--noise", type=float, help="sigma, the noise of one gradient.")
@click.option(
    "--fourth-moment",
    type=float,
    help="sigma4, fourth root of the noise's fourth moment; sigma if not given.",
)
@click.option("--distance", type=float, help="D0, from the start to the optimum.")
@click.option("--third-order", type=float, help="Q, third-order smoothness, if known.")
@click.option(
    "--bounded-noise",
    is_flag=True,
    help="With --dataset: bound the noise (logistic), not measure it.",
)
@click.option("--dim", type=click.IntRange(min=1), help="Dimension, for the megabytes of a worker.")
@click.option("--workers", "-M", type=int, default=256, help="Workers, M.")
@click.option(
    "--steps", "-T", type=int, help=f"Steps per worker, T; {DEFAULT_STEPS} without --target."
)
@click.option("--target", type=float, help="Suboptimality to reach, instead of -T.")
@click.option(
    "--round-cost",
    type=float,
    default=1000.0,
    help="With --target: cost of one round, in gradients.",
)
@click.option("--calibrate", is_flag=True, help="Measure on the data set.")
@click.option("--seed", type=int, default=1, help="With --calibrate: seed of the random draws.")
@click.option("--link", help=f"With --calibrate: cost in seconds instead of gradients. {LINK}")
@click.option("--tables", is_flag=True, help="Print the paper's two tables.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    context: click.Context,
    *,
    dataset: str | None,
    loss: str,
    l2: float,
    intercept: bool,
    smoothness: float | None,
    strong_convexity: float,
    noise: float | None,
    fourth_moment: float | None,
    distance: float | None,
    third_order: float | None,
    bounded_noise: bool,
    dim: int | None,
    workers: int,
    steps: int | None,
    target: float | None,
    round_cost: float,
    calibrate: bool,
    seed: int,
    link: str | None,
    tables: bool,
    as_json: bool,
) -> None:
    """Recommend K, a step size and a number of rounds, by the paper's bounds or by measurement."""
    if tables:
        _print_paper_tables(as_json)
        return
    from fedac.theory import planner
    from fedac.theory.constants import Constants, estimate

    given = {"smoothness": smoothness, "noise": noise, "distance": distance}
    _require_needed(context)
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
        given |= {"fourth-moment": fourth_moment, "dim": dim}
        if extra := [f"--{name}" for name, value in given.items() if value is not None]:
            raise InputError(f"these come from the data set; omit {', '.join(extra)}")
        objective = _objective(dataset, loss, l2, intercept)
        constants, dim = estimate(objective, bounded=bounded_noise), objective.dim
    if calibrate and objective is None:
        raise InputError("--calibrate needs a --dataset to measure on")
    if link is not None and not calibrate:
        raise InputError("--link needs --calibrate: bounds count gradients")
    if target is None and steps is None:
        steps = DEFAULT_STEPS
    how: dict[str, Any] = {"M": workers, "T": steps, "target": target, "round_cost": round_cost}
    plan = planner.plan(constants, dim=dim, **how)
    if not as_json:
        print_constants(constants)
        print_plan(plan, constants, how, can_measure=objective is not None)
    if steps is not None and steps > 1 and len(divisors := planner.divisors(steps)) < FEW_DIVISORS:
        notice(f"K must divide T={steps}, which has only {len(divisors)} divisors; "
               "a power of two has more")  # fmt: skip
    found = None
    if calibrate and objective is not None and not plan.already_reached:
        problem = {"dataset": dataset, "loss": loss, "l2": l2, "intercept": intercept}
        found = _calibrate(problem, how, link, seed)
    if as_json:
        print(json.dumps(_as_json(constants, plan, found), allow_nan=False))
    elif found is not None:
        _print_calibration(found, how, link)
    elif objective is not None:
        notice("--calibrate measures on the data")


def _require_needed(context: click.Context) -> None:
    """Refuse options that were typed and would do nothing."""
    for name, needed in NEEDS.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and not context.params[needed]:
            raise InputError(f"--{name} needs --{needed}")


def _objective(dataset: str, loss: str, l2: float, intercept: bool) -> ConvexObjective:
    from fedac.data import load
    from fedac.plugins import find_loss, make_objective
    from fedac.validate import require_positive

    find_loss(loss)
    require_positive("l2", l2)
    with download_bar(dataset) as show:
        loaded = load(dataset, show)
    return make_objective(loss, loaded.X, loaded.y, l2=l2, intercept=intercept)


def _calibrate(
    problem: dict[str, Any], how: dict[str, Any], link: str | None, seed: int
) -> Comparison:
    """Compare the paper's algorithms on the data."""
    from fedac.cli.compare import answer_with_bars
    from fedac.experiments.calibration import planners_question
    from fedac.experiments.comparison import Study, open_store
    from fedac.federation.link import Link

    on_link = None if link is None else Link.parse(link)
    question = planners_question(problem, link=on_link, seed=seed, **how)
    with open_store(None) as store:
        return answer_with_bars(Study(question), store)


def _print_calibration(found: Comparison, how: dict[str, Any], link: str | None) -> None:
    from fedac.algorithms import get
    from fedac.cli.compare import scientific
    from fedac.experiments.calibration import recommended
    from fedac.experiments.comparison.verdict import written

    question, best = found.question, recommended(found)
    cost = "gradients" if link is None else "seconds"
    target = how["target"]
    aim = ("rounds", "MB", cost) if target is not None else ("rounds", "reached")
    megabytes = f" {MEGABYTES}" if target is not None else ""
    table = new_table(
        *("algorithm", "K", "eta", "mu", *aim),
        words={"algorithm"},
        title="Measured on the data",
        caption=f"Each algorithm tuned with {question.tries} settings, then repeated on "
        f"{question.repeats} fresh seeds; brackets: 90% prediction interval for the mean of as "
        "many further seeds. Recommended: the fewest rounds within twice the best "
        "result, or the cheapest way to the target. * the smallest or largest step size tried; a "
        f"better one may lie beyond it.{megabytes}",
    )
    for row in sorted(found.rows, key=lambda row: (-row.K, row.suboptimality.middle)):
        if row.eta is None:
            continue
        cells = [f"{question.rounds_of(row.K)}", scientific(row.suboptimality)]
        if target is not None:
            bands = (row.rounds, row.megabytes, row.seconds)
            cells = [written(band) if row.reached else "-" for band in bands]
        table.add_row(
            get(row.algorithm).label,
            f"{row.K}",
            f"{row.eta:.2g}" + ("*" if row.edge else ""),
            "" if row.mu is None else f"{row.mu:.2g}",
            *cells,
            style="bold" if row is best else None,
        )
    print_table(table)
    M = question.grid.workers[0]
    fewer = "" if how["M"] == M else f" (measured with {M} workers to save time)"
    what = f"{get(best.algorithm).label} with K={best.K}, eta={best.eta:.3g}"
    what += "" if best.mu is None else f", mu={best.mu:.3g}"
    reached = f"suboptimality {best.suboptimality.middle:.3g}"
    if target is None:
        said = f"Recommended: {what}: {question.rounds_of(best.K)} rounds, {reached}"
    elif best.reached:
        said = (
            f"Recommended: {what}: {best.rounds.middle:.0f} rounds and "
            f"{best.seconds.middle:.3g} {cost} to the target"
        )
    else:
        said = f"The target was not reached; closest: {what}: {reached} within {found.budget}"
    results_console().print(said + fewer)


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


def _as_json(constants: Constants, plan: Plan, found: Comparison | None) -> dict[str, Any]:
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
    from fedac.experiments.calibration import recommended

    measured = [_measured_as_json(row, found.question) for row in found.rows if row.eta is not None]
    best = _measured_as_json(recommended(found), found.question)
    return answer | {"measured": measured, "recommended": best}


def _choice_as_json(choice: Choice) -> dict[str, Any]:
    from fedac.algorithms.hyperparameters import as_fedac

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
        "closed_form": choice.closed_form and choice.closed_form.total,
        "floor": choice.floor,
        "terms": bound.terms,
        "dominant": bound.dominant,
        "speedup_rounds": choice.speedup_rounds,
        "megabytes_per_worker": choice.megabytes_per_worker,
        "megabytes": choice.megabytes,
        "vacuous": choice.vacuous,
    }


def _measured_as_json(row: Row, question: Question) -> dict[str, Any]:
    rounds = question.rounds_of(row.K)
    return {
        "algorithm": row.algorithm,
        "workers": question.grid.workers[0],
        "local_steps": row.K,
        "steps": rounds * row.K,
        "rounds": round(row.rounds.middle) if row.reached else rounds,
        "eta": row.eta,
        "mu": row.mu,
        "edge": row.edge or None,
        "reached": row.reached,
        "suboptimality": row.suboptimality.middle,
        "suboptimality_low": row.suboptimality.low,
        "suboptimality_high": row.suboptimality.high,
        "megabytes": row.megabytes.middle if row.reached else None,
        "cost": row.seconds.middle if row.reached else None,
    }


# --- What `fedac plan` prints: the constants, the bounds, and what they mean.


def print_constants(constants: Constants) -> None:
    """Print the letters, their values and how they are known."""
    words = ("letter", "how it is known")
    table = new_table("letter", "value", words[1], words=words, title="The problem's constants")
    for name, value in constants.letters.items():
        table.add_row(name, f"{value:.4g}", constants.how[name])
    print_table(table)


def print_plan(plan: Plan, constants: Constants, how: dict[str, Any], *, can_measure: bool) -> None:
    """Print the bounds, then what there is to say about them."""
    console = results_console()
    aim = f"T={how['T']}" if how["target"] is None else f"target {how['target']:g}"
    if plan.already_reached:
        console.print(
            f"Already reached: F(w_0) - F* is at most {constants.start:.3g} at the start, and the "
            f"{aim} is not below that."
        )
        return
    if not plan:
        advice = "use --calibrate or a larger target" if can_measure else "use a larger target"
        console.print(f"No bound reaches {aim} within 2^40 steps; {advice}.")
        return
    _print_bounds(plan, constants, how, f"Bounds: M={how['M']}, {aim}")
    if plan.at_floor is not None:
        console.print(_floor(plan.at_floor))
    _print_left_out(plan.left_out)
    if how["M"] > 1:
        console.print(_clients_that_differ(plan))
    if plan.synchronizes_every_step:
        where = "--calibrate" if can_measure else "--dataset and --calibrate"
        console.print(
            "K = 1 wherever local steps are possible: these worst cases cannot justify a second "
            "local step, so they only say to synchronize after every step. Real data is rarely "
            f"that bad: measure how large K can be with {where}."
        )
    console.print(_speedups(plan, constants, how["M"]))


def _print_bounds(plan: Plan, constants: Constants, how: dict[str, Any], title: str) -> None:
    rule = (
        "K gives the fewest rounds whose bound is at most twice the best."
        if how["target"] is None
        else f"K and T give the least cost, where a round costs {how['round_cost']:g} gradients."
    )
    tuned = "eta gives" if plan[0].theorem.strongly_convex else "eta and lam give"
    measured = constants.how["sigma"].startswith("measured")
    caption = (
        f"{rule} {tuned} the least bound. Bounds are worst cases for workers that draw from one "
        f"distribution{', and hold if the measured sigma holds everywhere' * measured}; real runs "
        "are often orders of magnitude better. FedAvg and MB-SGD: the bound is for a weighted "
        "average of the iterates, and says nothing about the last one. * not below the error at "
        "the start: this bound says nothing here. ac-sgd: one worker on its own, which sends its "
        "result once."
    )
    print_table(_table(plan, title=title, caption=caption))


def _floor(choice: Choice) -> str:
    return (
        f"Min-max floor for K={choice.K} and {choice.rounds} rounds (the row {_name(choice)}): "
        f"{choice.floor:.2g}. Up to a constant factor, which is unknown and set to 1, no method "
        "does better on every problem of asm1 (arXiv 2102.01583). Rows under asm2 assume more and "
        "may be below it."
    )


def _clients_that_differ(plan: Plan) -> str:
    said = (
        "If clients hold different data, only the bounds of minibatch methods hold, for M clients "
        "that count the same and all take part in every round"
    )
    for choice in plan:
        if choice.theorem.algorithm == "mb-ac-sgd":
            said += f": use mb-ac-sgd, K={choice.K}, {choice.rounds} rounds, "
            said += f"bound {choice.bound.total:.2g}"
    return said + "."


def _name(choice: Choice) -> str:
    return choice.theorem.title or choice.theorem.label


def _table(choices: Plan, *, title: str, caption: str) -> Table:
    megabytes = choices[0].megabytes_per_worker is not None
    convex = not choices[0].theorem.strongly_convex
    table = new_table(
        *("theorem", "K", "rounds", "eta", *["lam"] * convex, "bound", "largest term"),
        *["MB"] * megabytes,
        words={"theorem", "largest term"},
        title=title,
        caption=caption + f" {MEGABYTES}" * megabytes,
    )
    for choice in choices:
        table.add_row(
            _name(choice),
            f"{choice.K}",
            f"{choice.rounds}",
            f"{choice.step_size.eta:.2g}",
            *([f"{choice.step_size.lam:.2g}"] if convex else []),
            f"{choice.bound.total:.2g}" + "*" * choice.vacuous,
            choice.bound.dominant.replace("_", " "),
            *([f"{choice.megabytes:.2g}"] if megabytes else []),
        )
    return table


def _print_left_out(left_out: Mapping[str, str]) -> None:
    for reason in dict.fromkeys(left_out.values()):
        labels = [label for label, why in left_out.items() if why == reason]
        results_console().print(f"Left out: {', '.join(labels)}: {reason}.")


def _speedups(plan: Plan, constants: Constants, M: int) -> str:
    if M == 1:
        return "Speedup: none to speak of with one worker."
    if constants.sigma == 0:
        return "Speedup: none without noise; there is nothing that averaging over M would reduce."
    rounds = (
        f"{_name(choice)} {choice.speedup_rounds or 'never'}"
        for choice in plan
        if choice.theorem.communicates
    )
    return (
        "Rounds for linear speedup in M, by the rates without constants and logarithms: "
        f"{'; '.join(rounds)}."
    )
