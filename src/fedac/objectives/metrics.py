# SPDX-License-Identifier: Apache-2.0
"""Metrics on a test set, and the test set in the columns of a model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fedac.errors import ColumnsWarning, InputError
from fedac.objectives.linear_model import PROBABILITIES, DataObjective, Matrix, as_rows
from fedac.validate import Array, as_data


def accuracy(z: Array, y: Array) -> float:
    """Return the share of rows that are classified correctly."""
    right = z.argmax(axis=1) == y if z.ndim == 2 else y * z > 0
    return float(right.mean())


def auc(z: Array, y: Array) -> float:
    """Return the probability that a positive row has a larger margin than a negative one.

    A tie counts half.
    """
    positive, negative = z[y > 0], np.sort(z[y <= 0])
    if not positive.size or not negative.size or np.isnan(z).any():
        return math.nan
    positive.sort()  # faster to look up
    below = negative.searchsorted(positive)
    tied = negative[np.minimum(below, negative.size - 1)] == positive  # few: look only these up
    equal = negative.searchsorted(positive[tied], "right") - below[tied]
    return int(2 * below.sum() + equal.sum()) / 2 / (positive.size * negative.size)


def r2(prediction: Array, y: Array) -> float:
    """Return the share of the targets' variance that predictions explain."""
    total = float(((y - y.mean()) ** 2).sum())
    return 1 - float(((y - prediction) ** 2).sum()) / total if total else math.nan


def mae(prediction: Array, y: Array) -> float:
    """Return the mean absolute error."""
    return float(np.abs(y - prediction).mean())


class Metric(NamedTuple):
    """A metric that a target may name."""

    larger_is_better: bool
    function: Callable[[Array, Array], float] | None  # of predictions and targets; None: the loss


METRICS = {
    "accuracy": Metric(True, accuracy),
    "auc": Metric(True, auc),
    "log-loss": Metric(False, None),
    "r2": Metric(True, r2),
    "mae": Metric(False, mae),
    # Of networks, which compute their own metrics.
    "top-5": Metric(True, None),
    "perplexity": Metric(False, None),
    "client-loss-spread": Metric(False, None),
    "client-loss-worst": Metric(False, None),
}

# Points whose margins are computed together: faster than one by one, and they stay in the cache.
TOGETHER = 32

TITLES = {
    "auc": "AUC", "log-loss": "log loss", "r2": "R2", "mae": "MAE",
    "client-loss-spread": "client loss spread", "client-loss-worst": "worst-client loss",
}  # fmt: skip
"""How metrics are written, where not by their names."""


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
                message = (
                    f"the test set has {given} columns, the data has {columns}: extra ones are"
                )
                warnings.warn(f"{message} ignored", ColumnsWarning, stacklevel=4)
            known = rows[:, :columns]
            arrays = (known.data, known.indices, known.indptr)
            rows = sp.csr_array(arrays, shape=(n, columns))
        elif given != columns:
            raise InputError(f"the test set has {given} columns, but the data has {columns}")
        return cls(model, as_rows(rows, intercept=model.intercept), labels)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that fit the targets and exist on these rows."""
        binary = bool((np.abs(self.model.y) == 1).all())
        several = bool((self.y != self.y[0]).any())
        names = ["loss"]
        if self.model.dim > self.X.shape[1]:  # a column of parameters per class
            names += ["accuracy"]
        elif binary:
            names += ["accuracy", "auc"] if several else ["accuracy"]
        elif self.model.predicts:
            names += ["r2", "mae"] if several else ["mae"]
        return (*names, "log-loss") if self.model.predicts == PROBABILITIES else tuple(names)

    def evaluate(self, w: Array) -> dict[str, float]:
        """Return the mean loss of w, without the l2 term, and the metrics that fit the targets."""
        return {name: float(value) for name, (value,) in self.evaluate_all(w[None, :]).items()}

    def evaluate_all(self, W: Array) -> dict[str, Array]:
        """Return the metrics of every row of W."""
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that diverges
            parts = (self._margins(W[k : k + TOGETHER]) for k in range(0, len(W), TOGETHER))
            rows = [self._evaluate(z) for part in parts for z in part]
        return dict(zip(self.metrics, np.array(rows).T, strict=True))

    def _margins(self, W: Array) -> Iterable[Array]:
        """Return the margins of every row of W, bit for bit independent of its other rows."""
        if not isinstance(self.X, sp.csr_array):
            return (self.model.margins(w, self.X) for w in W)
        d = self.X.shape[1]
        columns = W.reshape(len(W), d, -1)  # of one parameter, or of one for each class
        Z = self.X @ columns.transpose(1, 0, 2).reshape(d, -1)
        Z = np.ascontiguousarray(Z.reshape(len(self.y), *columns.shape[::2]).transpose(1, 0, 2))
        return Z if columns.shape[2] > 1 else Z[:, :, 0]

    def _evaluate(self, z: Array) -> list[float]:
        model, prediction = self.model, self.model.predict(z)
        # The weights of a model belong to the rows of its own.
        unweighted = model.weights is None
        loss = model.mean_loss(z, self.y) if unweighted else float(model.loss(z, self.y).mean())
        functions = (METRICS[name].function if name in METRICS else None for name in self.metrics)
        return [function(prediction, self.y) if function else loss for function in functions]
