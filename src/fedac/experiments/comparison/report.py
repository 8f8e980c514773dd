"""The figure of a comparison: suboptimality against rounds, megabytes and seconds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.errors import InputError
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.question import AXES, Question, label
from fedac.experiments.comparison.rows import Curve, Row
from fedac.experiments.comparison.study import Cell, Comparison
from fedac.experiments.comparison.table import subject_of, to_frame, to_json, to_latex
from fedac.experiments.comparison.verdict import WELL_KNOWN, method_labels, notes_on, sentences
from fedac.experiments.figures import GREY, GUIDE, LOOK, save
from fedac.experiments.page import assemble, columns, rounded, write_page
from fedac.paths import write_atomically
from fedac.plotting import styles
from fedac.validate import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

WIDTH, HEIGHT = 9.0, 3.9  # inches
# So many methods get a colour; more lines could not be told apart.
COLOURED = 8
ALWAYS = ("fedavg", "fedac-i")
LABELS = {
    "rounds": "communication rounds",
    "megabytes": "megabytes up and down, a client",
    "seconds": "seconds",
}


def draw(comparison: Comparison) -> Drawing:
    """Draw the best row of every method, over the fresh seeds, against each of the three axes.

    The best methods, FedAvg and FedAc-I have a colour, all others are grey.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    rows = [row for row in comparison.best_rows if comparison.curves.get(_cell(row))]
    always = [row for row in rows if row.method in ALWAYS]
    coloured = sorted(
        {*rows[: COLOURED - len(always)], *always}, key=lambda row: comparison.rows.index(row)
    )
    looks = dict(zip(coloured, styles([row.method for row in coloured]), strict=True))
    with mpl.rc_context(LOOK):
        drawing = Drawing(figsize=(WIDTH, HEIGHT), layout="constrained")
        panels = drawing.subplots(1, len(AXES), sharey=True)
        for ax, axis in zip(panels, AXES, strict=True):
            for row in rows:
                if row not in looks:
                    _plot(ax, axis, comparison.curves[_cell(row)], color="0.8", linewidth=0.7)
            # The best one is drawn last, on top of all others.
            for row, look in reversed(looks.items()):
                _plot(
                    ax, axis, comparison.curves[_cell(row)], band=True, color=look.colour,
                    marker=look.marker, markersize=2.8, markevery=0.17, linewidth=1.2,
                    label=_label(row),
                )  # fmt: skip
            ends = [c for row in coloured for c in comparison.curves[_cell(row)]]
            ax.set_xlim(0, max(float(getattr(curve, axis)[-1]) for curve in ends))
            _set_floor(ax, comparison, coloured)
            _finish(ax, axis, comparison)
        panels[0].set_ylabel("suboptimality")
        handles, labels = panels[0].get_legend_handles_labels()
        drawing.legend(
            handles[::-1], labels[::-1], loc="outside lower center", ncols=4, frameon=False,
            title=_note(comparison, len(rows) - len(looks)), title_fontsize=7,
        )  # fmt: skip
        drawing.suptitle(title(comparison))
    return drawing


def title(comparison: Comparison) -> str:
    """Say what was compared on what."""
    grid = comparison.question.grid
    who = f"{grid.workers[0]} workers" if grid.workers else ""
    if not who:
        count = f"{grid.clients[0]} clients" if grid.clients else "clients"
        who = f"{count}, split {grid.split[0] if grid.split else 'iid'}"
    share = grid.participation[0]
    part = "" if share == 1 else f", participation {share:g}"
    return f"{grid.dataset}, l2 = {grid.l2:g}: {who}{part}"


def geometric_mean(curves: tuple[Curve, ...], axis: str) -> tuple[Array, Array, Array, Array]:
    """Return the cost of every record on an axis, and the mean, least and most of all seeds.

    Where seconds differ from seed to seed, the cost is their mean.
    """
    costs = np.mean([getattr(curve, axis) for curve in curves], axis=0)
    values = np.stack([curve.suboptimality for curve in curves])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Array = np.exp(np.log(values).mean(axis=0))
    return costs, mean, values.min(axis=0), values.max(axis=0)


