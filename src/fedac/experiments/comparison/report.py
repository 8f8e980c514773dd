"""The report of a comparison: one HTML file that needs no network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedac.experiments.comparison.budget import AXES
from fedac.experiments.comparison.curves import Curve
from fedac.experiments.comparison.notes import notes_on
from fedac.experiments.comparison.rows import Row
from fedac.experiments.comparison.study import Cell, Comparison
from fedac.experiments.comparison.verdict import WELL_KNOWN, method_labels, sentences
from fedac.experiments.page import assemble, write_page
from fedac.experiments.page.data import columns, rounded
from fedac.palette import styles

SCRIPTS = ("rows", "figure", "start")
# How many lines the figure starts with, besides those of the baselines.
TICKED = 6
# Lines of one colour and marker differ by this.
DASHES = ("solid", "dash", "dot", "dashdot")


def write_report(comparison: Comparison, path: str | Path) -> Path:
    """Write the report of a comparison to a file."""
    return write_page(render_report(comparison), path)


def render_report(comparison: Comparison) -> str:
    """Return the report of a comparison as HTML; the same runs give the same text."""
    title = f"Which method? {comparison.question.grid.dataset}"
    return assemble(title, page_data(comparison), __package__, SCRIPTS)


def page_data(comparison: Comparison) -> dict[str, Any]:
    """Return what the page draws, ready for JSON.

    A line is what one method reached on one wire; ``line`` of a row is its label. Rows have what
    their line goes through, after each of ``records`` rounds: the geometric mean of the seeds and
    their range.
    """
    question, names = comparison.question, method_labels(comparison)
    found = comparison.curves.values()
    records = next((curves[0].rounds for curves in found if _finite(curves)), np.zeros(1))
    return {
        "sentences": sentences(comparison),
        "lines": columns(_lines(comparison, names)),
        "rows": columns([_row(row, comparison, names) for row in comparison.rows]),
        "records": [int(r) for r in records],
        "target": question.target,
        "budget": str(comparison.budget),
        "repeats": question.repeats,
        "link": question.link.in_words(),
        "notes": notes_on(comparison, names),
    }


def _lines(comparison: Comparison, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the lines of the figure, the best first, with their looks."""
    best = comparison.best_rows
    looks = dict(zip(names, styles(list(names)), strict=True))
    baselines = [next((row for row in best if row.method == name), None) for name in WELL_KNOWN]
    seen: Counter[str] = Counter()
    lines = []
    for place, row in enumerate(best):
        look = looks[row.method]
        lines.append(
            {
                "label": _line(row, comparison, names),
                "colour": look.colour,
                "symbol": look.symbol,
                "glyph": look.glyph,
                "dash": DASHES[seen[look.colour] % len(DASHES)],
                "ticked": place < TICKED or row in baselines,
            }
        )
        seen[look.colour] += 1
    return lines


def _row(row: Row, comparison: Comparison, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a row of the table, and the line through its curves."""
    several = len(comparison.question.grid.wire) > 1
    flat: dict[str, Any] = {
        "line": _line(row, comparison, names),
        "method": names[row.method],
        "all_clients": row.all_clients,
        # A column without values is not shown.
        "wire": row.wire if several or row.wire != "float32" else "",
        "K": row.K,
        "eta": rounded(row.eta) if row.eta is not None else None,
        "edge": row.edge,
        "server_step": row.server_step,
        "server_edge": row.server_edge,
        "momentum": row.momentum,
        "mu": None if row.mu is None else rounded(row.mu),
        "reached": row.reached,
        "seeds_reached": row.seeds_reached,
    }
    for name in (*AXES, "suboptimality", "smallest", "ratio"):
        flat[name] = [rounded(value) for value in getattr(row, name)]
    curves = comparison.curves.get(Cell(row.method, row.K, row.wire), ())
    return flat | _through(curves)


def _line(row: Row, comparison: Comparison, names: Mapping[str, str]) -> str:
    several = len(comparison.question.grid.wire) > 1
    return names[row.method] + (f", {row.wire}" if several else "")


def _through(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the line through the curves of the seeds; none if one diverged."""
    keys = ("megabytes_per_round", "elapsed", "middle", "low", "high")
    if not _finite(curves):
        return dict.fromkeys(keys)
    values = np.array([curve.suboptimality for curve in curves])
    elapsed = np.mean([curve.seconds for curve in curves], axis=0)
    rates = curves[0].megabytes[-1] / curves[0].rounds[-1]
    middle = np.exp(np.log(values).mean(axis=0))
    series = (elapsed, middle, values.min(axis=0), values.max(axis=0))
    several = ([rounded(float(value), 5) for value in each] for each in series)
    return dict(zip(keys, (rounded(float(rates)), *several), strict=True))


def _finite(curves: Sequence[Curve]) -> bool:
    return bool(curves) and all(math.isfinite(curve.suboptimality[-1]) for curve in curves)
