# SPDX-License-Identifier: Apache-2.0
"""A method of fedac as a solver, by its name."""

import numpy as np
from benchopt import BaseSolver

import fedac


class SimulatedSolver(BaseSolver):
    """Simulates ``algorithm``; a point of the curve is a run with a given number of rounds."""

    algorithm: str
    requirements = ["pip::fedac"]
    parameters = {"eta": [0.1, 0.5]}

    def set_objective(self, X, y, l2, workers, local_steps):
        self.F = fedac.LogisticRegression(X, y, l2=l2)
        self.M, self.K = workers, local_steps
        # The same draws for all solvers, others in every repetition.
        self.seed = self.get_seed(use_dataset=True, use_repetition=True)

    def warm_up(self):
        self.run_once(1)  # compiles

    def run(self, rounds):
        self.w = np.zeros(self.F.dim)
        if rounds:
            result = fedac.simulate(
                self.F, self.algorithm, M=self.M, K=self.K, T=rounds * self.K, eta=self.eta,
                start=self.w, seed=self.seed, record_every=rounds * self.K,
            )  # fmt: skip
            self.w = result.best.w

    def get_result(self):
        return {"w": self.w}
