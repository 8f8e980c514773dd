# SPDX-License-Identifier: Apache-2.0
"""`fedac plan`: algorithm, K, step size and number of rounds for M workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fedac.algorithms import get
from fedac.algorithms.hyperparameters import as_fedac
from fedac.cli import console, options
from fedac.errors import InputError
from fedac.federation.spec import OptionSet, command_option, options_of

if TYPE_CHECKING:
    from fedac.data import Dataset
    from fedac.experiments.comparison import Comparison, Question
    from fedac.experiments.comparison.table import Row
    from fedac.objectives import ConvexObjective
    from fedac.theory.constants import Constants
    from fedac.theory.planner import Choice, Plan

# Heading of the options that stand for a data set.
CONSTANTS = "Constants, instead of a data set"
DEFAULT_STEPS = 4096  # as in the paper's experiments
FEW_DIVISORS = 5
SHARED = (
    "dataset", "label", "client", "standardize", "loss", "l2", "intercept", "workers", "steps",
    "target", "seed", "link",
)  # fmt: skip
PLAN = OptionSet(
    without=tuple(name for name in options_of() if name not in SHARED),
    defaults={"dataset": None, "workers": 256, "link": None},
    overrides={
        "client": {"help": "The column that names the client of each row: it is not a feature."},
        "steps": {"help": f"Steps per worker, T. Default: {DEFAULT_STEPS} without --target."},
        "target": {"help": "Target suboptimality, instead of -T.", "kind": (float,)},
        "seed": {"help": "With --calibrate: seed of the random draws."},
        "link": {"help": f"With --calibrate: count seconds. {options_of()['link'].help}"},
    },
)
# The option of each constant.
LETTERS = {
    "L": "smoothness", "mu": "strong_convexity", "sigma": "noise", "sigma4": "fourth_moment",
    "D0": "distance", "Q": "third_order",
}  # fmt: skip
# Options that have no effect without another one.
NEEDS = {
    "label": "dataset", "client": "dataset", "standardize": "dataset", "loss": "dataset",
    "l2": "dataset", "intercept": "dataset", "bounded_noise": "dataset",
    "calibrate": "dataset", "seed": "calibrate", "link": "calibrate",
}  # fmt: skip


def _number(name: str, text: str, default: float | None = None) -> Callable[[options.F], options.F]:
    heading = "Planning" if name == "--round-cost" else CONSTANTS
    return options.option(name, type=float, default=default, help=text, heading=heading)


@click.command("plan", cls=options.Command)
@options.spec_options(PLAN)
@_number("--smoothness", "Smoothness, L.")
@_number("--strong-convexity", "Strong convexity, mu; 0 for a general convex objective.", 0.0)
@_number("--noise", "Noise of one gradient, sigma.")
@_number("--fourth-moment", "Fourth root of the noise's fourth moment, sigma4 (default: sigma).")
@_number("--distance", "Distance from the start to the optimum, D0.")
@_number("--third-order", "Third-order smoothness, Q, if known.")
@options.option(
    "--dim",
    type=click.IntRange(min=1),
    help="Dimension of the model, for the megabytes.",
    heading=CONSTANTS,
)
@options.option(
    "--bounded-noise",
    is_flag=True,
    help="With --dataset: bound the noise instead of measuring it (logistic only).",
    heading="Planning",
)
@_number("--round-cost", "With --target: cost of one round, in gradients.", 1000.0)
@options.option("--calibrate", is_flag=True, help="Measure on the data set.", heading="Planning")
@options.option(
    "--tables", is_flag=True, help="Print the paper's two tables.", heading=options.OUTPUT
)
@options.json_option()
@click.pass_context
def plan_command(context: click.Context, /, *, tables: bool, as_json: bool, **given: Any) -> None:
    """Recommend K, a step size and a number of rounds, by the paper's bounds or by measurement."""
    if tables:
        _print_paper_tables(as_json)
        return
    from fedac.theory import planner
    from fedac.theory.constants import estimate

    for name, needed in NEEDS.items():
        if options.is_typed(context, name) and not given[needed]:
            raise InputError(f"{command_option(name)} needs --{needed}")
    given |= {name: PLAN.default(name) for name in SHARED if given[name] is None}
    steps, target, dim = given["steps"], given["target"], given["dim"]
    if target is None and steps is None:
        steps = DEFAULT_STEPS
    can_measure = given["dataset"] is not None
    if can_measure:
        data, objective = _load(given)
        constants, dim = estimate(objective, bounded=given["bounded_noise"]), objective.dim
    else:
        constants = _given_constants(given)
    how = {"M": given["workers"], "T": steps, "target": target, "round_cost": given["round_cost"]}
    plan = planner.plan(constants, dim=dim, **how)
    if not as_json:
        console.print_table(
            [
                {"letter": name, "value": f"{value:.4g}", "source": constants.how[name]}
                for name, value in constants.letters.items()
            ],
            words={"letter", "source"},
            title="The problem's constants",
        )
        _print_plan(plan, constants, how, can_measure=can_measure)
    if steps is not None and steps > 1 and (count := len(planner.divisors(steps))) < FEW_DIVISORS:
        console.notice(
            f"K must divide T={steps}, which has only {count} divisors; a power of two has more"
        )
    measured = given["calibrate"] and not plan.already_reached
    found = _calibrate(given, data, how) if measured else None
    if as_json:
        print(json.dumps(_as_json(constants, plan, found), allow_nan=False))
    elif found is not None:
        from fedac.experiments.comparison.calibration import recommended

        _print_calibration(found, how, "gradients" if given["link"] is None else "seconds")
        _say_next(context, _measured_as_json(recommended(found), found.question))
    elif can_measure:
        console.notice("--calibrate measures on the data")
        if runnable := [c for c in plan if c.theorem.communicates and not c.vacuous]:
            best = min(runnable, key=lambda choice: choice.bound.total)
            _say_next(context, _choice_as_json(best) | {"eta": best.step_size.eta})


