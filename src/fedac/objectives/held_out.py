"""Rows that a linear model was not trained on: its loss and accuracy there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedac.arrays import Array, as_numbers
from fedac.errors import InputError
from fedac.objectives.linear_model import LinearModel, Matrix, as_rows


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A test set for the points of a model, in the model's columns.

    Examples
    --------
    >>> from fedac.objectives import LogisticRegression
    >>> F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> test = HeldOut.of(F, [[3.0, 0.0], [3.0, 1.0]], [1.0, -1.0])
    >>> test.accuracy(np.array([1.0, -1.0]))
    0.5
    """

    model: LinearModel
    X: Matrix
    y: Array

    @classmethod
    def of(cls, model: LinearModel, X: Any, y: npt.ArrayLike) -> HeldOut:
        """Fit rows to a model: columns that it does not know have no weight, others are zeros."""
        rows, labels = as_rows(X, intercept=False), as_numbers("y", y)
        if labels.shape != rows.shape[:1]:
            raise InputError(f"the test set has {rows.shape[0]} rows but {len(labels)} labels")
        columns = model.dim - model.intercept
        if isinstance(rows, sp.csr_array):
            known = rows[:, :columns]
            arrays = (known.data, known.indices, known.indptr)
            rows = sp.csr_array(arrays, shape=(rows.shape[0], columns))
        else:
            rows = np.pad(rows[:, :columns], ((0, 0), (0, max(0, columns - rows.shape[1]))))
        return cls(model, as_rows(rows, intercept=model.intercept), labels)

    def loss(self, w: Array) -> float:
        """Return the mean loss of w, without the l2 term."""
        return float(self.model.loss(self.X @ w, self.y).mean())

    def accuracy(self, w: Array) -> float:
        """Return the share of rows whose sign w gets right; NaN if labels are not signs."""
        if not (np.abs(self.y) == 1).all():
            return math.nan
        return float((self.y * (self.X @ w) > 0).mean())
