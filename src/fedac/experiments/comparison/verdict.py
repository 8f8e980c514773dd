"""The verdict of a comparison in sentences, and notes on how it was made."""

from __future__ import annotations

import math

from fedac.experiments.comparison.question import AXES
from fedac.experiments.comparison.table import EXACT, LAST, Comparison, Row
from fedac.experiments.summary import Band, band_text
from fedac.federation.federation import taking_part
from fedac.simulation.result import edge_of

# A verdict always mentions these, even if they do not win.
WELL_KNOWN = ("fedavg", "fedac-i")
# A longer list of methods would not be read.
MOST_NAMED = 5
UNITS = {"rounds": " rounds", "megabytes": " MB", "seconds": " seconds"}


def sentences(comparison: Comparison) -> list[str]:
    """Name the winner or the tied methods, the runner-up and the well-known methods."""
    spec, rows = comparison.spec, comparison.rows
    if not rows or math.isinf(rows[0].rank[1]):
        return ["Every method diverged."]
    best = rows[0]
    said = []
    if spec.target is not None and not best.reached:
        rounds = f"{spec.rounds} round{'s' * (spec.rounds != 1)}"
        said.append(
            f"No method reached a suboptimality of {spec.target:g} on all seeds in {rounds}."
        )
    said += _winner(comparison)
    other_wires = [r for r in comparison.best_rows if r.method == best.method and r is not best]
    said += [f"{_compared(row, comparison)}." for row in other_wires]
    runner_up = next((row for row in rows if row.method != best.method), None)
    if runner_up is not None and best.reached and not runner_up.reached:
        said.append("No other method reached it on all seeds.")
        runner_up = None
    if runner_up is not None:
        said.append(f"Runner-up: {_compared(runner_up, comparison)}.")
    local = next((row for row in rows if not row.all_clients), None)
    if best.all_clients and local is not None and local is not runner_up:
        said.append(f"Best with local steps: {_compared(local, comparison)}.")
    for name in WELL_KNOWN:
        known = next((row for row in rows if row.method == name != best.method), None)
        if known is not None and known not in (runner_up, local):
            said.append(f"{_compared(known, comparison)}.")
    if best.reached:  # who wins on the axes that do not rank
        for axis in AXES[:2]:
            reached = (row for row in rows if row.reached)
            first = min(reached, key=lambda row: getattr(row, axis).middle)
            if first is not best:
                said.append(f"Fewest {axis}: {described(first, comparison)}, {_cost(first, axis)}.")
    Ks = spec.several("local_steps")
    edge = None if best.all_clients else edge_of(best.K, min(Ks), max(Ks))
    if edge:
        said.append(f"K = {best.K} is the {edge} tried: another may be better.")
    return said


def _winner(comparison: Comparison) -> list[str]:
    """Name the best method, and the methods that the seeds cannot separate from it."""
    best, repeats = comparison.rows[0], comparison.spec.repeats
    if best.reached:
        won = "is the fastest on this link"
        result = (
            f"it reached a suboptimality of {comparison.spec.target:g} in "
            f"{', '.join(_cost(best, axis) for axis in ('seconds', 'rounds', 'megabytes'))}"
        )
    else:
        won = f"came closest to the optimum within {comparison.budget}"
        result = _suboptimality(best, comparison)
    name = described(best, comparison)
    level = [row for row in comparison.best_rows if row.method != best.method and row.level]
    if not level:
        return [f"{name} {won}: {result}."]
    tied = list(dict.fromkeys(comparison.labels[row.method] for row in (best, *level)))
    if len(tied) > MOST_NAMED:
        tied[MOST_NAMED - 1 :] = [f"{len(tied) - MOST_NAMED + 1} others"]
    listed = f"{', '.join(tied[:-1])} and {tied[-1]}"
    return [f"{listed} are level: {repeats} seeds cannot separate them.", f"{name}: {result}."]


def described(row: Row, comparison: Comparison) -> str:
    """Return a row's method and setting."""
    settings = [] if row.all_clients else [f"K = {row.K}"]
    settings += [f"step size {row.eta:.3g}"] if row.eta is not None else []
    settings += [f"server step {row.server_step:.3g}"] if row.server_step is not None else []
    settings += [f"momentum {row.momentum:g}"] if row.momentum is not None else []
    settings += [f"mu {row.mu:.3g}"] if row.mu is not None else []
    wire = "" if row.wire == "float32" else f" with {row.wire} messages"
    return comparison.labels[row.method] + wire + (f" ({', '.join(settings)})" if settings else "")


