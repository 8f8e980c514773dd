# SPDX-License-Identifier: Apache-2.0
"""The colour and marker of each algorithm, the same in every figure and in the report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """A colour and a marker: its name in matplotlib, in plotly, and as text."""

    colour: str
    marker: str
    symbol: str
    glyph: str


# Okabe and Ito's palette, which colour-blind readers can tell apart.
STYLES = {
    "fedac-i": Style("#D55E00", "o", "circle", "●"),
    "fedac-ii": Style("#E69F00", "P", "cross", "✚"),
    "fedac-vanilla": Style("#CC79A7", "v", "triangle-down", "▼"),
    "mb-ac-sgd": Style("#009E73", "s", "square", "■"),
    "mb-sgd": Style("#56B4E9", "^", "triangle-up", "▲"),
    "fedavg": Style("#0072B2", "D", "diamond", "◆"),
    "fedavg-weighted": Style("#000000", "X", "x", "✖"),
}
# For all other algorithms, in the order in which a figure shows them.
OTHER = Style("#666666", "*", "star", "★")
OTHERS = (
    OTHER,
    Style("#8B5A2B", "p", "pentagon", "⬟"),
    Style("#7A52C7", "h", "hexagon", "⬢"),
    Style("#5F7A00", "<", "triangle-left", "◀"),
    Style("#B0305C", ">", "triangle-right", "▶"),
    Style("#1B7F8C", "d", "diamond-tall", "◊"),
    Style("#C0A000", "8", "octagon", "◎"),
    Style("#3D3D99", "H", "hexagon2", "⬣"),
)

# For the labels of a data set, the strongest contrast first.
LABEL_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#8B5A2B", "#7A52C7", "#5F7A00"),
)


def style(algorithm: str) -> Style:
    """Return the style of an algorithm. Default: a grey star."""
    return STYLES.get(algorithm, OTHER)


def styles(algorithms: Sequence[str]) -> list[Style]:
    """Return different styles for the algorithms of one figure.

    Examples
    --------
    >>> [style.symbol for style in styles(["fedavg", "mine", "yours"])]
    ['diamond', 'star', 'pentagon']
    """
    others = cycle(OTHERS)
    return [STYLES[name] if name in STYLES else next(others) for name in algorithms]


# Shared by all figures of matplotlib.
WIDTH = 7.0  # inches: the text width of a paper
GREY = "0.35"
GUIDE: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 0.9, "zorder": 1}
FONTS: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "figure.titlesize": 9, "axes.axisbelow": True,
}  # fmt: skip


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write PNG and PDF; the same figure always gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    figure.savefig(paths[0], dpi=200)
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths
