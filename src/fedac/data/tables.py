# SPDX-License-Identifier: Apache-2.0
"""Tables and arrays of any origin as data sets: files, frames, pairs of arrays, other libraries.

Every table becomes a pandas frame. Numeric columns become features unchanged. Other columns are
one-hot encoded, with one feature per distinct value ("city=oslo").
"""

from __future__ import annotations

import csv
import re
import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedac.data.clients import Clients, shorten
from fedac.data.dataset import FEW_TEXTS, MOST_DISTINCT_TEXTS, Dataset, encode_target
from fedac.data.readers import DENSE_ABOVE, OPENERS, load_libsvm
from fedac.data.text import is_text, load_text
from fedac.errors import ColumnsWarning, DataError
from fedac.validate import LARGEST, unknown_name

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TARGET_NAMES = ("target", "label", "class", "y")
CLIENT_NAMES = ("client", "clients")
DELIMITED = (".csv", ".tsv")
# A column of text in which this share is numbers is a column of numbers with mistakes in it.
MOSTLY_NUMBERS = 0.9


@dataclass(frozen=True)
class Columns:
    """How the columns of a table became features, so that a test set is read the same way."""

    target: str | None
    client: str | None
    features: tuple[tuple[str, tuple[Any, ...] | None], ...]  # the categories, None for numbers

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(
            name if values is None else f"{name}={value}"
            for name, values in self.features
            for value in (values if values is not None else (name,))
        )

    @property
    def are_numbers(self) -> NDArray[np.bool_]:
        """Mask of the features that come from numeric columns."""
        flags = [
            values is None
            for _, values in self.features
            for _ in (values if values is not None else (0,))
        ]
        return np.array(flags, np.bool_)


def as_dataset(
    source: Any, target: Any = None, client: Any = None, like: Dataset | None = None
) -> Dataset:
    """Return a data set from a file or an object; `like` is the training data of a test set."""
    name = "data"
    if isinstance(source, str | Path):
        path = Path(source)
        name, kind = path.name, _kind(path)
        if not is_table(path):
            text = is_text(path)
            if target is not None:
                what = "text" if text else "a LIBSVM file"
                raise DataError(f"{path} is {what}, which has its targets: omit the target")
            if text:
                return with_clients(load_text(path, like), client)
            return with_clients(load_libsvm(path, like=like), client)
        _require_file(path)
        if kind == ".npz":
            source, target, client = _read_npz(path, target, client)
        elif kind == ".npy":
            if target is None:
                raise DataError(
                    f"{path} holds the rows: give the file of the targets (--label, target=)"
                )
            source = _read_npy(path)
        else:
            source = _read_parquet(path) if kind == ".parquet" else _read_delimited(path, kind)
    elif hasattr(source, "target") and hasattr(source, "data"):  # scikit-learn's Bunch
        source, target = _unpack_bunch(source, target)
    elif isinstance(source, list | tuple) and len(source) == 2:
        source, target = source
        if isinstance(source, str | Path):
            name, source = Path(source).name, _read_npy(Path(source))
    elif hasattr(source, "to_pandas"):  # Hugging Face, Polars, PyArrow
        source = source.to_pandas()
    elif not hasattr(source, "shape"):
        source, target = _unpack_items(source, target)
    target, client = (
        _read_npy(Path(given)) if isinstance(given, str | Path) and Path(given).suffix == ".npy"
        else given for given in (target, client)
    )  # fmt: skip
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return _from_frame(source, name, target, client, like)
    return _from_arrays(source, name, target, client, like)


def is_table(path: Path) -> bool:
    """Return whether a file holds a table or arrays, by its name."""
    return _kind(path) in (*DELIMITED, ".parquet", ".npz", ".npy")


def _kind(path: Path) -> str:
    suffix = Path(path.stem).suffix if path.suffix in OPENERS else path.suffix
    return suffix.lower()


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise DataError(
            f"{path} cannot be read: {'not a file' if path.exists() else 'no such file'}"
        )


def _from_arrays(X: Any, name: str, target: Any, client: Any, like: Dataset | None) -> Dataset:
    from fedac.objectives.linear_model import as_rows

    if target is None or isinstance(target, str):
        raise DataError(f"{name}: the rows have no column names: give the targets as an array")
    shape: tuple[int, ...] = ()
    if not hasattr(X, "tocsr"):
        X = np.asarray(X)
        if X.ndim > 2:  # images
            X, shape = X.reshape(len(X), -1), X.shape[1:]
    rows = as_rows(X, intercept=False)
    if len(target) != rows.shape[0]:
        raise DataError(f"{name}: {rows.shape[0]} rows but {len(target)} targets")
    y, classes = encode_target(target, name, like.classes if like else None)
    return with_clients(Dataset(name, rows, y, classes, row_shape=shape), client)


