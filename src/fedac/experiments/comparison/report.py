# SPDX-License-Identifier: Apache-2.0
"""The files of a comparison: HTML report, figure and tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.errors import InputError
from fedac.experiments.comparison import table
from fedac.experiments.comparison.question import AXES, SUBOPTIMALITY, Question
from fedac.experiments.comparison.table import LOSS, WELL_KNOWN, Comparison, Curve, Row, described
from fedac.experiments.page import assemble, columns, rounded, write_page
from fedac.experiments.summary import Band
from fedac.federation.federation import taking_part
from fedac.objectives.metrics import METRICS, TITLES
from fedac.paths import write_atomically
from fedac.plotting import FONTS, GREY, GUIDE, save_figure, styles
from fedac.simulation.result import metric_column
from fedac.validate import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NAME = "comparison"  # of all files
WIDTH, HEIGHT = 9.0, 3.9  # inches
# More coloured lines would be hard to distinguish.
COLOURED = 8
AXIS_LABELS = {
    "rounds": "communication rounds",
    "megabytes": "megabytes per client, up and down",
    "seconds": "seconds",
}
SCRIPTS = ("rows", "figure", "start")
# What the introduction says of the measure.
MEASURES = {
    SUBOPTIMALITY: "The suboptimality, F&nbsp;&minus;&nbsp;F*, is the distance of the loss from "
    "its optimum.",
    LOSS: "The training loss is compared as it is, because the optimum of a network is not known.",
}
# Lines shown when the page opens, in addition to the well-known methods.
TICKED = 6
# Lines of the same colour and marker differ by their dashes.
DASHES = ("solid", "dash", "dot", "dashdot")


def write_files(comparison: Comparison, folder: Path) -> None:
    """Write ``comparison`` as HTML, JSON, CSV, LaTeX and, unless all diverged, as a figure."""
    texts = {
        "json": json.dumps(table.to_json(comparison), allow_nan=False, indent=1) + "\n",
        "csv": comparison.frame.to_csv(index=False, lineterminator="\n"),
        "tex": to_latex(comparison),
    }
    for ending, text in texts.items():
        content = text.encode()
        write_atomically(folder / f"{NAME}.{ending}", lambda file: file.write(content))  # noqa: B023
    write_report(comparison, folder / f"{NAME}.html")
    if any(row.curves for row in comparison.rows):
        save_figure(draw(comparison), folder, NAME)


def with_earlier_methods(question: Question, folder: Path) -> tuple[Question, list[str]]:
    """Return a question with the methods that a folder already compares, and their names.

    A folder has one table, and its rows stay in it.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        return question, []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        methods = list(map(str, before["methods"]))
        subject = {name: before[name] for name in question.subject}
        subject |= {name: before.get(name) for name in question.held_out}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"'{path}' is not the table of a comparison; use another folder") from None
    for name, value in (question.subject | question.held_out).items():
        if subject[name] != value:
            raise InputError(
                f"'{folder}' has a comparison with {name} = {subject[name]}, but this one has "
                f"{value}; use another folder"
            )
    added = [name for name in methods if name not in question.methods]
    return question.with_methods(added), added


