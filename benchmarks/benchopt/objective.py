# SPDX-License-Identifier: Apache-2.0
"""Logistic regression on many workers that communicate rarely."""

import numpy as np
from benchopt import BaseObjective

import fedac


class Objective(BaseObjective):
    """How close to the optimum a solver comes, and with how many rounds.

    A solver may use any library: it gets the data as X and y, the strength l2, how many workers
    there are and how many steps each takes between two rounds. ``run(rounds)`` runs
    that number of rounds; the result is the vector w.
    """

    name = "Logistic regression in few rounds"
    min_benchopt_version = "1.9"
    sampling_strategy = "iteration"
    requirements = ["pip::fedac"]
    parameters = {"l2": [1e-3], "workers": [64], "local_steps": [16]}
    test_config = {"workers": 4, "local_steps": 4}
    test_dataset_name = "synthetic"

    def set_data(self, X, y):
        self.X, self.y = X, y
        self.F = fedac.LogisticRegression(X, y, l2=self.l2)
        self.best = fedac.optimum(self.F).value

    def get_objective(self):
        sizes = {"l2": self.l2, "workers": self.workers, "local_steps": self.local_steps}
        return {"X": self.X, "y": self.y, **sizes}

    def evaluate_result(self, w):
        value = self.F.value(w)
        return {"value": value - self.best, "loss": value}

    def get_one_result(self):
        return {"w": np.zeros(self.X.shape[1])}
