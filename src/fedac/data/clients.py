# SPDX-License-Identifier: Apache-2.0
"""Which rows each client holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.validate import content_hash, require_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Integers = npt.NDArray[np.int64]
Names = npt.NDArray[Any]  # text or numbers
TABLE_CLIENTS, TABLE_LABELS = 12, 5  # the most that are printed
# More different numbers than this are real targets.
MOST_LABELS = 100
TARGET_GROUPS = 10


class Clients:
    """The rows of every client, at least one each. Printing shows a table, `plot` a figure.

    Parameters
    ----------
    owners : array of shape (n,)
        The client of each row: any names or numbers.
    labels : array of shape (n,), optional
        The label of each row, for the table and the figure.
    how : str
        Description of the split.

    Attributes
    ----------
    names : tuple of str
        The clients' names, sorted.
    rows : array of int, shape (n,)
        All rows, sorted by client.
    bounds : array of int, shape (N + 1,)
        Client m holds ``rows[bounds[m]:bounds[m + 1]]``.

    Examples
    --------
    >>> clients = Clients(["rome", "oslo", "rome"], labels=[1, 1, -1])
    >>> len(clients), clients.names, clients.rows_of(1)
    (2, ('oslo', 'rome'), array([0, 2]))
    """

    def __init__(
        self, owners: npt.ArrayLike, labels: npt.ArrayLike | None = None, *, how: str = "given"
    ) -> None:
        named = as_names("clients", owners)
        self.labels = None if labels is None else as_names("labels", labels)
        if self.labels is not None and len(self.labels) != len(named):
            raise InputError(f"{len(named)} rows have clients, but {len(self.labels)} have labels")
        self._unique, owner = np.unique(named, return_inverse=True)
        self.how = how
        self.rows: Integers = np.argsort(owner, kind="stable")
        self.bounds: Integers = np.concatenate([[0], np.cumsum(np.bincount(owner))])

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.bounds) - 1

    def __repr__(self) -> str:
        return f"Clients({len(self)} clients, {len(self.rows)} rows, {self.how})"

    def __str__(self) -> str:
        counts = self.count_labels(TABLE_LABELS)
        what = "label" if self.labels is None or not are_real(self.labels) else "target"
        headings = [k if k.endswith(" others") else f"{what} {shorten(k)}" for k in counts]
        summary = [
            ["", "least", "median", "most"],
            ["rows per client", *_quantiles(self.sizes, _number)],
        ]
        for heading, rows in zip(headings, counts.values(), strict=True):
            shares = _quantiles(rows / self.sizes, "{:.0%}".format)
            summary.append([f"share of {heading}", *shares])
        lines = [["client", "rows", *headings]]
        N, half = len(self), TABLE_CLIENTS // 2
        for m in range(N) if N <= TABLE_CLIENTS else [*range(half), *range(N - half, N)]:
            numbers = (self.sizes[m], *(rows[m] for rows in counts.values()))
            lines.append([shorten(self.names[m]), *map(_number, numbers)])
        if N > TABLE_CLIENTS:
            lines.insert(1 + half, ["..."] * len(lines[0]))
        title = f"{N:,} clients, {len(self.rows):,} rows ({self.how})"
        return "\n".join([title, "", *_aligned(summary), "", *_aligned(lines)])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, in their order."""
        return as_text(self._unique)

    @property
    def sizes(self) -> Integers:
        """The number of rows of each client."""
        return np.diff(self.bounds)

    @property
    def owners(self) -> Integers:
        """The number of the client that holds each row."""
        owners = np.empty(len(self.rows), np.int64)
        owners[self.rows] = np.repeat(np.arange(len(self)), self.sizes)
        return owners

    @property
    def row_weights(self) -> npt.NDArray[np.float64]:
        """Weights of the rows, up to a factor, that give all clients the same weight."""
        return np.asarray(1 / self.sizes[self.owners])

    def rows_of(self, m: int) -> Integers:
        """Return the rows of client number m, in ascending order."""
        if require_count("client", m, least=0) >= len(self):
            raise InputError(f"there are {len(self)} clients, numbered from 0; got {m}")
        return self.rows[self.bounds[m] : self.bounds[m + 1]]

    def of_rows(self, which: Integers, labels: Names | None = None) -> Clients:
        """Return the clients of some of the rows, numbered from 0; they keep their names."""
        return Clients(self._unique[self.owners[which]], labels, how=self.how)

    def count_labels(self, most: int | None = None) -> dict[str, Integers]:
        """Count each client's rows by label, with rare labels merged to leave at most `most`.

        Real targets are counted by ranges.
        """
        if self.labels is None:
            return {}
        groups = min(most or TARGET_GROUPS, TARGET_GROUPS)
        grouped = group_targets(self.labels, groups) if are_real(self.labels) else self.labels
        kinds, kind, rows = np.unique(grouped, return_inverse=True, return_counts=True)
        keys = as_text(kinds) if grouped is self.labels else _ranges(self.labels, kind)
        if most is not None and len(keys) > most:
            common = np.sort(np.argsort(-rows, kind="stable")[: most - 1])
            place = np.full(len(keys), len(common))
            place[common] = np.arange(len(common))
            kind = place[kind]
            keys = (*(keys[k] for k in common), f"{len(keys) - len(common)} others")
        pairs = self.owners * len(keys) + kind
        counts = np.bincount(pairs, minlength=len(self) * len(keys)).reshape(len(self), -1)
        return dict(zip(keys, counts.T, strict=True))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the number of rows of each client, and below it the shares of their labels."""
        from fedac.data.plots import draw

        return draw(self, ax)

    def fingerprint(self) -> str:
        """Return a hash of which client holds which rows."""
        return content_hash(f"clients {len(self)}", self.rows, self.bounds)


def are_real(labels: Names) -> bool:
    """Return whether labels are real targets rather than classes."""
    return labels.dtype.kind == "f" and len(np.unique(labels)) > MOST_LABELS


def group_targets(targets: Names, groups: int = TARGET_GROUPS) -> Integers:
    """Return the numbers of groups of equal size, from the lowest targets on.

    >>> group_targets(np.arange(1000.0))[[0, 99, 100, 999]]
    array([0, 0, 1, 9])
    """
    bounds = np.quantile(targets, np.arange(1, groups) / groups)
    return np.searchsorted(bounds, targets, side="right")


def _ranges(targets: Names, group: Integers) -> tuple[str, ...]:
    """Return the lowest and the highest target of each group, with the digits that differ."""
    parts = [targets[group == k] for k in range(group.max() + 1)]
    for digits in range(3, 18):
        names = tuple(f"{part.min():.{digits}g} to {part.max():.{digits}g}" for part in parts)
        if len(set(names)) == len(names):
            break
    return names


def as_names(what: str, values: npt.ArrayLike) -> Names:
    """Return names or numbers, one for each row, as an array."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of unequal lengths
        array = np.empty(0)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)  # a column of pandas
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iufbUS":
        raise InputError(f"{what} must be an array with a name or a number for every row")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{what} has NaN or infinite entries: every row needs a name or a number")
    return array


def as_text(values: Names) -> tuple[str, ...]:
    """Return names or numbers as text, whole numbers without a point."""
    if values.dtype.kind == "S":
        return tuple(value.decode(errors="backslashreplace") for value in values.tolist())
    if values.dtype.kind == "f":
        return tuple(str(int(v)) if v.is_integer() else str(v) for v in values.tolist())
    return tuple(map(str, values.tolist()))


def shorten(name: str, longest: int = 24) -> str:
    """Return a name on one line, cut if it is long."""
    line = "".join(c if c.isprintable() else " " for c in name)
    return line if len(line) <= longest else line[: longest - 3] + "..."


def _quantiles(values: Names, text: Callable[[float], str]) -> list[str]:
    return [text(float(value)) for value in np.quantile(values, [0, 0.5, 1])]


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Align the first column to the left and all numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
