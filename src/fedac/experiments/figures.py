"""The paper's two layouts: suboptimality over M with a panel per K, and over K, a panel per M."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.algorithms import get
from fedac.experiments.reproduction.paper import published_cells
from fedac.experiments.reproduction.published import published_runs
from fedac.experiments.summary import edge_note, seeds_note, summarize
from fedac.plotting import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from fedac.experiments.reproduction.paper import Figure

WIDTH, HEIGHT = 7.0, 2.8  # inches: the text width of a paper
GREY = "0.35"
GUIDE: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 0.9, "zorder": 1}
LOOK: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "figure.titlesize": 9,
    "axes.axisbelow": True,
}


def draw(tuned: pd.DataFrame, figure: Figure, band: str = "range") -> Drawing:
    """Draw a figure of the paper from `cells.tuned` runs; other problems in them are left out.

    Against M it has a panel per K and a guide for linear speedup, against K a panel per M. Several
    seeds are a line and a band, as `over_seeds` summarizes them.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing
    from matplotlib.font_manager import FontProperties

    runs = figure.select(tuned)
    theirs = published_cells(runs, published_runs())
    cells = summarize(runs[runs[figure.across].isin(figure.panels)], band)
    with mpl.rc_context(LOOK):
        drawing = Drawing(figsize=(WIDTH, HEIGHT), layout="constrained")
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


def save(drawing: Drawing, folder: Path, name: str) -> list[Path]:
    """Write PNG and PDF; the same drawing always gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    drawing.savefig(paths[0], dpi=200)
    drawing.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def plot_cells(ax: Axes, over: str, cells: pd.DataFrame, **look: Any) -> None:
    """Draw cells of `summarize`: the middle as a line, and a band if there are several seeds."""
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
    """Say in the panel how many cells have no point, and why."""
    if panel.empty:
        ax.text(0.5, 0.5, "no runs", transform=ax.transAxes, color=GREY, ha="center")
        return
    expected = len(figure.algorithms) * len(figure.values(figure.over))
    counts = {"missing": expected - len(panel), "diverged": np.isinf(panel["middle"]).sum()}
    text = "\n".join(f"{n} of {expected} cells {why}" for why, n in counts.items() if n)
    if text:
        ax.text(0.04, 0.04, text, transform=ax.transAxes, color=GREY, fontsize=7)


def _scales(ax: Axes, figure: Figure, values: list[float]) -> None:
    """Set the axes that all panels share to fit the data; the guide may leave them."""
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
    """Larger than the filled ones and below them: where both agree, a ring is visible."""
    return {
        "color": colour,
        "marker": marker,
        "linestyle": "none",
        "markersize": 5,
        "markerfacecolor": "none",
        "markeredgewidth": 0.7,
        "zorder": 1.5,
    }
