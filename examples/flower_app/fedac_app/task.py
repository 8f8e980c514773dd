"""The problem: which rows a client has, and what a gradient and a loss are."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from fedac import LogisticRegression, load
from fedac.data.registry import describe
from fedac.flower import Step


@lru_cache(maxsize=1)
def dataset(name: str):
    """Load a data set; "auto" is a9a if it lies on this machine, else generated data."""
    if name == "auto":
        local = {entry.name for entry in describe() if entry.where is not None}
        name = "a9a" if "a9a" in local else "synthetic"
    return load(name)


def objective(run_config: Mapping, part: int = 0, parts: int = 1) -> LogisticRegression:
    """Make the objective of one part of the rows, or of all."""
    data = dataset(str(run_config["dataset"]))
    rows = slice(part, None, parts) if run_config["split"] else slice(None)
    return LogisticRegression(data.X[rows], data.y[rows], l2=float(run_config["l2"]))


class Logistic:
    """One client's model: the arrays are a list of one vector."""

    def __init__(self, F: LogisticRegression) -> None:
        self.F = F
        self.n_examples = F.n_samples

    def gradient(self, w: list[np.ndarray], step: Step) -> list[np.ndarray]:
        (row,) = step.rows(self.F.n_samples)
        return [self.F.stochastic_gradient(w[0], row)]

    def evaluate(self, w: list[np.ndarray]) -> dict[str, float]:
        right = np.sign(self.F.X @ w[0]) == self.F.y
        return {"loss": self.F.value(w[0]), "accuracy": float(right.mean())}
