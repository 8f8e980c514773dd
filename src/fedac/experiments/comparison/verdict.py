"""The answer to a comparison's question in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedac.experiments.comparison.budget import AXES
from fedac.experiments.comparison.rows import Row
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.labels import labels_of
from fedac.experiments.seeds import Band, band_text
from fedac.simulation.result import edge_of

# What everybody knows: a verdict says what they need, whoever wins.
BASELINES = ("fedavg", "fedac-i")
UNITS = {"rounds": " rounds", "megabytes": " MB", "seconds": " seconds"}


def sentences(comparison: Comparison) -> list[str]:
    """Say which method wins, and what the runner-up and the baselines need."""
    names = method_labels(comparison)
    question, rows = comparison.question, comparison.rows
    if not rows or math.isinf(rows[0].rank[1]):
        return ["Every method diverged."]
    best = rows[0]
    if best.reached:
        said = [
            f"{named(best, names)} is the fastest on this link: it reached a suboptimality of "
            f"{question.target:g} in {_cost(best, 'seconds')}, {_cost(best, 'rounds')}, "
            f"{_cost(best, 'megabytes')}."
        ]
    else:
        said = []
        if question.target is not None:
            said += [
                f"Nothing reached a suboptimality of {question.target:g} with all seeds in "
                f"{question.rounds} rounds."
            ]
        said += [
            f"{named(best, names)} came closest to the optimum within {comparison.budget}: "
            f"suboptimality {written(best.suboptimality)}{_some_seeds(best, question.repeats)}."
        ]
    others = {row.method: row for row in reversed(rows) if row.method != best.method}
    runner_up = next((row for row in rows if row.method != best.method), None)
    twins = [row for row in comparison.best_rows if row.method == best.method and row is not best]
    said += [f"{_beside(row, best, names, question.repeats)}." for row in twins]
    if runner_up is not None:
        said.append(f"Runner-up: {_beside(runner_up, best, names, question.repeats)}.")
    said += [
        f"{_beside(others[name], best, names, question.repeats)}."
        for name in BASELINES
        if name in others and others[name] is not runner_up
    ]
    said += _on_other_axes(rows, names) if best.reached else []
    return said + _edge_of_local_steps(best, question.grid.local_steps)


def method_labels(comparison: Comparison) -> dict[str, str]:
    """Return the labels of the methods."""
    methods = list(dict.fromkeys(row.method for row in comparison.rows))
    return dict(zip(methods, labels_of(methods), strict=True))


def named(row: Row, names: Mapping[str, str]) -> str:
    """Name a row: its method and how it is set."""
    wire = "" if row.wire == "float32" else f" with messages in {row.wire}"
    settings = [f"K = {row.K}"]
    settings += [f"step size {row.eta:.3g}"] if row.eta is not None else []
    settings += [f"server step {row.server_step:.3g}"] if row.server_step is not None else []
    return f"{names[row.method]}{wire} ({', '.join(settings)})"


def written(band: Band) -> str:
    """Write a band with three digits.

    Examples
    --------
    >>> written(Band(1234.5, 0.00123456, math.inf))
    '1234 (0.00123 to inf)'
    """
    return band_text(band, lambda v: f"{v:.0f}" if 100 <= v < 1e6 else f"{v:.3g}")


def _cost(row: Row, axis: str) -> str:
    """Write what the target cost, the unit before the brackets."""
    middle, *brackets = written(getattr(row, axis)).partition(" (")
    return middle + UNITS[axis] + "".join(brackets)


def _beside(row: Row, best: Row, names: Mapping[str, str], repeats: int) -> str:
    """Say what a row needed, and how many times as much that is as the best one."""
    name = named(row, names)
    if not best.reached:
        if not math.isfinite(row.suboptimality.middle):
            return f"{name}: diverged"
        times = row.suboptimality.middle / best.suboptimality.middle
        reached = f"suboptimality {written(row.suboptimality)}{_some_seeds(row, repeats)}"
        overlap = _overlap(row.suboptimality, best.suboptimality)
        return f"{name}: {reached}, {times:.3g} times as much{overlap}"
    if not row.reached:
        return f"{name}: not reached ({row.seeds_reached} of {repeats} seeds)"
    times = row.seconds.middle / best.seconds.middle if best.seconds.middle else math.inf
    overlap = _overlap(row.seconds, best.seconds)
    sent = f", {_cost(row, 'megabytes')}" if row.wire != best.wire else ""
    return f"{name}: {_cost(row, 'seconds')}, {times:.3g} times as long{overlap}{sent}"


def _overlap(band: Band, best: Band) -> str:
    return "; the intervals overlap" if band.low <= best.high else ""


def _some_seeds(row: Row, repeats: int) -> str:
    return f"; {row.seeds_reached} of {repeats} seeds reached the target" * bool(row.seeds_reached)


def _edge_of_local_steps(best: Row, tried: tuple[int, ...]) -> list[str]:
    """Say so if another K might be better."""
    edge = edge_of(best.K, min(tried), max(tried))
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
