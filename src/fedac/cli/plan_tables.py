"""What `fedac plan` prints: the constants, the bounds, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedac.cli.parse import MEGABYTES
from fedac.cli.streams import new_table, print_table, results_console

if TYPE_CHECKING:
    from rich.table import Table

    from fedac.theory.constants import Constants
    from fedac.theory.planner import Choice, Plan


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


def _table(choices: Sequence[Choice], *, title: str, caption: str) -> Table:
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