def to_latex(comparison: Comparison) -> str:
    """Return the best row of every method as a LaTeX table (package booktabs)."""
    axes = AXES if comparison.spec.target is not None else ()
    heads = ["method", "$K$", "$\\eta$", "server step, momentum", "$\\mu$"]
    heads += [{"megabytes": "MB"}.get(axis, axis) for axis in axes]
    what = "$F - F^*$" if comparison.measure == SUBOPTIMALITY else comparison.measure
    heads += [f"{what} within {comparison.budget}"]
    tested = [name for name in METRICS if any(name in row.metrics for row in comparison.rows)]
    heads += ["test " * (not name.startswith("client-")) + TITLES.get(name, name)
              for name in tested]  # fmt: skip
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        " & ".join(heads) + " \\\\",
        "\\midrule",
    ]
    for row in comparison.best_rows:
        method = row.method + (f", {row.wire}" if row.wire != "float32" else "")
        for character in "&%$#_{}":
            method = method.replace(character, f"\\{character}")
        server = [f"{value:.3g}" for value in (row.server_step, row.momentum) if value is not None]
        texts = [method, str(row.K), "--" if row.eta is None else f"{row.eta:.3g}"]
        texts += [", ".join(server), "" if row.mu is None else f"{row.mu:.3g}"]
        texts += [_latex_band(getattr(row, name)) for name in (*axes, "suboptimality")]
        texts += [f"{row.metrics[name]:.4g}" if row.metrics else "--" for name in tested]
        lines.append(" & ".join(texts) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _latex_band(band: Band) -> str:
    if not math.isfinite(band.middle):
        return "--"
    return f"{_latex(band.middle)} ({_latex(band.low)}--{_latex(band.high)})"


def _latex(value: float) -> str:
    if value != 0 and abs(value) < 0.01:
        digits, exponent = f"{value:.1e}".split("e")
        return f"${digits} \\cdot 10^{{{int(exponent)}}}$"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_report(comparison: Comparison, path: str | Path) -> Path:
    """Write the HTML report, one file that needs no network."""
    return write_page(render_report(comparison), path)


def render_report(comparison: Comparison) -> str:
    """Return the report as HTML; the same runs give the same text."""
    title = f"Which method? {comparison.spec.dataset}"
    measure = MEASURES[comparison.measure]
    return assemble(title, page_data(comparison), __package__, SCRIPTS, measure=measure)


def page_data(comparison: Comparison) -> dict[str, Any]:
    """Return the data of the page, ready for JSON.

    The figure has a line per method and wire; ``line`` of a row is its label. Rows have the points
    of their line after each of ``records`` rounds: geometric mean and range of the seeds.
    """
    # Baselines may have more records than methods with local steps, which come first here.
    rows = sorted(comparison.rows, key=lambda row: row.all_clients)
    records = next((row.curves[0].rounds for row in rows if not row.diverged), np.zeros(1))
    return {
        "sentences": table.sentences(comparison),
        "lines": columns(_lines(comparison)),
        "rows": columns([_row(row, comparison, records) for row in comparison.rows]),
        "records": [int(r) for r in records],
        "target": _target(comparison),
        "budget": str(comparison.budget),
        "measure": comparison.measure,
        "repeats": comparison.spec.repeats,
        "link": comparison.question.link.in_words(),
        "notes": notes_on(comparison),
    }


def _target(comparison: Comparison) -> float | str | None:
    """Return a target suboptimality as a number, and a target metric as text."""
    target = comparison.question.target
    if target is None:
        return None
    return target.value if target.metric == SUBOPTIMALITY else str(target)


def _lines(comparison: Comparison) -> list[dict[str, Any]]:
    """Return label and style of the figure's lines, the best first."""
    best, labels = comparison.best_rows, comparison.labels
    looks = dict(zip(labels, styles(list(labels)), strict=True))
    known = [next((row for row in best if row.method == name), None) for name in WELL_KNOWN]
    seen: Counter[str] = Counter()
    lines = []
    for place, row in enumerate(best):
        look = looks[row.method]
        lines.append({
            "label": _line(row, comparison), "colour": look.colour, "symbol": look.symbol,
            "glyph": look.glyph, "dash": DASHES[seen[look.colour] % len(DASHES)],
            "ticked": place < TICKED or row in known,
        })  # fmt: skip
        seen[look.colour] += 1
    return lines


def _line(row: Row, comparison: Comparison) -> str:
    several = len(comparison.spec.several("wire")) > 1
    return comparison.labels[row.method] + (f", {row.wire}" if several else "")


def _row(row: Row, comparison: Comparison, records: Array) -> dict[str, Any]:
    """Return a row of the page's table with the points of its line after these rounds."""
    several = len(comparison.spec.several("wire")) > 1
    names = ("all_clients", "K", "edge", "server_step", "server_edge", "momentum", "reached",
             "seeds_reached")  # fmt: skip
    flat: dict[str, Any] = {name: getattr(row, name) for name in names}
    flat["line"] = _line(row, comparison)
    flat["method"] = comparison.labels[row.method]
    # The page hides a column without values.
    flat["wire"] = row.wire if several or row.wire != "float32" else ""
    flat["eta"] = None if row.eta is None else rounded(row.eta)
    flat["mu"] = None if row.mu is None else rounded(row.mu)
    for name in (*AXES, "suboptimality", "smallest", "ratio"):
        flat[name] = [rounded(value) for value in getattr(row, name)]
    flat |= {metric_column(name): rounded(row.metrics.get(name, math.nan)) for name in METRICS}
    keys = ("megabytes_per_round", "elapsed", "middle", "low", "high")
    if row.diverged:
        return flat | dict.fromkeys(keys)
    first = row.curves[0]
    per_round, shown = first.megabytes[-1] / first.rounds[-1], np.isin(first.rounds, records)
    points = (each[shown] for each in geometric_mean(row.curves, "seconds"))
    series = ([rounded(float(value), 5) for value in each] for each in points)
    return flat | dict(zip(keys, (rounded(float(per_round)), *series), strict=True))


def geometric_mean(curves: Sequence[Curve], axis: str) -> tuple[Array, Array, Array, Array]:
    """Return the mean cost of every record on an axis, and its mean, minimum and maximum."""
    costs = np.mean([getattr(curve, axis) for curve in curves], axis=0)
    values = np.stack([curve.suboptimality for curve in curves])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Array = np.exp(np.log(values).mean(axis=0))
    return costs, mean, values.min(axis=0), values.max(axis=0)


def notes_on(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the problem, the federation, the link and the tuning as terms and descriptions."""
    question, spec = comparison.question, comparison.spec
    first, *further = question.tuning_seeds
    by_default = question.budget is None and math.isfinite(comparison.budget.amount)
    budget = f"{comparison.budget}{', the time of the shortest run' if by_default else ''}"
    criterion = f"smallest {comparison.measure} within the budget"
    minimum = f", F* = {comparison.f_star:.10g}" * (comparison.measure == SUBOPTIMALITY)
    if question.target is not None:
        criterion = "fewest rounds to the target"
    notes = [
        ("data", f"{spec.dataset}, {comparison.dim} parameters"),
        ("model", comparison.model),
        ("loss", f"{spec.loss}, l2 = {spec.l2:g}{minimum}"),
        *_federation(comparison),
        *([("test set", comparison.test)] if comparison.test else []),
        ("batch", str(spec.batch)),
        *([("epochs", f"{spec.epochs} in a round")] if spec.epochs else []),
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
        (comparison.measure, f"mean of the last {table.LAST:.0%} of the records within the budget"),
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


def draw(comparison: Comparison) -> Drawing:
    """Draw the best row of every method against rounds, megabytes and seconds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    with mpl.rc_context(FONTS):
        drawing = Drawing(figsize=(WIDTH, HEIGHT), layout="constrained")
        panels = drawing.subplots(1, len(AXES), sharey=True)
        for ax, axis in zip(panels, AXES, strict=True):
            grey = draw_lines(comparison, ax, axis)
        panels[0].set_ylabel(comparison.measure)
        handles, labels = panels[0].get_legend_handles_labels()
        note = f"Lines: geometric mean of {comparison.spec.repeats} fresh seeds. Bands: range."
        if grey:
            note += f" Grey: {grey} other methods."
        drawing.legend(
            handles[::-1], labels[::-1], loc="outside lower center", ncols=4, frameon=False,
            title=note, title_fontsize=7,
        )  # fmt: skip
        drawing.suptitle(comparison.title)
    return drawing


def draw_lines(comparison: Comparison, ax: Axes, axis: str) -> int:
    """Draw the best row of every method against one cost; return the number of grey lines.

    The best methods, FedAvg and FedAc-I are coloured, all others are grey.
    """
    rows = [row for row in comparison.best_rows if row.curves]
    if not rows:
        raise InputError("every method diverged: there is nothing to plot")
    known = [row for row in rows if row.method in WELL_KNOWN]
    best = rows[: COLOURED - len(known)]
    coloured = [row for row in rows if row in best or row in known]
    looks = dict(zip(coloured, styles([row.method for row in coloured]), strict=True))
    for row in rows:
        if row not in looks:
            costs, mean, _, _ = geometric_mean(row.curves, axis)
            ax.plot(costs, mean, color="0.8", linewidth=0.7)
    # The best one is drawn last, on top of all others.
    for row, look in reversed(looks.items()):
        costs, mean, low, high = geometric_mean(row.curves, axis)
        name = comparison.labels[row.method] + ("" if row.all_clients else f", K={row.K}")
        name += "" if row.wire == "float32" else f", {row.wire}"
        ax.plot(
            costs, mean, color=look.colour, marker=look.marker, markersize=2.8,
            markevery=0.17, linewidth=1.2, label=name,
        )  # fmt: skip
        ax.fill_between(costs, low, high, color=look.colour, alpha=0.15, lw=0)
    ends = [curve for row in coloured for curve in row.curves]
    ax.set_xlim(0, max(float(getattr(curve, axis)[-1]) for curve in ends))
    ax.set(yscale="log", xlabel=AXIS_LABELS[axis])
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    _limit_suboptimality(ax, comparison, coloured)
    return len(rows) - len(looks)


def _limit_suboptimality(ax: Axes, comparison: Comparison, rows: Sequence[Row]) -> None:
    """End the axis where methods with local steps do, and mark the target.

    L-BFGS continues down to rounding errors, where there is nothing else to see.
    """
    target = _target(comparison)
    local = [row for row in rows if not row.all_clients]
    lows = [c.suboptimality.min() for row in local for c in row.curves]
    if lows and len(local) < len(rows):
        ax.set_ylim(bottom=float(min(*lows, target if isinstance(target, float) else np.inf)) / 2)
    if isinstance(target, float):
        ax.axhline(target, **GUIDE)
        ax.annotate(
            "target", (1, target), xycoords=("axes fraction", "data"), xytext=(-2, 2),
            textcoords="offset points", ha="right", color=GREY, fontsize=7,
        )  # fmt: skip
