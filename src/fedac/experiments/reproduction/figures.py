# SPDX-License-Identifier: Apache-2.0
"""The paper's seven figures: suboptimality over M with a panel per K, or over K with one per M."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedac.algorithms import get
from fedac.experiments.reproduction import published as paper
from fedac.experiments.reproduction.published import FOUR, T
from fedac.experiments.summary import edge_note, seeds_note, summarize
from fedac.plotting import FONTS, GREY, GUIDE, WIDTH, style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from fedac.federation.spec import Spec

Axis = Literal["M", "K"]
# Panels for these values of the other axis: those in the paper's text, or spread over the grid.
PANELS: dict[Axis, tuple[int, ...]] = {"M": (1, 8, 64, 256), "K": (16, 128, 1024, 8192)}


@dataclass(frozen=True)
class Figure:
    """One of the paper's figures."""

    name: str
    sweep: str  # the shipped sweep with its runs
    dataset: str
    l2: float
    over: Axis  # horizontal
    algorithms: tuple[str, ...] = FOUR
    workers: tuple[int, ...] = tuple(2**i for i in range(2, 14))
    local_steps: tuple[int, ...] = tuple(2**i for i in range(9))
    T: int = T
    stands_in_for: str = ""  # the paper's data set, if `dataset` is a different one

    @property
    def across(self) -> Axis:
        """The axis that differs from panel to panel."""
        return "K" if self.over == "M" else "M"

    def values(self, axis: Axis) -> tuple[int, ...]:
        """Return all values of M or of K."""
        return self.workers if axis == "M" else self.local_steps

    @property
    def panels(self) -> tuple[int, ...]:
        """Up to four values of the other axis, one per panel."""
        values, usual = self.values(self.across), PANELS[self.over]
        return tuple(value for value in usual if value in values) or values[-len(usual) :]

    @property
    def title(self) -> str:
        """Number, data and horizontal axis in one line.

        >>> FIGURES["figure-2"].title
        'Figure 2: a9a, l2 = 0.0001, over the workers M'
        """
        data = self.dataset + (f" in place of {self.stands_in_for}" if self.stands_in_for else "")
        over = "the workers M" if self.over == "M" else "the local steps K"
        return f"{self.name.capitalize().replace('-', ' ')}: {data}, l2 = {self.l2:g}, over {over}"

    def drawn_from(self, grid: Spec, runs: pd.DataFrame) -> Figure:
        """Return the same figure for the runs of another grid, possibly on other data."""
        is_papers = paper.paper_datasets(runs).iloc[0] == self.dataset
        return replace(
            self, dataset=runs["dataset"].iloc[0], l2=grid.l2, workers=grid.several("workers"),
            local_steps=grid.several("local_steps"), T=grid.steps or self.T,
            stands_in_for="" if is_papers else self.dataset,
        )  # fmt: skip

    def select(self, tuned: pd.DataFrame) -> pd.DataFrame:
        """Return the tuned runs of the figure's problem, algorithms and grid."""
        return tuned[
            (tuned["dataset"] == self.dataset)
            & (tuned["l2"] == self.l2)
            & (tuned["T"] == self.T)
            & (tuned["federation"] == "")
            & tuned["algorithm"].isin(self.algorithms)
            & tuned["M"].isin(self.workers)
            & tuned["K"].isin(self.local_steps)
        ]


INSTABILITY = ("fedac-vanilla", "fedac-i", "mb-ac-sgd")
FIGURES = {
    figure.name: figure
    for figure in (
        Figure("figure-1", "a9a-l2-1e-3", "a9a", 1e-3, over="M"),
        Figure("figure-2", "a9a-l2-1e-4", "a9a", 1e-4, over="M", algorithms=INSTABILITY),
        Figure("figure-3", "a9a-l2-1e-3", "a9a", 1e-3, over="K"),
        Figure("figure-4", "a9a-l2-1e-2", "a9a", 1e-2, over="M"),
        Figure("figure-5", "a9a-l2-1e-2", "a9a", 1e-2, over="K"),
        Figure("figure-6", "epsilon-l2-1e-4", "epsilon", 1e-4, over="M"),
        Figure("figure-7", "epsilon-l2-1e-4", "epsilon", 1e-4, over="K"),
    )
}


