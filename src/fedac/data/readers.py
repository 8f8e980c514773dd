# SPDX-License-Identifier: Apache-2.0
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedac.data.dataset import Dataset, encode_target
from fedac.errors import DataError
from fedac.validate import LARGEST, require_count

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = csr_array[np.float64, tuple[int, int]]

OPENERS: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}

# At most one chunk is searched for a bad line or held in both sparse and dense form.
CHUNK_BYTES = 1 << 24
# An entry takes 12 bytes in sparse storage and 8 in dense: dense wins from about half full.
DENSE_ABOVE = 0.5
# The widest published sets have 5.5e7 columns: a larger index is more likely a typo.
MOST_COLUMNS = 10**8
MOST_DIGITS = 15
LINE_BREAK = b"\n"
NOT_TEXT = "not text; a line of a LIBSVM file is 'label index:value index:value ...'"
COMMENT = re.compile(rb"#[^\n]*")
LINE_END, COLON, SPACE, ZERO = b"\n: 0"
IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


def load_libsvm(
    path: str | Path,
    n_features: int | None = None,
    name: str | None = None,
    *,
    like: Dataset | None = None,
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
        Number of columns. Default: the largest index found, at most 100 million.
    name : str, optional
        Name of the data set. Default: the file's name without .gz, .bz2 or .xz.
    like : Dataset, optional
        The training data if the file is a test set: it must have the same labels.

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
    labels = np.zeros(0)
    for first_line, text in _chunks(path):
        parsed = parse_lines(text, n_features)
        if parsed is None:
            raise DataError(f"{path}, {_first_fault(text, first_line, n_features)}")
        blocks.append(parsed[0])
        labels = np.append(labels, parsed[1])
    if not labels.size:
        raise DataError(f"{path}: the file has no rows")
    columns = n_features or max(block.shape[1] for block in blocks)
    if not columns:
        raise DataError(f"{path}: no row has a feature; a line is 'label index:value ...'")
    y, classes = encode_target(labels, str(path), like.classes if like else None)
    stem = path.stem if path.suffix in OPENERS else path.name
    return Dataset(name or stem, _stack(blocks, columns), y, classes)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in the format of MNIST, plain or compressed."""
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            zeros, kind, dimensions = file.read(2), file.read(1), int.from_bytes(file.read(1))
            shape = np.frombuffer(file.read(4 * dimensions), ">u4")
            content = np.frombuffer(file.read(), np.uint8)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if zeros != b"\0\0" or kind != b"\x08" or content.size != shape.prod():
        raise DataError(f"{path} is not an IDX file of bytes")
    return content.reshape(shape.astype(np.int64))


def _chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of whole lines, each with the number of its first line."""
    line = 1
    try:
        if path.is_char_device() or path.is_block_device():  # /dev/zero never ends
            raise DataError(f"{path}: this is a device; give a LIBSVM file")
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            while text := file.read(CHUNK_BYTES):
                # In an endless file of zeros the search for the end of a line would never stop.
                before, zero, _ = text.partition(b"\0")
                if zero:
                    raise DataError(f"{path}, line {line + before.count(LINE_BREAK)}: {NOT_TEXT}")
                text += file.readline()
                yield line, text.removeprefix(codecs.BOM_UTF8) if line == 1 else text
                line += text.count(LINE_BREAK)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}") from None


