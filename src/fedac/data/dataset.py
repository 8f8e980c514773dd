"""A data set for binary classification: rows, and a sign for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedac.errors import DataError
from fedac.validate import signs_advice

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# (negative, positive): the common ways to write two classes.
LABEL_PAIRS = ((-1.0, 1.0), (0.0, 1.0), (1.0, 2.0))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows ``X`` with labels ``y``.

    Parameters
    ----------
    name : str
        Name shown in reports and results.
    X : csr_array or ndarray of float64, shape (n_samples, n_features)
        Sparse rows, or dense rows in C order.
    y : ndarray of float64, shape (n_samples,)
        Labels, each -1 or +1.
    classes : pair of float
        The labels in the file, the negative one first.

    Examples
    --------
    >>> data = Dataset("tiny", np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([-1.0, 1.0]))
    >>> data.n_samples, data.n_features
    (2, 2)
    """

    name: str
    X: csr_array[np.float64, tuple[int, int]] | NDArray[np.float64]
    y: NDArray[np.float64]
    classes: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        rows = self.X.shape[0]
        if self.y.shape != (rows,):
            raise DataError(f"{self.name}: {rows} rows but labels of shape {self.y.shape}")
        if not np.all(np.abs(self.y) == 1.0):
            raise DataError(f"{self.name}: labels must be -1 and +1{signs_advice(self.y)}")

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])


def labels_to_signs(labels: ArrayLike, where: str) -> NDArray[np.float64]:
    """Map the two classes of ``labels``, {-1, +1}, {0, 1} or {1, 2}, to -1 and +1."""
    values = np.asarray(labels, dtype=np.float64)
    classes = np.unique(values).tolist()
    if tuple(classes) in LABEL_PAIRS:
        return np.where(values == classes[1], 1.0, -1.0)
    listed = ", ".join(f"{label:g}" for label in classes[:6]) + ", ..." * (len(classes) > 6)
    if len(classes) != 2:
        raise DataError(f"{where}: two classes are needed, found {len(classes)}: {listed}")
    raise DataError(
        f"{where}: labels are {{{listed}}}; accepted pairs: {{-1, +1}}, {{0, 1}}, {{1, 2}}"
    )
