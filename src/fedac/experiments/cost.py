"""What a sweep costs: a model of how long the engine takes for a group of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedac.algorithms import Algorithm
from fedac.experiments.grid import Config
from fedac.objectives import Objective
from fedac.simulation.federation import FULL, taking_part

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
    config, n = configs[0], objective.n_samples
    K, T = config.K, config.T
    rows = rows_per_step(config, n)
    X = getattr(objective, "X", None)
    nonzeros = objective.dim if X is None else X.size / n
    slower = REFERENCE_ENGINE if getattr(objective, "kernel", None) is None else 1
    row = slower * nonzeros / A9A_NONZEROS  # the cost of a row, compared with a row of a9a
    gradient = GRADIENT * row
    # A whole batch costs a gradient per distinct row; so many are expected.
    batch = ROUND + DRAW * rows * K - gradient * n * math.expm1(-rows * K / n)
    workers = taking_part(config.participation, config.M) or config.M
    local = ROUND + WORKER * workers + gradient * rows * K
    names = {config.algorithm for config in configs}
    in_batch = sum(
        algorithms[name].minibatch or (K == 1 and algorithms[name].is_plain) for name in names
    )
    rounds = T // K * (in_batch * batch + (len(names) - in_batch) * local)
    records = len(configs) * (1 + math.ceil(T / max(K, config.record_every)))
    return GROUP + records * RECORD * row * n / A9A_ROWS + rounds


def queries(run: Any, n: int) -> int:
    """Return how many gradients of single rows a run takes, on average over who takes part.

    `run` is a `Config` or has its fields; the objective has n rows.
    """
    return round(rows_per_step(run, n) * int(run.T))


def rows_per_step(run: Any, n: int) -> float:
    """Return how many rows all who take part in a round use in one step."""
    workers = taking_part(run.participation, run.M) or run.M
    if run.batch != FULL:
        return workers * int(run.batch)
    # Without clients all have the same rows, and one stands for all.
    return n * workers / run.M if run.split else n
