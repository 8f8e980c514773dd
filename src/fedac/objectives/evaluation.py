"""Test loss and test accuracy of a linear model."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedac.errors import ColumnsWarning, InputError
from fedac.objectives.linear_model import LinearModel, Matrix, as_rows
from fedac.validate import Array, as_data


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A test set in the columns of a model.

    Examples
    --------
    >>> from fedac.objectives import LogisticRegression
    >>> F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> test = HeldOut.of(F, [[3.0, 0.0], [3.0, 1.0]], [1.0, -1.0])
    >>> loss, accuracy = test.evaluate(np.array([1.0, -1.0]))
    >>> accuracy
    0.5
    """

    model: LinearModel
    X: Matrix
    y: Array

    @classmethod
    def of(cls, model: LinearModel, X: Any, y: npt.ArrayLike) -> HeldOut:
        """Fit rows to a model; sparse ones may have fewer or more columns."""
        rows, labels = as_rows(X, intercept=False), as_data("y of the test set", y)
        n, given = rows.shape
        columns = model.dim - model.intercept
        if labels.shape != (n,):
            raise InputError(f"the test set has {n} rows but labels of shape {labels.shape}")
        if model.needs_signs and not np.isin(labels, (-1.0, 1.0)).all():
            raise InputError(f"{type(model).__name__} needs labels -1 and +1 in the test set too")
        if isinstance(rows, sp.csr_array):
            if given > columns:
                warnings.warn(
                    f"the test set has {given} columns, the data has {columns}: the rest is "
                    "ignored",
                    ColumnsWarning,
                    stacklevel=4,
                )
            known = rows[:, :columns]
            arrays = (known.data, known.indices, known.indptr)
            rows = sp.csr_array(arrays, shape=(n, columns))
        elif given != columns:
            raise InputError(f"the test set has {given} columns, but the data has {columns}")
        return cls(model, as_rows(rows, intercept=model.intercept), labels)

    def evaluate(self, w: Array) -> tuple[float, float]:
        """Return the mean loss of w, without the l2 term, and its accuracy.

        The accuracy is NaN if the labels are not all -1 and +1.
        """
        z = self.X @ w
        signs = bool((np.abs(self.y) == 1).all())
        accuracy = float((self.y * z > 0).mean()) if signs else math.nan
        return float(self.model.loss(z, self.y).mean()), accuracy
