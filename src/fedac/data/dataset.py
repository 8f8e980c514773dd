# SPDX-License-Identifier: Apache-2.0
"""A data set: rows, a target for each, and what is known about both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedac.data.clients import Clients, as_text, shorten
from fedac.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fedac.data.tables import Columns

BINARY, MULTICLASS, REAL = "binary", "multiclass", "real"
SIGNS = ((-1, 1), (0, 1))  # the usual ways to number two classes

# Whole numbers are classes if there are few of them, without gaps, each in several rows.
MOST_NUMBERED_CLASSES = 100
ROWS_PER_CLASS = 5
# More texts than this share of the rows are names or sentences rather than classes.
MOST_DISTINCT_TEXTS = 0.5
FEW_TEXTS = 20


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows ``X`` with targets ``y``; `fedac.load` makes one of nearly anything.

    Parameters
    ----------
    name : str
        Name shown in reports and results.
    X : csr_array or ndarray of float64, shape (n_samples, n_features)
        Sparse rows, or dense rows in C order.
    y : array of shape (n_samples,)
        Targets of any kind: two classes become -1 and +1, more become 0, 1, 2, ..., and other
        numbers stay as they are. See `kind`.
    classes : tuple, optional
        The labels of the classes, in order; () for real targets. `y` must be encoded already if
        they are given. Default: found in `y`.
    features : tuple of str
        The names of the columns, if they have names.
    clients : Clients, optional
        The clients that hold the rows.

    Examples
    --------
    >>> data = Dataset("mail", np.eye(3), ["ham", "spam", "ham"])
    >>> data
    Dataset(mail: 3 rows, 3 columns, 2 classes: ham, spam)
    >>> data.kind, data.y
    ('binary', array([-1.,  1., -1.]))
    """

    name: str
    X: csr_array[np.float64, tuple[int, int]] | NDArray[np.float64]
    y: NDArray[np.float64]
    classes: tuple[Any, ...] | None = None
    features: tuple[str, ...] = ()
    clients: Clients | None = None
    columns: Columns | None = None  # how a table became rows, to read a test set like it
    row_shape: tuple[int, ...] = ()  # of images, which X has as flat rows
    text: bool = False  # rows are characters, as numbers of their classes

    def __post_init__(self) -> None:
        rows = self.X.shape[0]
        if np.shape(self.y) != (rows,):
            raise DataError(f"{self.name}: {rows} rows but targets of shape {np.shape(self.y)}")
        if self.clients is not None and len(self.clients.rows) != rows:
            raise DataError(
                f"{self.name}: {rows} rows, but the clients hold {len(self.clients.rows)}"
            )
        if self.classes is None:
            if np.isin(np.asarray(self.y), (-1, 1)).all():  # perhaps only one of them
                y, classes = np.asarray(self.y, np.float64), (-1.0, 1.0)
            else:
                y, classes = encode_target(self.y, self.name)
            object.__setattr__(self, "y", y)
            object.__setattr__(self, "classes", classes)

    def __repr__(self) -> str:
        parts = [f"{self.n_samples:,} rows", f"{self.n_features:,} columns", self.describe_target()]
        if self.clients is not None:
            parts.append(f"{len(self.clients):,} clients")
        return f"Dataset({self.name}: {', '.join(parts)})"

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    @property
    def kind(self) -> str:
        """The kind of targets: ``"binary"``, ``"multiclass"`` or ``"real"``."""
        if not self.classes:
            return REAL
        return BINARY if len(self.classes) == 2 else MULTICLASS

    @property
    def labels(self) -> NDArray[Any]:
        """The targets as they were given."""
        if not self.classes:
            return self.y
        codes = self.y > 0 if self.kind == BINARY else self.y
        return np.array(self.classes)[codes.astype(np.intp)]

    def describe_target(self) -> str:
        """Describe the targets, such as ``10 classes: 0, 1, 2, 3, ...``."""
        if not self.classes:
            return f"real targets from {self.y.min():g} to {self.y.max():g}"
        if self.text:
            return f"{len(self.classes)} characters"
        few = [shorten(label) for label in as_text(np.array(self.classes[:4]))]
        more = ", ..." if len(self.classes) > 4 else ""
        return f"{len(self.classes)} classes: {', '.join(few)}{more}"

    def rows(self, which: NDArray[np.int64], name: str) -> Self:
        """Return some of the rows as a data set; their clients keep their names."""
        clients = self.clients
        if clients is not None:
            clients = clients.of_rows(which, self.labels[which])
        return replace(self, name=name, X=self.X[which], y=self.y[which], clients=clients)