def _plot(
    ax: Axes, axis: str, curves: tuple[Curve, ...], *, band: bool = False, **look: Any
) -> None:
    costs, mean, least, most = geometric_mean(curves, axis)
    ax.plot(costs, mean, **look)
    if band:
        ax.fill_between(costs, least, most, color=look["color"], alpha=0.15, lw=0)


def _set_floor(ax: Axes, comparison: Comparison, rows: list[Row]) -> None:
    """End where the methods do: L-BFGS goes on to rounding errors, where nothing else is."""
    measured = [row for row in rows if not row.all_clients]
    lows = [c.suboptimality.min() for row in measured for c in comparison.curves[_cell(row)]]
    if lows and len(measured) < len(rows):
        ax.set_ylim(bottom=float(min(*lows, comparison.question.target or np.inf)) / 2)


def _finish(ax: Axes, axis: str, comparison: Comparison) -> None:
    ax.set(yscale="log", xlabel=LABELS[axis])
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    if comparison.question.target is not None:
        ax.axhline(comparison.question.target, **GUIDE)
        ax.annotate(
            "target", (1, comparison.question.target), xycoords=("axes fraction", "data"),
            xytext=(-2, 2), textcoords="offset points", ha="right", color=GREY, fontsize=7,
        )  # fmt: skip


def _note(comparison: Comparison, grey: int) -> str:
    seeds = len(comparison.question.fresh_seeds)
    lines = f"Lines: geometric mean of {seeds} fresh seeds; bands: their range."
    return lines + (f" Grey: {grey} further methods." if grey else "")


def _label(row: Row) -> str:
    wire = "" if row.wire == "float32" else f", {row.wire}"
    K = "" if row.all_clients else f", K={row.K}"
    return f"{label(row.method)}{K}{wire}"


def _cell(row: Row) -> Cell:
    return Cell(row.method, row.K, row.wire)


# --- The report of a comparison: one HTML file that needs no network.

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


# --- The files of a comparison: figure, tables and report.

NAME = "comparison"


def with_earlier_methods(question: Question, folder: Path) -> tuple[Question, list[str]]:
    """Return a question with the methods that a folder already compares, and these.

    A folder has one table: what was in it stays in it.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        return question, []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        methods = list(map(str, before["methods"]))
        now = subject_of(question)
        subject = {name: before[name] for name in now}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"'{path}' is not the table of a comparison; use another folder") from None
    for name in now:
        if subject[name] != now[name]:
            raise InputError(
                f"'{folder}' has a comparison with {name} = {subject[name]}, this one has "
                f"{now[name]}; use another folder"
            )
    grid, baselines = question.grid, question.baselines
    added = [name for name in methods if name not in (*grid.algorithms, *baselines)]
    of_grid = (name for name in added if name not in BASELINES)
    grid = grid.model_copy(update={"algorithms": (*grid.algorithms, *of_grid)})
    baselines = (*baselines, *(name for name in added if name in BASELINES))
    return replace(question, grid=grid, baselines=baselines), added


def write_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``comparison`` as HTML, JSON, CSV, LaTeX and, unless all diverged, as a figure."""
    texts = {
        "json": json.dumps(to_json(comparison), allow_nan=False, indent=1) + "\n",
        "csv": to_frame(comparison).to_csv(index=False, lineterminator="\n"),
        "tex": to_latex(comparison),
    }
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{NAME}.{ending}")
        content = text.encode()
        write_atomically(paths[-1], lambda file, content=content: file.write(content))  # type: ignore[misc]
    paths.append(write_report(comparison, folder / f"{NAME}.html"))
    return paths + (save(draw(comparison), folder, NAME) if comparison.curves else [])
