"""Read LIBSVM text files; errors name the line."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import math
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedac.data.dataset import Dataset, labels_to_signs
from fedac.errors import DataError
from fedac.validate import LARGEST, require_count

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = csr_array[np.float64, tuple[int, int]]

OPENERS: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}

# Files are read in chunks, so that a bad line is searched for in one chunk only and a dense
# file of several gigabytes is never in memory both sparse and dense.
CHUNK_BYTES = 1 << 24

# An entry takes 12 bytes in sparse storage and 8 in dense: dense wins from about half full.
DENSE_ABOVE = 0.5

# The widest published sets have 5.5e7 columns. With this many a model takes 0.8 GB; a larger index
# is more likely a typo.
MOST_COLUMNS = 10**8
NEWLINE = b"\n"
NOT_TEXT = "not text; a line of a LIBSVM file is 'label index:value index:value ...'"


def load_libsvm(
    path: str | Path, n_features: int | None = None, name: str | None = None
) -> Dataset:
    r"""Read a LIBSVM file, plain or compressed (.gz, .bz2, .xz).

    A line is ``label index:value index:value ...`` with ascending indices from 1;
    ``#`` starts a comment. Rows are sparse, or dense if more than half of the entries are
    stored. Errors name the file, line and token.

    Parameters
    ----------
    path : str or Path
        The file.
    n_features : int, optional
        Number of columns; by default the largest index found, at most 100 million.
    name : str, optional
        Name of the data set; by default the file's name without .gz, .bz2 or .xz.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "tiny"
    ...     _ = file.write_text("+1 1:0.5 4:2\n-1 3:1  # a comment\n")
    ...     data = load_libsvm(file)
    >>> data.name, data.X.shape, data.y
    ('tiny', (2, 4), array([ 1., -1.]))
    """
    path = Path(path)
    if n_features is not None:
        n_features = require_count("n_features", n_features)
    blocks: list[Rows] = []
    labels: list[NDArray[np.float64]] = []
    for first_line, text in _chunks(path):
        block, y = _parse(path, text, first_line, n_features)
        blocks.append(block)
        labels.append(y)
    if not sum(len(y) for y in labels):
        raise DataError(f"{path}: the file has no rows")
    columns = n_features or max(block.shape[1] for block in blocks)
    if not columns:
        raise DataError(f"{path}: no row has a feature; a line is 'label index:value ...'")
    written = np.concatenate(labels)
    signs = labels_to_signs(written, str(path))
    stem = path.stem if path.suffix in OPENERS else path.name
    classes = (float(written.min()), float(written.max()))
    return Dataset(name or stem, _stack(blocks, columns), signs, classes)


def _chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of whole lines, each with the number of its first line."""
    line = 1
    try:
        if path.is_char_device() or path.is_block_device():  # /dev/zero never ends
            raise DataError(f"{path}: this is a device; give a LIBSVM file")
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            while text := file.read(CHUNK_BYTES):
                # In a file of zeros the search for the end of a line would not end.
                before, zero, _ = text.partition(b"\0")
                if zero:
                    raise DataError(f"{path}, line {line + before.count(NEWLINE)}: {NOT_TEXT}")
                text += file.readline()
                if line == 1:
                    text = text.removeprefix(codecs.BOM_UTF8)
                yield line, text
                line += text.count(NEWLINE)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; give a LIBSVM file") from None
    except EOFError:
        raise DataError(f"{path}: the compressed file is truncated or damaged") from None
    except (OSError, lzma.LZMAError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {why}") from None


def _parse(
    path: Path, text: bytes, first_line: int, n_features: int | None
) -> tuple[Rows, NDArray[np.float64]]:
    from scipy.sparse import csr_array

    entries = read_entries(text)
    largest = entries.columns.max(initial=0) if entries else 0
    if entries is None or largest > (n_features or MOST_COLUMNS):
        raise DataError(f"{path}, {_first_fault(text, first_line, n_features)}")
    # A chunk has far fewer than 2^31 entries, and the kernels need 32-bit indices.
    indices, indptr = (entries.columns - 1).astype(np.int32), entries.bounds.astype(np.int32)
    shape = (len(entries.labels), n_features or int(largest))
    return csr_array((entries.values, indices, indptr), shape=shape), entries.labels


def _stack(blocks: list[Rows], columns: int) -> Rows | NDArray[np.float64]:
    """Join the blocks into one matrix; empties the list."""
    from scipy.sparse import csr_array, vstack

    n = sum(block.shape[0] for block in blocks)
    stored = sum(block.nnz for block in blocks)
    if stored <= DENSE_ABOVE * n * columns:
        widened = [
            csr_array((b.data, b.indices, b.indptr), shape=(b.shape[0], columns)) for b in blocks
        ]
        return vstack(widened, format="csr")
    # Free each block once copied, so that memory peaks near the size of the sparse form.
    X = np.zeros((n, columns))
    while blocks:
        block = blocks.pop()
        X[n - block.shape[0] : n, : block.shape[1]] = block.toarray()
        n -= block.shape[0]
    return X


def _first_fault(text: bytes, first_line: int, n_features: int | None) -> str | None:
    """Describe the error in the first bad line; None if all lines are good."""
    for number, line in enumerate(text.split(NEWLINE), first_line):
        tokens = line.partition(b"#")[0].split()
        fault = _line_fault(tokens, n_features or MOST_COLUMNS)
        if fault:
            if not _is_text(line):
                fault = NOT_TEXT
            return f"line {number}: {fault}"
    return None


def _line_fault(tokens: list[bytes], largest: int) -> str | None:
    if tokens and (fault := _number_fault(tokens[0])):
        return f"label {_quote(tokens[0])} is {fault}"
    last = 0
    for token in tokens[1:]:
        head, colon, tail = token.partition(b":")
        if head == b"qid":
            return f"{_quote(token)}: query ids are not supported; remove them"
        if not colon:
            return f"{_quote(token)} is not of the form index:value"
        if not (head.isdigit() and len(head) <= MOST_DIGITS and 1 <= int(head) <= largest):
            return f"{_quote(token)}: the feature index must be a whole number from 1 to {largest}"
        if int(head) <= last:
            return f"{_quote(token)}: feature indices must ascend, but {last} came before"
        if not tail:
            return f"{_quote(token)}: there is no value after the colon"
        if b":" in tail:
            return f"{_quote(token)} has two colons and is not of the form index:value"
        if fault := _number_fault(tail):
            return f"{_quote(token)}: the value is {fault}"
        last = int(head)
    return None


def _number_fault(token: bytes) -> str | None:
    try:
        number = math.nan if b"_" in token else float(token)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return "not a finite number"
    if abs(number) > LARGEST:
        return f"too large: squares overflow above {LARGEST:g}; scale the data"
    return None


def _quote(token: bytes) -> str:
    text = token.decode("utf-8", "backslashreplace")
    return f"'{text}'" if len(text) <= 40 else f"'{text[:40]}...'"


def _is_text(line: bytes) -> bool:
    try:
        return all(c.isprintable() or c.isspace() for c in line.decode())
    except UnicodeDecodeError:
        return False


# --- The numbers in LIBSVM text, found by NumPy.
#
# scikit-learn reads the same files, but to import it takes longer than to read most of them, in
# every
# command and in every process of a federation.

COMMENT = re.compile(rb"#[^\n]*")
LINE_END, COLON, SPACE, ZERO = b"\n: 0"
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
    line = np.searchsorted(np.flatnonzero(characters == LINE_END), starts)
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
