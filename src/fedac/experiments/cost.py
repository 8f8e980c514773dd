"""What a sweep costs: a model of how long the engine takes for a group of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedac.algorithms import Algorithm
from fedac.experiments.grid import Config
from fedac.objectives import Objective

# Seconds as measured on one machine with a9a, which has so many nonzeros per row and rows.
GROUP = 0.025  # one call of the engine
RECORD = 8e-5  # one loss of one run
ROUND = 1.3e-4  # one round of one algorithm
WORKER = 3e-7  # one worker in a round
DRAW = 2e-9  # one row of a batch
GRADIENT = 5.5e-8  # one local step of one worker, or one distinct row of a batch
A9A_NONZEROS, A9A_ROWS = 14, 32_561
# How much slower a step is, roughly, where only the reference engine can run the objective.
REFERENCE_ENGINE = 100


def predict_seconds(
    objective: Objective, algorithms: Mapping[str, Algorithm], configs: Sequence[Config]
) -> float:
    """Predict the time for some runs of one group: the proportions matter more than the seconds."""
    M, K, T = configs[0].M, configs[0].K, configs[0].T
    n = objective.n_samples
    X = getattr(objective, "X", None)
    nonzeros = objective.dim if X is None else X.size / n
    slower = REFERENCE_ENGINE if getattr(objective, "kernel", None) is None else 1
    row = slower * nonzeros / A9A_NONZEROS  # the cost of a row, compared with a row of a9a
    gradient = GRADIENT * row
    # A whole batch costs a gradient per distinct row; so many are expected.
    batch = ROUND + DRAW * M * K - gradient * n * math.expm1(-M * K / n)
    local = ROUND + WORKER * M + gradient * M * K
    names = {config.algorithm for config in configs}
    in_batch = sum(K == 1 or algorithms[name].minibatch for name in names)
    rounds = T // K * (in_batch * batch + (len(names) - in_batch) * local)
    records = len(configs) * (1 + math.ceil(T / max(K, configs[0].record_every)))
    return GROUP + records * RECORD * row * n / A9A_ROWS + rounds
