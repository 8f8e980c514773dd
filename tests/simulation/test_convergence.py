# SPDX-License-Identifier: Apache-2.0
"""Every algorithm on every objective, in one table."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

from fedac.algorithms import ALGORITHMS, fedac
from fedac.objectives import (
    Augmented,
    LeastSquares,
    LogisticRegression,
    NoisyQuadratic,
    Objective,
    SquaredHinge,
)
from fedac.simulation import Result, simulate

D = 8
rng = np.random.default_rng(12)
TRUTH = rng.standard_normal(D)
X = rng.standard_normal((400, D)) * (rng.random((400, D)) < 0.5)
SIGNS = np.where(X @ TRUTH + 0.5 * rng.standard_normal(400) > 0, 1.0, -1.0)

OBJECTIVES: dict[str, Objective] = {
    "logistic sparse": LogisticRegression(sp.csr_array(X), SIGNS, l2=0.05),
    "logistic dense": LogisticRegression(X, SIGNS, l2=0.05, intercept=True),
    "least squares": LeastSquares(X, X @ TRUTH + 0.1 * rng.standard_normal(400), l2=0.1),
    "squared hinge": SquaredHinge(sp.csr_array((X > 0).astype(float)), SIGNS, l2=0.1),
    "noisy quadratic": NoisyQuadratic(np.geomspace(0.2, 1.0, D), optimum=TRUTH, sigma=0.3),
    "augmented": Augmented(LogisticRegression(sp.csr_array(X), SIGNS), lam=0.05, center=TRUTH),
}

# By what factor the suboptimality of a start far away drops in 64 rounds of 8 steps. The noise
# of one row in a local step is what stops them; full acceleration feels it the most.
FACTORS = {
    "fedac-i": 500,
    "fedac-ii": 500,
    "fedac-vanilla": 150,
    "fedavg": 500,
    "fedavg-weighted": 1000,
    "mb-sgd": 1000,
    "mb-ac-sgd": 1000,
    "general": 300,
}


@cache
def _all_at_once(key: str) -> Result:
    """Run all algorithms, by the engine that a user gets."""
    objective = OBJECTIVES[key]
    L = objective.smoothness
    general = fedac(gamma=0.4 / L, alpha=2.0, beta=3.0, name="general")
    algorithms = [general if name == "general" else name for name in FACTORS]
    start = np.full(objective.dim, 5.0)
    eta = [0.2 / L, 0.1 / L, 0.3 / L]
    return simulate(
        objective, algorithms, M=32, K=8, T=512, eta=eta, start=start, seed=4, record_every=128
    )


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", FACTORS)
def test_suboptimality_drops(name: str, objective: str) -> None:
    result = _all_at_once(objective)
    run = result.runs[3 * list(FACTORS).index(name)]
    assert run.algorithm == name
    assert run.status == "ok"
    gap = result.suboptimality(run)
    assert gap[-1] < gap[0] / FACTORS[name]
    assert (gap > 0).all()


def test_the_table_is_complete() -> None:
    assert set(FACTORS) == {*ALGORITHMS, "general"}
