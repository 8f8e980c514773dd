"""The numbers in LIBSVM text, found by NumPy.

scikit-learn reads the same files, but to import it takes longer than to read most of them, in every
command and in every process of a federation.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedac.arrays import LARGEST

COMMENT = re.compile(rb"#[^\n]*")
NEWLINE, COLON, SPACE, ZERO = b"\n: 0"
IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))
# Of a column's number: more do not fit every int64, and nobody has so many columns.
MOST_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Entries:
    """All rows of a text: their labels, and the entries ``index:value`` of one after the other.

    Attributes
    ----------
    labels, values : array of float
        One number per row, and one per entry.
    columns : array of int
        One per entry, counted from 1, ascending within a row.
    bounds : array of int
        Row i has the entries ``bounds[i]`` to ``bounds[i + 1]``.
    """

    labels: NDArray[np.float64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    bounds: NDArray[np.int64]


def read_entries(text: bytes) -> Entries | None:
    r"""Read whole lines; None if any of them is not as it should be.

    Examples
    --------
    >>> rows = read_entries(b"+1 1:0.5 4:2  # a comment\n-1 3:1\n")
    >>> rows.labels, rows.columns, rows.values, rows.bounds
    (array([ 1., -1.]), array([1, 4, 3]), array([0.5, 2. , 1. ]), array([0, 2, 3]))
    >>> read_entries(b"+1 4:2 1:0.5") is None
    True
    """
    if b"#" in text:
        text = COMMENT.sub(b"", text)
    characters = np.frombuffer(text, np.uint8)
    is_space = IS_SPACE[characters]
    starts = np.flatnonzero(np.diff(is_space, prepend=True) & ~is_space)
    if not starts.size:
        nothing = np.zeros(0)
        return Entries(nothing, nothing.astype(int), nothing, np.zeros(1, int))
    # The first word of a line is a label, and every other one has a colon.
    line = np.searchsorted(np.flatnonzero(characters == NEWLINE), starts)
    is_label = np.diff(line, prepend=-1) > 0
    colons = np.flatnonzero(characters == COLON)
    word = np.searchsorted(starts, colons, side="right") - 1
    if not np.array_equal(word, np.flatnonzero(~is_label)):
        return None
    others = bytearray(text)
    columns = _take_columns(np.frombuffer(others, np.uint8), starts[~is_label], colons)
    numbers = _numbers(others) if columns is not None else None
    if columns is None or numbers is None or numbers.size != starts.size:
        return None
    row = np.cumsum(is_label)[~is_label]
    goes_back = (np.diff(columns) <= 0) & (np.diff(row) == 0)
    if goes_back.any() or columns.min(initial=1) < 1:
        return None
    labels = numbers[is_label]
    bounds = np.searchsorted(row, np.arange(1, len(labels) + 1), side="right")
    return Entries(labels, columns, numbers[~is_label], np.concatenate([[0], bounds]))


def _take_columns(
    characters: NDArray[np.uint8], first: NDArray[np.int64], colons: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Replace what is before the colons, and these, by spaces; return it as whole numbers.

    None if anything there is not a digit, or there are too many of them.
    """
    length = colons - first
    if not 0 < length.min(initial=1) <= length.max(initial=1) <= MOST_DIGITS:
        return None
    columns = np.zeros(len(first), np.int64)
    for k in range(length.max(initial=0)):
        some = length > k
        places = first[some] + k
        digits = characters[places] - ZERO  # below zero is far above nine: they are unsigned
        if (digits > 9).any():
            return None
        columns[some] = columns[some] * 10 + digits
        characters[places] = SPACE
    characters[colons] = SPACE
    return columns


def _numbers(text: bytearray) -> NDArray[np.float64] | None:
    """Return the numbers between spaces, none too large; None if anything else is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # how NumPy says so, for now
        try:
            numbers = np.fromstring(bytes(text), sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    return numbers if (np.abs(numbers) <= LARGEST).all() else None
