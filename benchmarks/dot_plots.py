# SPDX-License-Identifier: Apache-2.0
"""Dot plots for the pages of the benchmarks: a line per method, a panel per case and cost."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from PIL import Image

from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.summary import label_of
from fedac.plotting import style

LOOK: dict[Any, Any] = {"font.size": 8, "axes.titlesize": 8, "axes.linewidth": 0.6}
WIDTH = 8.0  # inches, shown as 800 pixels or so: 8 points are then 11 pixels
GREY, BLACK = "0.68", "black"
# Coloured in every figure.
KNOWN = {name: style(name).colour for name in ("fedavg", "fedac-i")} | {"lbfgs": "#009E73"}
COLUMN = "column"


class Measure(NamedTuple):
    """A row of panels: a column of the file and what it is."""

    column: str
    label: str
    at_end: bool = False  # a quality at the end of the run, not the cost of the target
    largest_is_best: bool = False


COSTS = (
    Measure("rounds", "rounds to the target"),
    Measure("megabytes", "megabytes per client, up and down"),
    Measure("seconds", "seconds"),
)


def draw_dots(
    rows: pd.DataFrame, columns: Sequence[str], measures: Sequence[Measure], title: str
) -> Figure:
    """Draw the rows of one problem: a panel for each value of `column` and each measure.

    Known methods are coloured, the best three of every panel black, all others grey.
    """
    methods = list(rows["method"].unique())
    height = 0.155 * len(methods) + 0.55
    with rc_context(LOOK):
        drawing = Figure(figsize=(WIDTH, height * len(measures) + 0.5), layout="constrained")
        panels = drawing.subplots(
            len(measures), len(columns), squeeze=False, sharex="row", sharey="row"
        )
        for line, measure in zip(panels, measures, strict=True):
            found = [best_rows(rows[rows[COLUMN] == name], measure) for name in columns]
            order = rank(found, methods, measure)
            for ax, name, of_case in zip(line, columns, found, strict=True):
                compared = set(rows.loc[rows[COLUMN] == name, "method"])
                draw_panel(ax, of_case, order, compared, measure)
                if measure is measures[0]:
                    ax.set_title(fill(name, 80 // len(columns)))
            line[0].set_yticks(range(len(order)), [short_label(name) for name in order])
            line[0].set_ylim(len(order) - 0.4, -0.6)
            for text, name in zip(line[0].get_yticklabels(), order, strict=True):
                text.set_color(KNOWN.get(name, BLACK))
            middle = line[len(line) // 2]
            middle.set_xlabel(measure.label, x=len(line) % 2 / 2, ha="center")
            if not measure.at_end:
                set_scale(middle)
        drawing.suptitle(title, fontsize=9)
    return drawing


def best_rows(rows: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the best row of every method, the best first; of costs, those of the target."""
    rows = rows[rows["reached"].astype(bool) | measure.at_end]
    ascending = not measure.largest_is_best
    ordered = rows.sort_values(measure.column, ascending=ascending, kind="stable")
    return ordered.drop_duplicates("method").set_index("method")


def rank(found: Sequence[pd.DataFrame], methods: Sequence[str], measure: Measure) -> list[str]:
    """Sort methods: those that reach most targets first, then by their mean ratio to the best.

    Baselines are the last.
    """

    def key(method: str) -> tuple[bool, int, float]:
        ratios = [
            np.log(of_case.loc[method, measure.column] / of_case[measure.column].iloc[0])
            for of_case in found
            if method in of_case.index
        ]
        mean = float(np.mean(np.abs(ratios))) if ratios else 0.0
        return method in BASELINES, -len(ratios), mean

    return sorted(methods, key=key)


def draw_panel(
    ax: Axes, rows: pd.DataFrame, order: Sequence[str], compared: set[str], measure: Measure
) -> None:
    """Draw a dot with its interval for every method that has one, a dash for the others."""
    best = [name for name in rows.index if name not in BASELINES][:3]
    for place, name in enumerate(order):
        if name not in compared:
            continue
        if name not in rows.index:
            ax.annotate(
                "-", (0.97, place), xycoords=("axes fraction", "data"), color=GREY, ha="right",
                va="center",
            )  # fmt: skip
            continue
        row, column = rows.loc[name], measure.column
        colour = KNOWN.get(name, BLACK if name in best else GREY)
        if not measure.at_end:
            ax.plot([row[f"{column}_low"], row[f"{column}_high"]], [place] * 2, color=colour,
                    linewidth=1.2, solid_capstyle="butt")  # fmt: skip
        ax.plot(row[column], place, "o", color=colour, markersize=4 if name in best else 3)
    for place in range(0, len(order), 2):
        ax.axhspan(place - 0.5, place + 0.5, color="0.96", zorder=0, linewidth=0)
    if not measure.at_end:
        ax.set_xscale("log")
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", length=2, labelsize=7)
    ax.grid(visible=True, axis="x", color="0.88", linewidth=0.5)
    ax.spines[["top", "right", "left"]].set_visible(False)


def set_scale(ax: Axes) -> None:
    """Label a logarithmic axis with three to six plain numbers; panels of a row share them."""
    low, high = ax.get_xlim()
    subs = (1, 2, 5) if high < 12 * low else (1, 3) if high < 100 * low else (1,)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def short_label(method: str) -> str:
    """Return the label of a method without spaces around plus signs."""
    label = BASELINES.get(method) or label_of(method)
    return label.replace(" + ", "+").replace(", ", ",")


def save(drawing: Figure, path: Path) -> None:
    """Write a PNG with a palette, a third of the bytes."""
    written = BytesIO()
    drawing.savefig(written, dpi=140)
    with Image.open(written) as picture:
        picture.convert("RGB").quantize(256, kmeans=2).save(path, optimize=True)
