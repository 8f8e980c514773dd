"""Objectives by name, for the command line and for grids."""

from __future__ import annotations

from typing import Any

from fedac.errors import unknown_name
from fedac.objectives.least_squares import LeastSquares
from fedac.objectives.linear_model import LinearModel
from fedac.objectives.logistic import LogisticRegression
from fedac.objectives.squared_hinge import SquaredHinge

LOSSES: dict[str, type[LinearModel]] = {
    "logistic": LogisticRegression,
    "least-squares": LeastSquares,
    "squared-hinge": SquaredHinge,
}


def make(name: str, X: Any, y: Any, *, l2: float = 0.0, intercept: bool = False) -> LinearModel:
    """Build the objective with the loss called `name`, a key of `LOSSES`.

    Examples
    --------
    >>> F = make("least-squares", [[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> type(F).__name__, F.l2
    ('LeastSquares', 0.5)
    """
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    return LOSSES[name](X, y, l2=l2, intercept=intercept)