def _from_frame(
    frame: DataFrame, name: str, target: Any, client: Any, like: Dataset | None
) -> Dataset:
    if not len(frame):
        raise DataError(f"{name}: the table has no rows")
    frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
    known = list(frame.columns)
    if repeated := [column for column in known if known.count(column) > 1]:
        raise DataError(f"{name}: the column '{repeated[0]}' occurs twice")
    columns = like.columns if like else None
    if columns is not None:
        target = columns.target if target is None else target
        client = columns.client if client is None and columns.client in known else client
    if target is None:
        named = [column for column in known if column.lower() in TARGET_NAMES]
        target = named[0] if named else known[-1]
    values = target
    if isinstance(target, str):
        values = frame[_column(target, known, name, "target")]
    elif len(target) != len(frame):
        raise DataError(f"{name}: {len(frame)} rows but {len(target)} targets")
    owners = client
    if isinstance(client, str):
        owners = frame[_column(client, known, name, "client")]
        if owners.isna().any():
            row = int(np.argmax(owners.isna())) + 1
            raise DataError(f"{name}, row {row}: the client is missing in column '{client}'")
        owners = owners.to_numpy()
    used = [each for each in (target, client) if isinstance(each, str)]
    where = f"{name}, column '{target}'" if isinstance(target, str) else name
    if columns is None:
        features = [column for column in known if column not in used]
        if not features:
            raise DataError(f"{name}: there are no features, only {' and '.join(used)}")
        columns = Columns(
            target if isinstance(target, str) else None,
            client if isinstance(client, str) else None,
            tuple((column, _categories(frame[column], name)) for column in features),
        )
    y, classes = encode_target(values, where, like.classes if like else None)
    data = Dataset(name, _encode(frame, columns, name), y, classes, columns.names, columns=columns)
    return with_clients(data, owners, f"by {client}" if isinstance(client, str) else "given")


def _column(column: str, known: list[str], name: str, what: str) -> str:
    if column not in known:
        raise DataError(f"{name}: {unknown_name(f'{what} column', column, known)}")
    return column


def with_clients(data: Dataset, owners: Any, how: str = "given") -> Dataset:
    """Return a data set with the clients that an array names; unchanged if there is none."""
    if owners is None:
        return data
    if isinstance(owners, str):
        if data.columns is not None and data.columns.client == owners:
            return data
        raise DataError(
            f"{data.name} has no client column '{owners}': read a table, or pass the names of the "
            "clients as an array"
        )
    if isinstance(owners, Clients):
        return replace(data, clients=owners)
    if len(owners) != data.n_samples:
        raise DataError(f"{data.name}: {data.n_samples} rows but {len(owners)} names of clients")
    return replace(data, clients=Clients(owners, data.labels, how=how))


def _categories(column: Series[Any], name: str) -> tuple[Any, ...] | None:
    """Return the values of a column of categories, None for a column of numbers."""
    where = f"{name}, column '{column.name}'"
    missing = column.isna().to_numpy()
    if missing.any():
        others = int(missing.sum()) - 1
        more = f", as in {others} more row{'s' * (others > 1)}" if others else ""
        raise DataError(
            f"{name}, row {np.argmax(missing) + 1}, column '{column.name}': the value is "
            f"missing{more}; fill it in, or drop the rows or the column"
        )
    kind = column.dtype.kind
    if kind in "iufb":
        return None
    if kind in "mM":
        raise DataError(f"{where} holds dates or times: turn them into numbers, such as days")
    if hasattr(column, "cat"):
        return tuple(column.cat.remove_unused_categories().cat.categories.tolist())
    texts = column.tolist()
    if strange := [value for value in texts if not isinstance(value, str | bool)]:
        raise DataError(
            f"{where} must be numbers or text; it holds {type(strange[0]).__name__} such as "
            f"{shorten(repr(strange[0]))}"
        )
    from pandas import to_datetime, to_numeric

    numeric = to_numeric(column, errors="coerce").notna().to_numpy()
    if numeric.mean() >= MOSTLY_NUMBERS:
        row = int(np.argmin(numeric))
        raise DataError(
            f"{name}, row {row + 1}, column '{column.name}': '{shorten(str(texts[row]))}' is not "
            "a number like the rest of the column"
        )
    values = tuple(sorted(set(texts)))
    if to_datetime(column, errors="coerce", format="ISO8601", utc=True).notna().all():
        raise DataError(f"{where} holds dates or times: turn them into numbers, such as days")
    if len(values) > max(FEW_TEXTS, MOST_DISTINCT_TEXTS * len(texts)):
        raise DataError(
            f"{where} has {len(values)} different texts in {len(texts)} rows, such as "
            f"'{shorten(str(texts[0]))}': drop it, or group its values"
        )
    return values


