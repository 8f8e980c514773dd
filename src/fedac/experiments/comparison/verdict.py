"""How a comparison was made, as terms and their descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.question import AXES, Question
from fedac.experiments.comparison.rows import EXACT, LAST, Row
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.summary import Band, band_text, labels_of
from fedac.federation.federation import taking_part
from fedac.simulation.result import edge_of


def notes_on(comparison: Comparison, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Describe the problem, the federation, the link and the tuning."""
    question, grid = comparison.question, comparison.question.grid
    edges = [
        f"{named(row, names)}: {edge} {what}"
        for row in comparison.rows
        for edge, what in ((row.edge, "step size"), (row.server_edge, "server step"))
        if edge
    ]
    diverged = [named(row, names) for row in comparison.rows if row.diverged]
    pairs = [
        ("data", f"{grid.dataset}, {comparison.dim} parameters"),
        ("loss", f"{grid.loss}, l2 = {grid.l2:g}, F* = {comparison.f_star:.10g}"),
        *_federation(comparison),
        ("batch", str(grid.batch[0])),
        ("wire", ", ".join(grid.wire)),
        ("link", question.link.in_words()),
        ("budget", f"{comparison.budget}{'' if question.budget else _why(comparison)}"),
        ("rounds", f"{question.rounds} of every run"),
        (
            "tuning",
            f"{question.tries} settings for each method, K and wire with seed {grid.seeds[0]}: a "
            "coarse grid of step sizes, then the neighbours of the best, in server step, momentum "
            "and mu too. The best ones also with seeds "
            f"{' and '.join(map(str, question.tuning_seeds[1:]))}; "
            + (
                "the fewest rounds to the target win"
                if question.target is not None
                else "the smallest suboptimality within the budget wins"
            ),
        ),
        (
            "fresh seeds",
            f"{', '.join(map(str, question.fresh_seeds))}: the winners once more; all figures are "
            "of these",
        ),
        (
            "suboptimality",
            f"the mean of the last {LAST:.0%} of the records within the budget, at least one",
        ),
        (
            "level",
            "the interval of the ratio to the best row, seed by seed, contains 1",
        ),
        ("runs", f"{comparison.runs:,}"),
    ]
    if edges:
        what = "a smaller or larger one might do better"
        pairs.append(("at an edge of those tried", f"{'; '.join(edges)} ({what})"))
    if diverged:
        pairs.append(("every try diverged", "; ".join(diverged)))
    return pairs


def _why(comparison: Comparison) -> str:
    return ", in which every run ends" if math.isfinite(comparison.budget.amount) else ""


def _federation(comparison: Comparison) -> list[tuple[str, str]]:
    """Describe who takes part."""
    grid = comparison.question.grid
    share = grid.participation[0]
    if grid.workers:
        M: float = grid.workers[0]
        pairs = [("workers", f"{M}, which all draw from all rows")]
    else:
        # A file of clients says how many there are.
        M = grid.clients[0] if grid.clients else math.nan
        pairs = [("clients", str(M))] if grid.clients else []
        pairs += [("split", grid.split[0] if grid.split else "iid")]
        pairs += [("weighting", grid.weighting)]
    if share == 1:
        return [*pairs, ("participation", "everybody in every round")]
    some = f"{share:g}" if math.isnan(M) else f"{taking_part(share, int(M)) or M} in every round"
    return [*pairs, ("participation", some)]


# --- The answer to a comparison's question in sentences.

# What everybody knows: a verdict says what they need, whoever wins.
WELL_KNOWN = ("fedavg", "fedac-i")
# More names than this would not be read.
MOST_NAMED = 5
UNITS = {"rounds": " rounds", "megabytes": " MB", "seconds": " seconds"}


def sentences(comparison: Comparison) -> list[str]:
    """Say which method wins, or which are level, and what the runner-up and the baselines need."""
    names = method_labels(comparison)
    question, rows = comparison.question, comparison.rows
    if not rows or math.isinf(rows[0].rank[1]):
        return ["Every method diverged."]
    best = rows[0]
    level = [row for row in comparison.best_rows if row.method != best.method and row.level]
    said = [] if best.reached or question.target is None else [_nothing_reached(question)]
    said += _who_wins(comparison, best, level, names)
    others = {row.method: row for row in reversed(rows) if row.method != best.method}
    runner_up = next((row for row in rows if row.method != best.method), None)
    twins = [row for row in comparison.best_rows if row.method == best.method and row is not best]
    said += [f"{_beside(row, best, names, question.repeats)}." for row in twins]
    if runner_up is not None and best.reached and not runner_up.reached:
        said.append("No other method reached it with all seeds.")
        runner_up = None
    if runner_up is not None:
        said.append(f"Runner-up: {_beside(runner_up, best, names, question.repeats)}.")
    local = next((row for row in rows if not row.all_clients), None)
    if best.all_clients and local is not None and local is not runner_up:
        said.append(f"Best with local steps: {_beside(local, best, names, question.repeats)}.")
    said += [
        f"{_beside(others[name], best, names, question.repeats)}."
        for name in WELL_KNOWN
        if name in others and others[name] not in (runner_up, local)
    ]
    said += _on_other_axes(rows, names) if best.reached else []
    return said + _edge_of_local_steps(best, question.grid.local_steps)


def _nothing_reached(question: Question) -> str:
    return (
        f"Nothing reached a suboptimality of {question.target:g} with all seeds in "
        f"{question.rounds} round{'s' * (question.rounds != 1)}."
    )