def _say_next(context: click.Context, best: Mapping[str, Any]) -> None:
    """Print the command that runs a choice of the plan."""
    shared = [name for name in SHARED if name not in ("steps", "target", "workers")]
    command = options.typed_command(context, "run", shared)
    mu = "" if best.get("mu") is None else f" --mu {best['mu']:.3g}"
    console.say_next(
        f"{command} --algorithm {best['algorithm']} -M {best['workers']} -K {best['local_steps']} "
        f"-T {best['steps']} --eta {best['eta']:.3g}{mu}"
    )


def _given_constants(given: dict[str, Any]) -> Constants:
    from fedac.theory.constants import Constants

    known = {letter: given[name] for letter, name in LETTERS.items() if given[name] is not None}
    if missing := [f"--{LETTERS[name]}" for name in ("L", "sigma", "D0") if name not in known]:
        raise InputError(f"pass a --dataset, or the constants: {', '.join(missing)} missing")
    return Constants(**known)


def _load(given: dict[str, Any]) -> tuple[Dataset, ConvexObjective]:
    from fedac.data import load
    from fedac.objectives import PoissonRegression
    from fedac.objectives.losses import choose_loss, find_loss, objective_of
    from fedac.validate import require_positive

    given = given | {"strong_convexity": given["strong_convexity"] or None}
    known = (*LETTERS.values(), "dim")
    if extra := [command_option(name) for name in known if given[name] is not None]:
        raise InputError(f"these come from the data set; omit {', '.join(extra)}")
    if given["loss"] is not None:
        find_loss(given["loss"])
    l2 = require_positive("l2", given["l2"])
    with console.download_bar(given["dataset"]) as show:
        data = load(
            given["dataset"], given["label"], given["client"], standardize=given["standardize"],
            on_progress=show,
        )  # fmt: skip
    loss = choose_loss(data, given["loss"])
    objective = objective_of(data, loss, l2=l2, intercept=given["intercept"])
    if isinstance(objective, PoissonRegression):
        raise InputError("no L holds for Poisson regression, so the paper's bounds do not apply")
    return data, objective


def _calibrate(given: dict[str, Any], data: Dataset, how: dict[str, Any]) -> Comparison:
    """Compare the paper's algorithms on the data."""
    from fedac.cli.compare import answer_with_bars
    from fedac.experiments.comparison import Study, open_store
    from fedac.experiments.comparison.calibration import planners_question
    from fedac.federation.link import Link

    problem = {name: given[name] for name in ("dataset", "loss", "l2", "intercept")}
    link = None if given["link"] is None else Link.parse(given["link"])
    question = planners_question(problem, link=link, seed=given["seed"], **how)
    study = Study(question, data)
    seconds = study.forecast(measured=True).seconds
    console.notice_long(seconds)
    with open_store(None) as store:
        return answer_with_bars(study, store, long=seconds > console.LONG)


