# SPDX-License-Identifier: Apache-2.0
"""Figure of clients: how many rows they hold, and with which labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.data.clients import shorten
from fedac.errors import InputError
from fedac.plotting import LABEL_COLOURS, OTHER
from fedac.validate import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedac.data.clients import Clients, Integers

NAMED = 30  # the most clients that are named on the axis, in their order
COLUMNS = 250  # more would be too narrow to see: neighbours share one
FAR_APART = 20  # the largest ratio of sizes on a linear axis
LINE = 75  # characters that fit below the axis


def draw(clients: Clients, ax: Axes | None = None) -> Axes:
    """Draw the label shares of every client, and above them its number of rows.

    Many clients are sorted by their labels, or by size if the labels differ by chance only. A
    column of several clients shows their mean shares, and the mean and range of their sizes.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
    N, sizes = len(clients), clients.sizes
    counts = clients.count_labels(len(LABEL_COLOURS) + 1)
    shares = np.array([rows / sizes for rows in counts.values()]).reshape(-1, N)
    pooled = shares @ sizes / sizes.sum()
    order, sorted_by = np.arange(N), ""
    if N > NAMED and _labels_differ(shares, pooled, sizes):
        order, sorted_by = _by_label(shares, sizes), "labels"
    elif N > NAMED:
        order, sorted_by = np.argsort(-sizes, kind="stable"), "size"
    edges = np.linspace(0, N, min(N, COLUMNS) + 1).astype(np.int64)
    above = _panel_above(ax) if counts else ax
    if counts:
        _draw_shares(ax, list(counts), shares[:, order], pooled, edges)
    _draw_sizes(above, sizes[order], edges)
    above.set_title(f"{N:,} clients, {len(clients.rows):,} rows ({clients.how})", parse_math=False)
    if sorted_by:
        ax.set_xlabel(f"clients, sorted by {sorted_by}")
    else:
        _name_columns(ax, above, clients.names)
    return ax


def _panel_above(ax: Axes) -> Axes:
    """Split off the upper third of some axes."""
    place = ax.get_subplotspec()
    if place is None:
        raise InputError("ax must come from plt.subplots or add_subplot, so that it can be divided")
    halves = place.subgridspec(2, 1, height_ratios=(1, 2), hspace=0.1)
    ax.set_subplotspec(halves[1])
    above = ax.figure.add_subplot(halves[0], sharex=ax)
    above.tick_params(axis="x", labelbottom=False, bottom=False)
    return above


def _labels_differ(shares: Array, pooled: Array, sizes: Integers) -> bool:
    """Return whether the labels of clients differ clearly more than by chance."""
    # A chi-squared statistic: for random rows its mean is 1 and its deviation sqrt(2/N).
    squares = ((shares - pooled[:, None]) ** 2 @ sizes).sum() / len(sizes)
    return bool(squares > (1 + 6 * math.sqrt(2 / len(sizes))) * (pooled * (1 - pooled)).sum())


def _by_label(shares: Array, sizes: Integers) -> Integers:
    """Order clients by most frequent label, then by its share, alternately down and up."""
    top = shares.argmax(axis=0)
    key = shares.max(axis=0) * np.where(top % 2, 1, -1)
    return np.asarray(np.lexsort((-sizes, key, top)))


def _legend(ax: Axes, **look: Any) -> None:
    legend = ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, **look)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a label may contain a dollar sign


def _draw_shares(
    ax: Axes, labels: list[str], shares: Array, pooled: Array, edges: Integers
) -> None:
    heights = np.cumsum(np.add.reduceat(shares, edges[:-1], axis=1) / np.diff(edges), axis=0)
    columns = zip(labels, [*LABEL_COLOURS, OTHER.colour], heights, strict=False)
    # Drawn from the highest down, each in front of the previous one, so that no seams show.
    for label, colour, height in reversed(list(columns)):
        ax.stairs(height, edges, fill=True, color=colour, label=label)
    ax.set(xlim=(0, edges[-1]), ylim=(0, 1), ylabel="share of rows")
    ax.yaxis.set_major_formatter("{x:.0%}")
    if len(labels) == 2:  # more lines would confuse
        ax.axhline(pooled[0], color="black", linestyle="--", linewidth=1, label="all rows")
    _legend(ax, title="label", fontsize="small" if len(labels) > 4 else None, labelspacing=0.3)


def _draw_sizes(ax: Axes, sizes: Integers, edges: Integers) -> None:
    means = np.add.reduceat(sizes, edges[:-1]) / np.diff(edges)
    far_apart = sizes.max() > FAR_APART * sizes.min()
    floor, room = (sizes.min() / 2, 2) if far_apart else (0, 1.1)
    if far_apart:
        ax.set_yscale("log")
    if len(means) == len(sizes):
        ax.stairs(means, edges, baseline=floor, fill=True, color="0.6")
    else:
        least, most = (pick.reduceat(sizes, edges[:-1]) for pick in (np.minimum, np.maximum))
        ax.stairs(least, edges, baseline=floor, fill=True, color="0.6")
        ax.stairs(most, edges, baseline=least, fill=True, color="0.8", label="range")
        ax.stairs(means, edges, baseline=None, color="0.2", label="mean")
        _legend(ax)
    ax.set(xlim=(0, edges[-1]), ylim=(floor, sizes.max() * room), ylabel="rows")
    ax.yaxis.set_major_formatter("{x:,.0f}")


def _name_columns(ax: Axes, above: Axes, names: tuple[str, ...]) -> None:
    texts = [shorten(name, longest=12) for name in names]
    crowded = (max(map(len, texts)) + 1) * len(texts) > LINE
    places = np.arange(len(texts)) + 0.5
    ax.set_xticks(places, texts, rotation=90 if crowded else 0, parse_math=False)
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("client")
    for panel in {ax, above}:  # a gap between neighbours
        panel.vlines(np.arange(1, len(texts)), *panel.get_ylim(), "white", linewidth=1.5)
