# SPDX-License-Identifier: Apache-2.0
"""The problem: the rows of a client, their gradient and their loss."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from fedac import LogisticRegression, load
from fedac.flower import Step


@lru_cache(maxsize=1)
def dataset(name: str):
    return load(name)


def objective(run_config: Mapping, part: int = 0, parts: int = 1) -> LogisticRegression:
    """Return the objective of one part of the rows, or of all rows."""
    data = dataset(str(run_config["dataset"]))
    rows = slice(part, None, parts) if run_config["split"] else slice(None)
    return LogisticRegression(data.X[rows], data.y[rows], l2=float(run_config["l2"]))


class Logistic:
    """One client's model; its list of arrays holds one vector."""

    def __init__(self, F: LogisticRegression) -> None:
        self.F = F
        self.n_examples = F.n_samples

    def gradient(self, w: list[np.ndarray], step: Step) -> list[np.ndarray]:
        (row,) = step.rows(self.F.n_samples)
        return [self.F.stochastic_gradient(w[0], row)]

    def evaluate(self, w: list[np.ndarray]) -> dict[str, float]:
        right = np.sign(self.F.X @ w[0]) == self.F.y
        return {"loss": self.F.value(w[0]), "accuracy": float(right.mean())}