def _encode(frame: DataFrame, columns: Columns, name: str) -> Any:
    """Return the features of a table, sparse if most of them are zero."""
    from scipy.sparse import csr_array

    n, k = len(frame), len(columns.features)
    places, values, width = np.empty((n, k), np.int64), np.empty((n, k)), 0
    for c, (column, categories) in enumerate(columns.features):
        if column not in frame:
            raise DataError(f"{name}: the column '{column}' of the training data is missing")
        if categories is None:
            places[:, c], width = width, width + 1
            values[:, c] = _numbers(frame[column], name)
        else:
            places[:, c], values[:, c] = _one_hot(frame[column], categories, name)
            places[:, c] += width
            width += len(categories)
    if np.count_nonzero(values) > DENSE_ABOVE * n * width:
        X = np.zeros((n, width))
        np.add.at(X, (np.arange(n)[:, None], places), values)
        return X
    rows = csr_array((values.ravel(), places.ravel(), np.arange(n + 1) * k), shape=(n, width))
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


def _numbers(column: Series[Any], name: str) -> NDArray[np.float64]:
    try:
        numbers = column.to_numpy(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name}, column '{column.name}': numbers are needed") from None
    wrong = ~(np.abs(numbers) <= LARGEST)
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "is missing" if np.isnan(numbers[row]) else f"is {numbers[row]:g}, too large"
        raise DataError(f"{name}, row {row + 1}, column '{column.name}': the value {what}")
    return numbers


def _one_hot(
    column: Series[Any], categories: tuple[Any, ...], name: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the index of each value's category, and 1.0, or 0.0 for an unknown value."""
    from pandas import Index

    places = Index(categories).get_indexer(column.tolist())
    unknown = places < 0
    if unknown.any():
        first = column.tolist()[int(np.argmax(unknown))]
        warnings.warn(
            f"{name}, column '{column.name}': {unknown.sum()} rows have values that the training "
            f"data does not have, such as '{shorten(str(first))}'; all of their indicators are 0",
            ColumnsWarning,
            stacklevel=6,
        )
    return np.where(unknown, 0, places), np.where(unknown, 0.0, 1.0)


def standardize(data: Dataset, *others: Dataset) -> list[Dataset]:
    """Scale numeric columns of `data` to mean 0 and variance 1; transform `others` the same way."""
    from scipy.sparse import csr_array, hstack

    if data.columns is not None:
        where = data.columns.are_numbers
    elif isinstance(data.X, np.ndarray):
        where = np.ones(data.n_features, np.bool_)
    else:
        raise DataError(f"{data.name} is sparse: standardizing would fill in its zeros; scale it")
    if not where.any():
        return [data, *others]
    numbers = _dense_columns(data, where)
    mean, deviation = numbers.mean(axis=0), numbers.std(axis=0)
    constant = deviation <= 1e-12 * np.abs(mean)  # a column of ones stays one
    mean, deviation = np.where(constant, 0.0, mean), np.where(constant, 1.0, deviation)
    scaled: list[Dataset] = []
    for each in (data, *others):
        part = (_dense_columns(each, where) - mean) / deviation
        if isinstance(each.X, np.ndarray):
            X: Any = each.X.copy()
            X[:, where] = part
        else:
            order = np.argsort(np.concatenate([np.flatnonzero(~where), np.flatnonzero(where)]))
            both = hstack([each.X[:, ~where], csr_array(part)], format="csr")
            X = csr_array(both[:, order])
        scaled.append(replace(each, X=X))
    return scaled


def scale_spread(data: Dataset) -> float:
    """Return the ratio of the largest to the median deviation among a table's numbers."""
    if data.columns is None:
        return 1.0
    deviations = _dense_columns(data, data.columns.are_numbers).std(axis=0)
    deviations = deviations[deviations > 0]
    return float(deviations.max() / np.median(deviations)) if deviations.size else 1.0


def has_constant_column(data: Dataset) -> bool:
    """Return whether a column is constant, or indicators of categories add up to one."""
    if data.columns is not None and not data.columns.are_numbers.all():
        return True
    ends = (data.X.min(axis=0), data.X.max(axis=0))
    low, high = (end if isinstance(end, np.ndarray) else end.toarray() for end in ends)
    return bool(((low == high) & (low != 0)).any())


def _dense_columns(data: Dataset, where: NDArray[np.bool_]) -> NDArray[np.float64]:
    part: Any = data.X[:, where]
    return part if isinstance(part, np.ndarray) else np.asarray(part.toarray())


def _read_delimited(path: Path, kind: str) -> DataFrame:
    import pandas as pd

    try:
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="") as file:
            head = [line for line in (file.readline(10**6) for _ in range(2)) if line.strip()]
        separator = "\t" if kind == ".tsv" else ","
        if kind == ".csv" and head and head[0].count(";") > head[0].count(","):
            separator = ";"
        fields = list(csv.reader(head, delimiter=separator, skipinitialspace=True))
        header = bool(fields) and _is_header(fields)
        frame = pd.read_csv(
            path, sep=separator, header=0 if header else None, na_values=["?"],
            skipinitialspace=True, low_memory=False,
        )  # fmt: skip
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is not a text file in UTF-8") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: the file has no rows") from None
    except pd.errors.ParserError as error:
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if found is None:
            raise DataError(f"{path} is not a table: {error}") from None
        raise DataError(
            f"{path}, line {found[2]} has {found[3]} fields, but the lines before have {found[1]}"
        ) from None
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not header:
        frame.columns = [str(number + 1) for number in range(frame.shape[1])]
    elif len(set(fields[0])) < len(fields[0]):  # pandas would rename the second one
        repeated = next(each for each in fields[0] if fields[0].count(each) > 1)
        raise DataError(f"{path}: the column '{repeated.strip()}' occurs twice")
    elif not fields[0][0].strip() and np.array_equal(frame.iloc[:, 0], np.arange(len(frame))):
        frame = frame.iloc[:, 1:]  # the index that pandas writes
    return frame


