"""What `fedac plan` prints: the constants, the bounds, and what is not a bound apart from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    """Print bounds, then rates with constants set to 1, then what there is to say about them."""
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
    if bounds := [choice for choice in plan if choice.theorem.paper_constants]:
        _print_bounds(bounds, how, f"Bounds, by the paper's lemmas: M={how['M']}, {aim}")
    if rates := [choice for choice in plan if not choice.theorem.paper_constants]:
        _print_rates(rates, plan.at_floor)
    _print_left_out(plan.left_out)
    console.print(_speedups(plan, constants, how["M"]))


def _print_bounds(choices: list[Choice], how: dict[str, Any], title: str) -> None:
    rule = (
        "K gives the fewest rounds whose bound is at most twice the best."
        if how["target"] is None
        else f"K and T give the least cost, where a round costs {how['round_cost']:g} gradients."
    )
    tuned = "eta gives" if choices[0].theorem.strongly_convex else "eta and lam give"
    caption = (
        f"{rule} {tuned} the least bound. Bounds hold in the worst case; real runs are often "
        "orders of magnitude better. * not below the error at the start: this bound says nothing "
        "here. ac-sgd: one worker on its own, which sends its result once."
    )
    print_table(_table(choices, value="bound", title=title, caption=caption))


def _print_rates(choices: list[Choice], at_floor: Choice | None) -> None:
    caption = "Compare how these grow, not their size, with the bounds above."
    if at_floor is not None:
        caption += (
            " min-max floor: no method does better on every smooth convex problem, at the K and "
            "rounds of the least bound above (arXiv 2102.01583)."
        )
    title = "Not bounds: constants unknown, set to 1"
    table = _table(choices, value="value", title=title, caption=caption)
    if at_floor is not None:
        place = (f"{at_floor.K}", f"{at_floor.rounds}")
        table.add_row("min-max floor", *place, "", "", f"{at_floor.floor:.2g}")
    print_table(table)


def _table(choices: list[Choice], *, value: str, title: str, caption: str) -> Table:
    megabytes = choices[0].megabytes_per_worker is not None
    convex = not choices[0].theorem.strongly_convex
    table = new_table(
        *("theorem", "K", "rounds", "eta", *["lam"] * convex, value, "largest term"),
        *["MB"] * megabytes,
        words={"theorem", "largest term"},
        title=title,
        caption=caption + " MB: sent by one worker, not what it receives." * megabytes,
    )
    for choice in choices:
        table.add_row(
            choice.theorem.label,
            f"{choice.K}",
            f"{choice.rounds}",
            f"{choice.step_size.eta:.2g}",
            *([f"{choice.step_size.lam:.2g}"] if convex else []),
            f"{choice.bound.total:.2g}" + ("*" if choice.vacuous and value == "bound" else ""),
            choice.bound.dominant.replace("_", " "),
            *([f"{choice.megabytes_per_worker:.2g}"] if megabytes else []),
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
        f"{choice.theorem.label} {choice.speedup_rounds or 'never'}"
        for choice in plan
        if choice.theorem.communicates
    )
    return (
        "Rounds for linear speedup in M, by the rates without constants and logarithms: "
        f"{', '.join(rounds)}."
    )