def _print_plan(
    plan: Plan, constants: Constants, how: dict[str, Any], *, can_measure: bool
) -> None:
    """Print the bounds, then what they mean."""
    say, M = console.results_console().print, how["M"]
    aim = f"T={how['T']}" if how["target"] is None else f"target {how['target']:g}"
    if plan.already_reached:
        say(
            f"Already reached: F(w_0) - F* is at most {constants.start:.3g} at the start, and the "
            f"{aim} is not below that."
        )
        return
    if not plan:
        advice = "use --calibrate or a larger target" if can_measure else "use a larger target"
        say(f"No bound reaches {aim} within 2^40 steps; {advice}.")
        return
    _print_bounds(plan, constants, how, f"Bounds: M={M}, {aim}")
    if (closest := plan.at_floor) is not None:
        say(
            f"Min-max floor for K={closest.K} and {closest.rounds} rounds (the row "
            f"{_name(closest)}): {closest.floor:.2g}. Up to a constant factor, which is unknown "
            "and set to 1, no method does better on every problem of asm1 (arXiv 2102.01583). "
            "Rows under asm2 assume more and may be below it."
        )
    for reason in dict.fromkeys(plan.left_out.values()):
        labels = [label for label, why in plan.left_out.items() if why == reason]
        say(f"Left out: {', '.join(labels)}: {reason}.")
    if M > 1:
        advice = "".join(
            f": use mb-ac-sgd, K={c.K}, {c.rounds} rounds, bound {c.bound.total:.2g}"
            for c in plan
            if c.theorem.algorithm == "mb-ac-sgd"
        )
        say(
            "If clients hold different data, only the bounds of minibatch methods hold, for M "
            f"equally weighted clients that are present in every round{advice}."
        )
    if plan.synchronizes_every_step:
        where = "--calibrate" if can_measure else "--dataset and --calibrate"
        say(
            "K = 1 wherever local steps are possible: in the worst case a second local step does "
            "not pay off, so the bounds only tell you to synchronize after every step. Real data "
            f"is rarely that bad: measure how large K can be with {where}."
        )
    if M == 1:
        say("Speedup: not applicable with one worker.")
    elif constants.sigma == 0:
        say("Speedup: none without noise; there is nothing that averaging over M would reduce.")
    else:
        rounds = (
            f"{_name(c)} {c.speedup_rounds or 'never'}" for c in plan if c.theorem.communicates
        )
        say(
            "Rounds for linear speedup in M, by the rates without constants and logarithms: "
            f"{'; '.join(rounds)}."
        )


def _print_bounds(plan: Plan, constants: Constants, how: dict[str, Any], title: str) -> None:
    rule = "K gives the fewest rounds whose bound is at most twice the best."
    if how["target"] is not None:
        cost = f"{how['round_cost']:g} gradients"
        rule = f"K and T give the least cost, where a round costs {cost}."
    convex, has_dim = not plan[0].theorem.strongly_convex, plan[0].megabytes is not None
    tuned = "eta and lam give" if convex else "eta gives"
    measured = constants.how["sigma"].startswith("measured")
    rows = []
    for choice in plan:
        row = {"theorem": _name(choice), "K": f"{choice.K}", "rounds": f"{choice.rounds}"}
        row["eta"] = f"{choice.step_size.eta:.2g}"
        if convex:
            row["lam"] = f"{choice.step_size.lam:.2g}"
        row["bound"] = f"{choice.bound.total:.2g}" + "*" * choice.vacuous
        row["largest term"] = choice.bound.dominant.replace("_", " ")
        if has_dim:
            row["MB"] = f"{choice.megabytes:.2g}"
        rows.append(row)
    console.print_table(
        rows,
        words={"theorem", "largest term"},
        title=title,
        caption=f"{rule} {tuned} the least bound. Bounds are worst cases for workers that draw "
        f"from one distribution{', and hold if the measured sigma holds everywhere' * measured}; "
        "real runs are often orders of magnitude better. FedAvg and MB-SGD: the bound is for a "
        "weighted average of the iterates, and says nothing about the last one. * not below the "
        "error at the start: this bound says nothing here. ac-sgd: one worker on its own, which "
        f"sends its result once.{f' {options.MEGABYTES}' * has_dim}",
    )


