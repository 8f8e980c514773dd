"""Metrics on a test set, and the test set in the columns of a model."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.stats import rankdata

from fedac.errors import ColumnsWarning, InputError
from fedac.objectives.linear_model import PROBABILITIES, DataObjective, Matrix, as_rows
from fedac.validate import Array, as_data

# The metrics that a target may name, and whether larger is better.
METRICS = {"accuracy": True, "auc": True, "log-loss": False, "r2": True, "mae": False}


def accuracy(z: Array, y: Array) -> float:
    """Return the share of rows whose class has the largest margin, or whose margin has its sign."""
    right = z.argmax(axis=1) == y if z.ndim == 2 else y * z > 0
    return float(right.mean())


def auc(z: Array, y: Array) -> float:
    """Return the share of pairs of one row of each class in which the positive one is higher."""
    positive = y > 0
    ours, others = int(positive.sum()), int((~positive).sum())
    if not ours or not others:
        return math.nan
    ranks = float(rankdata(z)[positive].sum())
    return (ranks - ours * (ours + 1) / 2) / (ours * others)


def r2(prediction: Array, y: Array) -> float:
    """Return the share of the targets' variance that predictions explain."""
    total = float(((y - y.mean()) ** 2).sum())
    return 1 - float(((y - prediction) ** 2).sum()) / total if total else math.nan


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A test set in the columns of a model.

    Examples
    --------
    >>> from fedac.objectives import LogisticRegression
    >>> F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> test = HeldOut.of(F, [[3.0, 0.0], [3.0, 1.0]], [1.0, -1.0])
    >>> test.evaluate(np.array([1.0, -1.0]))["accuracy"]
    0.5
    """

    model: DataObjective
    X: Matrix
    y: Array

    @classmethod
    def of(cls, model: DataObjective, X: Any, y: npt.ArrayLike) -> HeldOut:
        """Fit rows to a model; sparse ones may have fewer or more columns."""
        rows = as_rows(X, intercept=False)
        n, given = rows.shape
        columns = model.X.shape[1] - model.intercept
        if np.shape(y) != (n,):
            raise InputError(f"the test set has {n} rows but labels of shape {np.shape(y)}")
        labels = as_data("y of the test set", y) if not model.classes else model.encode(y)
        if isinstance(rows, sp.csr_array):
            if given > columns:
                message = f"the test set has {given} columns, the data has {columns}: the rest is"
                warnings.warn(f"{message} ignored", ColumnsWarning, stacklevel=4)
            known = rows[:, :columns]
            arrays = (known.data, known.indices, known.indptr)
            rows = sp.csr_array(arrays, shape=(n, columns))
        elif given != columns:
            raise InputError(f"the test set has {given} columns, but the data has {columns}")
        return cls(model, as_rows(rows, intercept=model.intercept), labels)

    def evaluate(self, w: Array) -> dict[str, float]:
        """Return the mean loss of w, without the l2 term, and the metrics that fit the targets."""
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that diverges
            z = self.model.margins(w, self.X)
            values = {"loss": float(self.model.loss(z, self.y).mean())}
            if z.ndim == 2 or bool((np.abs(self.y) == 1).all()):
                values["accuracy"] = accuracy(z, self.y)
                if z.ndim == 1:
                    values["auc"] = auc(z, self.y)
            elif self.model.predicts:
                prediction = self.model.predict(z)
                values["r2"] = r2(prediction, self.y)
                values["mae"] = float(np.abs(self.y - prediction).mean())
        if self.model.predicts == PROBABILITIES:
            values["log-loss"] = values["loss"]
        return values
