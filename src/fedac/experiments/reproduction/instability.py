# SPDX-License-Identifier: Apache-2.0
"""The figure of the instability theorem: two runs separate, and the curvature that does it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedac.plotting import FONTS, GREY, GUIDE, WIDTH, style
from fedac.theory.instability import Separation, predicted_separation, proven_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from fedac.theory.instability import Instance

# Smaller distances are not shown, to leave space for the growing ones.
FLOOR = 1e-3
# More blocks of the trajectory would overlap in the panel.
BLOCKS_SHOWN = 4
# More markers on a line would overlap.
MARKERS = 25
DASHES = ("-", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
TITLES = {"w": r"$|w - u|$", "w_ag": r"$|w^{\mathrm{ag}} - u^{\mathrm{ag}}|$"}


def draw(
    instance: Instance, measured: Sequence[Separation], fedac_i: Mapping[int, Sequence[Separation]]
) -> Drawing:
    """Draw the distance between two runs by block, and below it the curvature that separates them.

    `measured` is `instance.separation()`, `fedac_i` has the `fedac_separation` of each K.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    with mpl.rc_context(FONTS):
        drawing = Drawing(figsize=(WIDTH, 4.2), layout="constrained")
        panels = drawing.subplot_mosaic(
            [["w", "w_ag"], ["curvature", "curvature"]], height_ratios=[3, 1]
        )
        panels["w_ag"].sharey(panels["w"])
        panels["w_ag"].tick_params(labelleft=False)
        for sequence, title in TITLES.items():
            _separation(panels[sequence], sequence, instance.kappa, measured, fedac_i)
            panels[sequence].set_title(title)
        largest = max(abs(distance) for apart in measured for distance in apart)
        panels["w"].set_ylim(FLOOR, 3 * max(largest, 10) ** 1.05)
        panels["w"].set_ylabel("distance / distance at the start")
        _curvature(panels["curvature"], instance)
        drawing.suptitle(rf"Two runs that start close together, $\kappa$ = {instance.kappa:g}")
        handles, labels = panels["w"].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return drawing


def _separation(
    ax: Axes,
    sequence: str,
    kappa: float,
    measured: Sequence[Separation],
    fedac_i: Mapping[int, Sequence[Separation]],
) -> None:
    blocks = range(len(measured))

    def sizes(separations: Sequence[Separation]) -> list[float]:
        return [abs(getattr(apart, sequence)) for apart in separations]

    colour, marker, *_ = style("fedac-vanilla")
    points: dict[str, Any] = {"marker": marker, "markersize": 4, "linestyle": "none"}
    points["markevery"] = -(-len(blocks) // MARKERS)
    ax.plot(blocks, sizes(measured), color=colour, label="AGD, measured", **points)
    # The formula needs at least one block.
    exact = sizes([predicted_separation(kappa, k) for k in blocks[1:]])
    ax.plot(blocks[1:], exact, color=colour, linewidth=1, label="AGD, exact formula")
    ax.plot(blocks, sizes([proven_bound(k) for k in blocks]), label="proven lower bound", **GUIDE)
    for (K, separations), dashes in zip(fedac_i.items(), DASHES, strict=False):
        look: dict[str, Any] = {"color": style("fedac-i").colour, "linestyle": dashes}
        # A distance may become 0, which a logarithmic axis cannot show.
        drawable = [size or math.nan for size in sizes(separations)]
        ax.plot(blocks, drawable, linewidth=1.2, label=f"FedAc-I, K = {K}", **look)
    ax.set_yscale("log")
    ax.set_xlabel("blocks of three steps")
    ax.locator_params(axis="x", integer=True)
    ax.grid(True, which="major", color="0.9", linewidth=0.6)


def _curvature(ax: Axes, instance: Instance) -> None:
    """Draw F'' at the first query points; its bumps are so narrow that they appear as lines."""
    trajectory, _ = instance.trajectories()
    visited = trajectory.w_md[: 3 * BLOCKS_SHOWN]
    heights = [int(instance.objective.curvature(w_md) > instance.objective.mu) for w_md in visited]
    ax.axhline(0, color=GREY, linewidth=1)
    ax.vlines([float(w_md) for w_md in visited], 0, heights, color=GREY, linewidth=1)
    colour, marker, *_ = style("fedac-vanilla")
    ax.plot([float(w_md) for w_md in visited], heights, marker, color=colour, markersize=4)
    ax.set_yticks([0, 1], [r"$\mu$ = 1", f"L = {instance.kappa:g}"])
    ax.set_ylim(-0.3, 1.3)
    span = float(visited[0] - visited[-1])
    # AGD descends to the minimum at 0: reverse the axis so that its steps go from left to right.
    ax.set_xlim(float(visited[0]) + span / 20, float(visited[-1]) - span / 20)
    ax.set_xlabel(f"w (markers: the first {len(visited)} query points of AGD)")
    ax.set_ylabel("F''(w)")