def _name(choice: Choice) -> str:
    return choice.theorem.title or choice.theorem.label


def _print_calibration(found: Comparison, how: dict[str, Any], unit: str) -> None:
    from fedac.cli.compare import scientific
    from fedac.experiments.comparison.calibration import recommended
    from fedac.experiments.comparison.table import written

    question, best, target = found.question, recommended(found), how["target"]
    rows = [row for row in found.rows if row.eta is not None]
    rows.sort(key=lambda row: (-row.K, row.suboptimality.middle))
    table = []
    for row in rows:
        cells = {"algorithm": get(row.algorithm).label, "K": f"{row.K}"}
        cells["eta"] = f"{row.eta:.2g}" + "*" * bool(row.edge)
        cells["mu"] = "" if row.mu is None else f"{row.mu:.2g}"
        if target is None:
            cells["rounds"] = f"{question.rounds_of(row.K)}"
            cells["reached"] = scientific(row.suboptimality)
        else:
            bands = {"rounds": row.rounds, "MB": row.megabytes, unit: row.seconds}
            cells |= {n: written(band) if row.reached else "-" for n, band in bands.items()}
        table.append(cells)
    console.print_table(
        table,
        words={"algorithm"},
        title="Measured on the data",
        caption=f"Each algorithm tuned with {found.spec.tries} settings, then repeated on "
        f"{found.spec.repeats} fresh seeds; brackets: 90% prediction interval for the mean of "
        f"another {found.spec.repeats}. Recommended: the fewest rounds within twice the best "
        "result, or the cheapest way to the target. * the smallest or largest step size tried; a "
        f"better one may lie beyond it.{f' {options.MEGABYTES}' * (target is not None)}",
        bold=[number for number, row in enumerate(rows) if row is best],
    )
    M = question.spec.workers
    fewer = "" if how["M"] == M else f" (measured with {M} workers to save time)"
    what = f"{get(best.algorithm).label} with K={best.K}, eta={best.eta:.3g}"
    what += "" if best.mu is None else f", mu={best.mu:.3g}"
    reached = f"suboptimality {best.suboptimality.middle:.3g}"
    if target is None:
        said = f"Recommended: {what}: {question.rounds_of(best.K)} rounds, {reached}"
    elif best.reached:
        cost = f"{best.rounds.middle:.0f} rounds and {best.seconds.middle:.3g} {unit}"
        said = f"Recommended: {what}: {cost} to the target"
    else:
        said = f"The target was not reached; closest: {what}: {reached} within {found.budget}"
    console.results_console().print(said + fewer)


def _print_paper_tables(as_json: bool) -> None:
    from fedac.theory.tables import TABLE_1, TABLE_2

    if as_json:
        rows = {"table_1": [asdict(row) for row in TABLE_1]}
        print(json.dumps(rows | {"table_2": [asdict(row) for row in TABLE_2]}))
        return
    console.print_table(
        [
            {"assumption": f"asm{row.assumption}", "algorithm": row.algorithm,
             "strongly convex": row.strongly_convex, "general convex": row.convex or "",
             "source": row.reference}
            for row in TABLE_1
        ],
        words=("assumption", "algorithm", "strongly convex", "general convex", "source"),
        title="Table 1: rounds R for linear speedup in M (no constants, no logarithms)",
    )  # fmt: skip
    console.print_table(
        [
            {"assumption": f"asm{rate.assumption}, mu {'>' if rate.strongly_convex else '='} 0",
             "algorithm": rate.algorithm, "rate": str(rate), "source": rate.reference}
            for rate in TABLE_2
        ],
        words=("assumption", "algorithm", "rate", "source"),
        title="Table 2: rates (no constants, no logarithms, no exponential decay)",
    )  # fmt: skip


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
    from fedac.experiments.comparison.calibration import recommended

    measured = [_measured_as_json(row, found.question) for row in found.rows if row.eta is not None]
    best = _measured_as_json(recommended(found), found.question)
    return answer | {"measured": measured, "recommended": best}


def _choice_as_json(choice: Choice) -> dict[str, Any]:
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
        "workers": question.spec.workers,
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
