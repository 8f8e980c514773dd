"""What the server asks a client to do in one round.

An algorithm travels as the coefficients of its linear step, so a client needs no record of it, and
a record of your own works like a built-in one. Only numbers travel, never code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.linear import Linear, from_linear, linear_form
from fedac.errors import InputError

LARGEST_SEED = 2**63 - 1  # the largest integer of a ConfigRecord
COUNTS = ("round", "first_step", "local_steps", "seed")


@dataclass(frozen=True, kw_only=True)
class Task:
    """The local steps of one client in one round.

    Attributes
    ----------
    algorithm : Algorithm
        Whose `query` and `update` to call; on a client it is rebuilt from its coefficients.
    hp : Hyperparameters
        What `query` and `update` need.
    round : int
        From 1 on.
    first_step : int
        t of the first local step; the first step of the run is 0.
    local_steps : int
        K.
    seed : int
        Seed of the draws of all clients.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=8)
    >>> task = Task(algorithm=FEDAVG, hp=hp, round=2, first_step=8, local_steps=8, seed=1)
    >>> received = Task.from_record(task.to_record())
    >>> received.algorithm.update((3.0,), 3.0, 2.0, received.hp)
    (2.0,)
    """

    algorithm: Algorithm
    hp: Hyperparameters
    round: int
    first_step: int
    local_steps: int
    seed: int

    def to_record(self) -> ConfigRecord:
        """Return the task as a record of numbers and names."""
        step = linear_form(self.algorithm, self.hp)
        return ConfigRecord(
            {
                "algorithm": self.algorithm.name,
                "sequences": list(self.algorithm.sequences),
                "start": [float(value) for value in self.algorithm.start(1.0)],
                "query": list(step.query),
                "update": [number for row in step.update for number in row],
                "eta": float(self.hp.eta),
                **{name: getattr(self, name) for name in COUNTS},
            }
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Task:
        """Read a task, or say what is missing in its record."""
        try:
            sequences = tuple(record["sequences"])
            rows = np.reshape(record["update"], (len(sequences), -1)).tolist()
            step = Linear(query=tuple(record["query"]), update=tuple(map(tuple, rows)))
            return cls(
                algorithm=from_linear(record["algorithm"], sequences, record["start"], step),
                hp=Hyperparameters(eta=record["eta"]),
                **{name: record[name] for name in COUNTS},
            )
        except KeyError as missing:
            raise InputError(
                f"the server's message has no {missing}: does the server use a strategy of "
                "fedac.flower, and the same version as this client?"
            ) from None