def draw(tuned: pd.DataFrame, figure: Figure, band: str = "range") -> Drawing:
    """Draw a figure of the paper from `tuned` runs of any problems.

    Over M there is a panel per K with a guide for linear speedup, over K a panel per M. Several
    seeds become a line and a band, as in `over_seeds`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing
    from matplotlib.font_manager import FontProperties

    runs = figure.select(tuned)
    theirs = paper.published_cells(runs, paper.published_runs())
    cells = summarize(runs[runs[figure.across].isin(figure.panels)], band)
    with mpl.rc_context(FONTS):
        drawing = Drawing(figsize=(WIDTH, 2.8), layout="constrained")
        axes = drawing.subplots(1, len(figure.panels), sharex=True, sharey=True, squeeze=False)[0]
        for ax, value in zip(axes, figure.panels, strict=True):
            ax.set_title(f"{figure.across} = {value}")
            panel, published = (rows[rows[figure.across] == value] for rows in (cells, theirs))
            for name in figure.algorithms:
                plot_cells(ax, figure.over, panel[panel["algorithm"] == name], **_filled(name))
                hollow = published[published["algorithm"] == name]
                if not hollow.empty:
                    ax.plot(hollow[figure.over], hollow["published"], **_hollow(*style(name)[:2]))
            if figure.over == "M":
                _linear_speedup(ax, panel)
            _note_missing(ax, panel, figure)
            ax.set_xlabel("workers M" if figure.over == "M" else "local steps K")
            ax.grid(True, which="major", color="0.9", linewidth=0.6)
        _scales(axes[0], figure, [*runs["suboptimality"], *theirs["published"]])
        axes[0].set_ylabel("suboptimality")
        drawing.suptitle(figure.title)
        _legend(drawing, figure, published=not theirs.empty)
        notes = " ".join(filter(None, (seeds_note(cells, band), edge_note(cells))))
        drawing.legends[0].set_title(notes, FontProperties(size=7))
    return drawing


def plot_cells(ax: Axes, over: str, cells: pd.DataFrame, **look: Any) -> None:
    """Draw cells of `summarize` as a line, with a band if there are several seeds."""
    curve = cells[np.isfinite(cells["middle"])].sort_values(over)
    if curve.empty:
        return
    ax.plot(curve[over], curve["middle"], **look)
    if (curve["seeds"] > 1).any():
        band = {"color": look["color"], "alpha": 0.2, "lw": 0}
        ax.fill_between(curve[over], curve["low"], curve["high"], **band)


def _linear_speedup(ax: Axes, panel: pd.DataFrame) -> None:
    """Draw c/M through the best algorithm at the smallest M."""
    finite = panel[np.isfinite(panel["middle"])]
    if finite.empty:
        return
    first, last = finite["M"].min(), finite["M"].max()
    best = finite[finite["M"] == first]["middle"].min()
    ax.plot((first, last), (best, best * first / last), **GUIDE)


def _note_missing(ax: Axes, panel: pd.DataFrame, figure: Figure) -> None:
    """Write in the panel how many cells have no point, and why."""
    if panel.empty:
        ax.text(0.5, 0.5, "no runs", transform=ax.transAxes, color=GREY, ha="center")
        return
    expected = len(figure.algorithms) * len(figure.values(figure.over))
    counts = {"missing": expected - len(panel), "diverged": np.isinf(panel["middle"]).sum()}
    text = "\n".join(f"{n} of {expected} cells {why}" for why, n in counts.items() if n)
    if text:
        ax.text(0.04, 0.04, text, transform=ax.transAxes, color=GREY, fontsize=7)


def _scales(ax: Axes, figure: Figure, values: list[float]) -> None:
    """Fit the shared axes to the data; the guide may leave them."""
    ticks = figure.values(figure.over)
    ax.set_xscale("log", base=2)
    # More than five numbers would overlap in a panel.
    labelled = ticks[:: -(-len(ticks) // 5)]
    ax.set_xticks(labelled, [str(tick) for tick in labelled])
    ax.set_xticks(ticks, [""] * len(ticks), minor=True)
    ax.set_yscale("log")
    positive = [value for value in values if 0 < value < math.inf]
    if positive:
        ax.set_ylim(min(positive) / 1.5, max(positive) * 1.5)


def _legend(drawing: Drawing, figure: Figure, *, published: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=get(name).label, **_filled(name)) for name in figure.algorithms]
    if published:
        handles.append(Line2D([], [], label="published", **_hollow(GREY, "o")))
    if figure.over == "M":
        handles.append(Line2D([], [], label="linear speedup", **GUIDE))
    drawing.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _filled(algorithm: str) -> dict[str, Any]:
    colour, marker, *_ = style(algorithm)
    return {"color": colour, "marker": marker, "markersize": 2.6, "linewidth": 1.1}


def _hollow(colour: str, marker: str) -> dict[str, Any]:
    """Larger than filled markers and below them, so that a ring is visible where both agree."""
    ring = {"markersize": 5, "markerfacecolor": "none", "markeredgewidth": 0.7}
    return {"color": colour, "marker": marker, "linestyle": "none", "zorder": 1.5, **ring}