def encode_target(
    values: Any, where: str, classes: tuple[Any, ...] | None = None
) -> tuple[NDArray[np.float64], tuple[Any, ...]]:
    """Return targets as numbers, and the labels of their classes; () if they are real.

    Two different values of any kind are classes, and so are texts, booleans, categories, and few
    whole numbers without gaps. Pass the training data's `classes` to encode a test set in the same
    way.
    """
    array, order = _as_array(values, where)
    if classes is not None:
        return _encode_like(array, where, classes), classes
    found = order if order is not None else tuple(np.unique(array).tolist())
    if len(found) < 2:
        what = f"every row has the target {found[0]!r}" if found else "there are no rows"
        raise DataError(f"{where}: {what}; two different ones are needed")
    if array.dtype.kind in "iuf" and len(found) > 2 and not _numbers_are_classes(array, found):
        return array.astype(np.float64), ()
    distinct = len(found)
    if array.dtype.kind == "U" and distinct > max(FEW_TEXTS, MOST_DISTINCT_TEXTS * len(array)):
        raise DataError(
            f"{where}: the target has {distinct} different texts in {len(array)} rows, too many "
            f"for classes, such as '{shorten(str(found[0]))}': choose another target column"
        )
    return _encode_like(array, where, found), found


def _as_array(values: Any, where: str) -> tuple[NDArray[Any], tuple[Any, ...] | None]:
    """Return targets as an array of numbers, booleans or text, and the order of categories."""
    order = None
    if hasattr(values, "cat"):  # a pandas column of categories
        order = tuple(values.cat.remove_unused_categories().cat.categories.tolist())
    if hasattr(values, "isna"):
        missing = np.flatnonzero(np.asarray(values.isna()))
    else:
        values = np.asarray(values)
        missing = np.flatnonzero(_is_missing(values))
    if len(missing):
        raise DataError(
            f"{where}, row {missing[0] + 1}: the target is missing"
            f"{f', as in {len(missing) - 1} more rows' if len(missing) > 1 else ''}; "
            "fill it in or drop these rows"
        )
    array = np.asarray(values)
    if array.dtype.kind == "S":
        array = np.array([value.decode(errors="replace") for value in array.tolist()])
    if array.dtype.kind == "O":
        kinds = {type(value) for value in array.flat}
        if kinds <= {str}:
            array = array.astype(str)
        elif kinds <= {bool, np.bool_}:
            array = array.astype(bool)
        elif all(issubclass(kind, int | float | np.number) for kind in kinds):
            array = array.astype(np.float64)
        else:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise DataError(f"{where}: targets must be numbers or labels of one type, got {names}")
    if array.dtype.kind not in "iufbU":
        raise DataError(f"{where}: targets must be numbers or labels, got {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{where}, row {np.argmin(np.isfinite(array)) + 1}: the target is infinite")
    return array, order


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    if values.dtype.kind == "O":
        return np.array([value is None or value != value for value in values.flat], np.bool_)
    return np.zeros(0, np.bool_)


def _numbers_are_classes(array: NDArray[Any], found: tuple[Any, ...]) -> bool:
    whole = array.dtype.kind in "iu" or all(float(value).is_integer() for value in found)
    return (
        whole
        and len(found) <= MOST_NUMBERED_CLASSES
        and found[-1] - found[0] == len(found) - 1
        and len(array) >= ROWS_PER_CLASS * len(found)
    )


def _encode_like(array: NDArray[Any], where: str, classes: tuple[Any, ...]) -> NDArray[np.float64]:
    """Return the class numbers of labels, or signs if there are two classes."""
    if not classes:
        if array.dtype.kind not in "iuf":
            raise DataError(f"{where}: numbers are needed, got targets such as {array[0]!r}")
        return array.astype(np.float64)
    if array.dtype.kind in "iuf" and tuple(classes) in SIGNS:  # {-1, +1} and {0, 1} are the same
        array = np.where(array == SIGNS[1 - SIGNS.index(tuple(classes))][0], classes[0], array)
    labels = np.array(classes)
    order = np.argsort(labels, kind="stable")
    try:
        place = np.searchsorted(labels[order], array).clip(max=len(labels) - 1)
        known = labels[order][place] == array
    except (TypeError, np.exceptions.DTypePromotionError):  # words among numbers
        known = np.zeros(len(array), np.bool_)
    if not np.all(known):
        row = int(np.argmin(known))
        listed = ", ".join(shorten(label) for label in as_text(labels[:6]))
        raise DataError(
            f"{where}, row {row + 1}: the label {array[row].item()!r} is not one of the training "
            f"data's: {listed}{', ...' if len(labels) > 6 else ''}"
        )
    codes: NDArray[np.float64] = order[place].astype(np.float64)
    return 2 * codes - 1 if len(classes) == 2 else codes