def _is_header(lines: list[list[str]]) -> bool:
    """Check for a header: no numbers, and names that all differ or numbers in the last line."""
    if any(map(_is_number, lines[0])):
        return False
    return len(set(lines[0])) == len(lines[0]) or any(map(_is_number, lines[-1]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from None


def _read_npy(path: Path) -> NDArray[Any]:
    _require_file(path)
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not an array of numbers or text: {error}") from None
    return array


def _read_npz(path: Path, target: Any, client: Any) -> tuple[Any, Any, Any]:
    """Return rows, targets and clients of an archive, by their names or else by their shapes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an archive of arrays: {error}") from None
    listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    rows = [name for name, array in arrays.items() if array.ndim > 1]
    flat = [name for name, array in arrays.items() if array.ndim == 1]
    by_name = [name for name in flat if name.lower() in (*TARGET_NAMES, "targets", "labels")]
    owners = [name for name in flat if name.lower() in CLIENT_NAMES]
    if isinstance(target, str):
        by_name = [_column(target, flat, str(path), "target")]
    if isinstance(client, str):
        owners = [_column(client, flat, str(path), "client")]
    targets = by_name[:1] or [name for name in flat if name not in owners]
    if len(rows) != 1 or len(targets) != 1:
        raise DataError(f"{path} must hold rows X and targets y; it holds {listed or 'nothing'}")
    return (
        arrays[rows[0]],
        arrays[targets[0]] if target is None or isinstance(target, str) else target,
        arrays[owners[0]] if owners else client,
    )


def _unpack_bunch(bunch: Any, target: Any) -> tuple[Any, Any]:
    if isinstance(target, str) and hasattr(bunch, "frame") and bunch.frame is not None:
        return bunch.frame, target
    rows, values = bunch.data, bunch.target
    names = getattr(bunch, "feature_names", None)
    if not hasattr(rows, "columns") and isinstance(rows, np.ndarray) and names is not None:
        from pandas import DataFrame

        rows = DataFrame(rows, columns=list(names))
    labels = getattr(bunch, "target_names", None)
    if labels is not None and getattr(values, "dtype", np.dtype(float)).kind in "iu":
        codes = np.asarray(values)
        if len(labels) == len(np.unique(codes)) and 0 <= codes.min() <= codes.max() < len(labels):
            values = np.asarray(labels)[codes]
    return rows, values if target is None else target


def _unpack_items(items: Any, target: Any) -> tuple[Any, Any]:
    """Return rows and targets of a map-style PyTorch dataset: pairs by number."""
    if target is None and len(getattr(items, "tensors", ())) == 2:
        rows, values = items.tensors
        return np.asarray(rows), np.asarray(values)
    try:
        pairs = [items[i] for i in range(len(items))]
        rows = np.stack([np.asarray(pair[0], dtype=np.float64).ravel() for pair in pairs])
        values = [getattr(pair[1], "item", lambda pair=pair: pair[1])() for pair in pairs]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DataError(
            f"{type(items).__name__} is not a data set: a file, a table, a pair (X, y), or a "
            f"dataset of pairs (x, y) is needed ({error})"
        ) from None
    return rows, values if target is None else target