def _who_wins(
    comparison: Comparison, best: Row, level: list[Row], names: Mapping[str, str]
) -> list[str]:
    """Name the best method, and those that seeds do not tell from it."""
    if best.reached:
        what = (
            f"it reached a suboptimality of {comparison.question.target:g} in "
            f"{_cost(best, 'seconds')}, {_cost(best, 'rounds')}, {_cost(best, 'megabytes')}"
        )
        won = f"{named(best, names)} is the fastest on this link: {what}."
    else:
        seeds = _some_seeds(best, comparison.question.repeats)
        what = f"suboptimality {written(best.suboptimality)}{seeds}"
        won = (
            f"{named(best, names)} came closest to the optimum within {comparison.budget}: {what}."
        )
    if not level:
        return [won]
    several = [names[row.method] for row in (best, *level)]
    if len(several) > MOST_NAMED:
        several[MOST_NAMED - 1 :] = [f"{len(several) - MOST_NAMED + 1} others"]
    listed = f"{', '.join(several[:-1])} and {several[-1]}"
    seeds = f"{comparison.question.repeats} seeds do not tell them apart"
    return [f"{listed} are level: {seeds}.", f"{named(best, names)}: {what}."]


def proposed_target(comparison: Comparison) -> float | None:
    """Return a target that methods reach: twice what the best with local steps had, to one digit.

    None if the comparison has a target, or nothing converged.
    """
    rows = comparison.rows
    if comparison.question.target is not None or not rows or math.isinf(rows[0].rank[1]):
        return None
    best = next((row for row in rows if not row.all_clients), rows[0])
    if best.diverged:
        return None
    twice = 2 * best.suboptimality.middle
    digit = 10.0 ** math.floor(math.log10(twice))
    return float(f"{math.ceil(twice / digit) * digit:.1g}")


def method_labels(comparison: Comparison) -> dict[str, str]:
    """Return the labels of the methods."""
    methods = list(dict.fromkeys(row.method for row in comparison.rows))
    names = dict(zip(methods, labels_of(methods), strict=True))
    who = "" if comparison.question.grid.participation[0] == 1 else " with all clients"
    return names | {name: label + who for name, label in BASELINES.items() if name in names}


def named(row: Row, names: Mapping[str, str]) -> str:
    """Name a row: its method and how it is set."""
    wire = "" if row.wire == "float32" else f" with messages in {row.wire}"
    settings = [] if row.all_clients else [f"K = {row.K}"]
    settings += [f"step size {row.eta:.3g}"] if row.eta is not None else []
    settings += [f"server step {row.server_step:.3g}"] if row.server_step is not None else []
    settings += [f"momentum {row.momentum:g}"] if row.momentum is not None else []
    settings += [f"mu {row.mu:.3g}"] if row.mu is not None else []
    return f"{names[row.method]}{wire}" + (f" ({', '.join(settings)})" if settings else "")


def written(band: Band) -> str:
    """Write a band with three digits.

    Examples
    --------
    >>> written(Band(1234.5, 0.00123456, math.inf))
    '1234 (0.00123 to inf)'
    >>> written(Band(EXACT, EXACT, EXACT))
    'below 1e-15'
    """
    if band.high <= EXACT:
        return f"below {EXACT:g}"
    return band_text(band, lambda v: f"{v:.0f}" if 100 <= v < 1e6 else f"{v:.3g}")


def _cost(row: Row, axis: str) -> str:
    """Write what the target cost, the unit before the brackets."""
    middle, *brackets = written(getattr(row, axis)).partition(" (")
    unit = UNITS[axis].removesuffix("s") if middle == "1" else UNITS[axis]
    return middle + unit + "".join(brackets)


def _beside(row: Row, best: Row, names: Mapping[str, str], repeats: int) -> str:
    """Say what a row needed, and how many times as much that is as the best one."""
    name = named(row, names)
    times = f"{written(row.ratio)} times as"
    level = "; level" if row.level else ""
    if not best.reached:
        if not math.isfinite(row.suboptimality.middle):
            return f"{name}: diverged"
        reached = f"suboptimality {written(row.suboptimality)}{_some_seeds(row, repeats)}"
        if best.suboptimality.low <= EXACT:  # a ratio to rounding errors means nothing
            return f"{name}: {reached}{level}"
        return f"{name}: {reached}, {times} much{level}"
    if not row.reached:
        return f"{name}: not reached ({row.seeds_reached} of {repeats} seeds)"
    sent = f", {_cost(row, 'megabytes')}" if row.wire != best.wire else ""
    return f"{name}: {_cost(row, 'seconds')}, {times} long{sent}{level}"


def _some_seeds(row: Row, repeats: int) -> str:
    return f"; {row.seeds_reached} of {repeats} seeds reached the target" * bool(row.seeds_reached)


def _edge_of_local_steps(best: Row, tried: tuple[int, ...]) -> list[str]:
    """Say so if another K might be better."""
    edge = None if best.all_clients else edge_of(best.K, min(tried), max(tried))
    return [f"K = {best.K} is the {edge} tried: another may be better."] if edge else []


def _on_other_axes(rows: tuple[Row, ...], names: Mapping[str, str]) -> list[str]:
    """Say who wins on the axes that rows are not ranked by, where that is another row."""
    reached = [row for row in rows if row.reached]
    said = []
    for axis in AXES[:2]:
        best = min(reached, key=lambda row: getattr(row, axis).middle)
        if best is not rows[0]:
            said.append(f"Fewest {axis}: {named(best, names)}, {_cost(best, axis)}.")
    return said
