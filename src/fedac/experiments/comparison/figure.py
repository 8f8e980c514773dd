"""The figure of a comparison: suboptimality against rounds, megabytes and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.arrays import Array
from fedac.experiments.comparison.budget import AXES
from fedac.experiments.comparison.curves import Curve
from fedac.experiments.comparison.methods import label
from fedac.experiments.comparison.rows import Row
from fedac.experiments.comparison.study import Cell, Comparison
from fedac.experiments.figures import GREY, GUIDE, LOOK
from fedac.palette import styles

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