def parse_lines(text: bytes, n_features: int | None) -> tuple[Rows, NDArray[np.float64]] | None:
    """Return the rows and labels of whole lines, or None if a line is faulty.

    scikit-learn reads the same files, but importing it takes longer than reading most of them.
    """
    from scipy.sparse import csr_array

    if b"#" in text:
        text = COMMENT.sub(b"", text)
    characters = np.frombuffer(text, np.uint8)
    is_space = IS_SPACE[characters]
    starts = np.flatnonzero(np.diff(is_space, prepend=True) & ~is_space)
    # The first word of a line is its label, and every other word has one colon.
    line = np.searchsorted(np.flatnonzero(characters == LINE_END), starts)
    is_label = np.diff(line, prepend=-1) > 0
    colons = np.flatnonzero(characters == COLON)
    word = np.searchsorted(starts, colons, side="right") - 1
    if not np.array_equal(word, np.flatnonzero(~is_label)):
        return None
    others = bytearray(text)
    columns = _cut_columns(np.frombuffer(others, np.uint8), starts[~is_label], colons)
    numbers = _numbers(bytes(others)) if starts.size else np.zeros(0)
    if columns is None or numbers is None or len(numbers) != len(starts):
        return None
    bounds = np.append(0, np.cumsum(np.diff(np.flatnonzero(is_label), append=len(starts)) - 1))
    falls = np.flatnonzero(np.diff(columns) <= 0) + 1  # allowed where a row begins
    largest = columns.max(initial=0)
    if columns.min(initial=1) < 1 or largest > (n_features or MOST_COLUMNS):
        return None
    if not np.isin(falls, bounds).all():
        return None
    # A chunk has far fewer than 2^31 entries, and the kernels need 32-bit indices.
    arrays = (numbers[~is_label], (columns - 1).astype(np.int32), bounds.astype(np.int32))
    shape = (len(bounds) - 1, n_features or int(largest))
    return csr_array(arrays, shape=shape), numbers[is_label]


def _cut_columns(
    characters: NDArray[np.uint8], starts: NDArray[np.int64], colons: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Cut out the column numbers, from starts to colons; return None if one is not a number."""
    length = colons - starts
    if not 0 < length.min(initial=1) <= length.max(initial=1) <= MOST_DIGITS:
        return None
    columns = np.zeros(len(starts), np.int64)
    for k in range(length.max(initial=0)):
        longer = length > k
        places = starts[longer] + k
        digits = characters[places] - ZERO  # unsigned: what is below "0" becomes large
        if (digits > 9).any():
            return None
        columns[longer] = columns[longer] * 10 + digits
        characters[places] = SPACE
    characters[colons] = SPACE
    return columns


def _numbers(text: bytes) -> NDArray[np.float64] | None:
    """Return numbers separated by spaces; None if one is too large, or not a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(text, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    return numbers if (np.abs(numbers) <= LARGEST).all() else None


def _stack(blocks: list[Rows], columns: int) -> Rows | NDArray[np.float64]:
    """Join the blocks into one matrix; empties the list."""
    from scipy.sparse import csr_array, vstack

    n = sum(block.shape[0] for block in blocks)
    if sum(block.nnz for block in blocks) <= DENSE_ABOVE * n * columns:
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
    for number, line in enumerate(text.split(b"\n"), first_line):
        fault = _line_fault(line.partition(b"#")[0].split(), n_features or MOST_COLUMNS)
        if fault:
            is_text = {"\0", "\ufffd"}.isdisjoint(line.decode(errors="replace"))
            return f"line {number}: {fault if is_text else NOT_TEXT}"
    return None


def _line_fault(tokens: list[bytes], largest: int) -> str | None:
    if tokens and (fault := _number_fault(tokens[0])):
        return f"label {_quote(tokens[0])} is {fault}"
    last = 0
    for token in tokens[1:]:
        head, _, tail = token.partition(b":")
        if token.count(b":") != 1 or not tail:
            return f"{_quote(token)} is not of the form index:value"
        if not (head.isdigit() and len(head) <= MOST_DIGITS and 1 <= int(head) <= largest):
            advice = "; scikit-learn writes it with zero_based=False" * (head == b"0")
            must = f"must be a whole number from 1 to {largest}"
            return f"{_quote(token)}: the feature index {must}{advice}"
        if int(head) <= last:
            return f"{_quote(token)}: feature indices must ascend, but {last} came before"
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
    text = token.decode(errors="backslashreplace")
    return f"'{text}'" if len(text) <= 40 else f"'{text[:40]}...'"
