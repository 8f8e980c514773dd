"""Clients as a table: how many rows they hold, and with which labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedac.data.clients import Clients, Names

# Of more clients only the first and last are shown, of more labels only the most frequent.
CLIENTS, LABELS = 12, 5
ELLIPSIS = "..."


def format_table(clients: Clients) -> str:
    """Return a summary over all clients, then a line for each, at most 25 lines together.

    Examples
    --------
    >>> from fedac.data import Clients
    >>> print(Clients(["rome", "oslo", "rome", "rome"], labels=[1, 1, -1, 1]))
    2 clients, 4 rows (given)
    <BLANKLINE>
                       least  median  most
    rows per client        1       2     3
    share of label -1     0%     17%   33%
    share of label 1     67%     83%  100%
    <BLANKLINE>
    client  rows  label -1  label 1
    oslo       1         0        1
    rome       3         1        2
    """
    counts = clients.count_labels(LABELS)
    summary = [
        ["", "least", "median", "most"],
        ["rows per client", *_spread(clients.sizes, _number)],
        *(
            [f"share of {_heading(label)}", *_spread(rows / clients.sizes, "{:.0%}".format)]
            for label, rows in counts.items()
        ),
    ]
    lines = [["client", "rows", *map(_heading, counts)]]
    for m in _shown(len(clients)):
        cells = (clients.sizes[m], *(rows[m] for rows in counts.values()))
        lines.append([shorten(clients.names[m]), *map(_number, cells)])
    if len(clients) > CLIENTS:
        lines.insert(1 + CLIENTS // 2, [ELLIPSIS] * len(lines[0]))
    title = f"{len(clients):,} clients, {len(clients.rows):,} rows ({clients.how})"
    return "\n".join([title, "", *_aligned(summary), "", *_aligned(lines)])


def _shown(N: int) -> Sequence[int]:
    if N <= CLIENTS:
        return range(N)
    return [*range(CLIENTS // 2), *range(N - CLIENTS // 2, N)]


def _spread(values: Names, text: Callable[[float], str]) -> list[str]:
    return [text(float(value)) for value in np.quantile(values, [0, 0.5, 1])]


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _heading(label: str) -> str:
    return label if label.endswith(" others") else f"label {shorten(label)}"


def shorten(name: str, longest: int = 24) -> str:
    """Return a name on one line, cut if it is long.

    Examples
    --------
    >>> shorten("university hospital", longest=12)
    'universit...'
    """
    line = "".join(c if c.isprintable() else " " for c in name)
    return line if len(line) <= longest else line[: longest - len(ELLIPSIS)] + ELLIPSIS


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the first column to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