def _compared(row: Row, comparison: Comparison) -> str:
    """Describe a row's cost, and how it compares with the best row."""
    name, best = described(row, comparison), comparison.rows[0]
    times = f"{written(row.ratio)} times as"
    level = "; level" if row.level else ""
    if not best.reached:
        if row.diverged:
            return f"{name}: diverged"
        result = _suboptimality(row, comparison)
        if best.suboptimality.low <= EXACT:  # a ratio to rounding errors means nothing
            return f"{name}: {result}{level}"
        return f"{name}: {result}, {times} much{level}"
    if not row.reached:
        return f"{name}: not reached ({row.seeds_reached} of {comparison.spec.repeats} seeds)"
    sent = f", {_cost(row, 'megabytes')}" if row.wire != best.wire else ""
    return f"{name}: {_cost(row, 'seconds')}, {times} long{sent}{level}"


def _suboptimality(row: Row, comparison: Comparison) -> str:
    some = f"; {row.seeds_reached} of {comparison.spec.repeats} seeds reached the target"
    return f"suboptimality {written(row.suboptimality)}{some if row.seeds_reached else ''}"


def _cost(row: Row, axis: str) -> str:
    """Write the cost of the target, with the unit before the interval."""
    middle, *interval = written(getattr(row, axis)).partition(" (")
    unit = UNITS[axis].removesuffix("s") if middle == "1" else UNITS[axis]
    return middle + unit + "".join(interval)


def written(band: Band) -> str:
    """Write a band with three digits.

    >>> written(Band(1234.5, 0.00123456, math.inf)), written(Band(EXACT, EXACT, EXACT))
    ('1234 (0.00123 to inf)', 'below 1e-15')
    """
    if band.high <= EXACT:
        return f"below {EXACT:g}"
    return band_text(band, lambda v: f"{v:.0f}" if 100 <= v < 1e6 else f"{v:.3g}")


def proposed_target(comparison: Comparison) -> float | None:
    """Return a reachable target: twice the best suboptimality with local steps, to one digit.

    None if the comparison has a target, or nothing converged.
    """
    rows = comparison.rows
    best = next((row for row in rows if not row.all_clients), None)
    if comparison.spec.target is not None or best is None or best.diverged:
        return None
    twice = 2 * best.suboptimality.middle
    digit = 10.0 ** math.floor(math.log10(twice))
    return float(f"{math.ceil(twice / digit) * digit:.1g}")


def notes_on(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the problem, the federation, the link and the tuning as terms and descriptions."""
    question, spec = comparison.question, comparison.spec
    first, *further = question.tuning_seeds
    budget = str(comparison.budget)
    if question.budget is None and math.isfinite(comparison.budget.amount):
        budget += ", in which every run ends"
    criterion = "smallest suboptimality within the budget"
    if spec.target is not None:
        criterion = "fewest rounds to the target"
    notes = [
        ("data", f"{spec.dataset}, {comparison.dim} parameters"),
        ("loss", f"{spec.loss}, l2 = {spec.l2:g}, F* = {comparison.f_star:.10g}"),
        *_federation(comparison),
        ("batch", str(spec.batch)),
        ("wire", ", ".join(spec.several("wire"))),
        ("link", question.link.in_words()),
        ("budget", budget),
        ("rounds", f"{spec.rounds} in every run"),
        (
            "tuning",
            f"{spec.tries} settings for each method, K and wire on seed {first}: a coarse grid "
            "of step sizes, then the neighbours of the best, also in server step, momentum and mu. "
            f"The best ones run again on seeds {' and '.join(map(str, further))}. "
            f"Criterion: {criterion}",
        ),
        (
            "fresh seeds",
            f"{', '.join(map(str, question.fresh_seeds))}: the winners run again on these, and all "
            "results are theirs",
        ),
        ("suboptimality", f"mean of the last {LAST:.0%} of the records within the budget"),
        ("level", "the interval of the ratio to the best row, seed by seed, contains 1"),
        ("runs", f"{comparison.runs:,}"),
    ]
    edges = [
        f"{described(row, comparison)}: {edge} {what}"
        for row in comparison.rows
        for edge, what in ((row.edge, "step size"), (row.server_edge, "server step"))
        if edge
    ]
    if edges:
        why = "a smaller or larger one might do better"
        notes.append(("at an edge of the settings tried", f"{'; '.join(edges)} ({why})"))
    diverged = [described(row, comparison) for row in comparison.rows if row.diverged]
    return [*notes, ("every try diverged", "; ".join(diverged))] if diverged else notes


def _federation(comparison: Comparison) -> list[tuple[str, str]]:
    spec = comparison.spec
    share, M = spec.participation, spec.workers or spec.clients
    if spec.workers:
        notes = [("workers", f"{M}, each drawing from all rows")]
    else:
        notes = [("clients", str(M))] if M else []  # a file of client names has the number
        notes += [("split", spec.split or "iid"), ("weighting", spec.weighting)]
    if share == 1:
        return [*notes, ("participation", "all in every round")]
    some = f"{taking_part(share, M) or M} in every round" if M else f"{share:g}"
    return [*notes, ("participation", some)]
