"""What the server asks a client to do in one round, and the local steps of a NumPy client.

An algorithm travels as the coefficients of its linear step, so a client needs no record of it, and
a record of your own works like a built-in one. Only numbers travel, never code. Steps are those of
`fedac.algorithms`; this module has no formula of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord

from fedac.algorithms import Algorithm
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.linear import Linear, from_linear, linear_form
from fedac.errors import InputError
from fedac.flower.messages import NDArray
from fedac.require import require_count
from fedac.sampling import sample_batch

# The arrays of one sequence, in the order of the strategy's initial arrays.
ArrayList = list[NDArray]
GradFn = Callable[[ArrayList, "Step"], Sequence[npt.ArrayLike]]
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
    round, local_steps, seed : int
        The round, from 1 on; K; the seed of the draws of all clients.
    first_step : int
        t of the first local step; the first step of the run is 0.

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


@dataclass(frozen=True, kw_only=True)
class Step:
    """A local step: everything a gradient may depend on besides the arrays.

    Attributes
    ----------
    t : int
        Its number, counted from the start of the run.
    seed : int
        The seed of the run.
    worker : int
        The client's number: its ``partition-id``, or without one its node id.
    """

    t: int
    seed: int
    worker: int

    def rows(self, n: int, size: int = 1) -> npt.NDArray[np.int64]:
        """Draw `size` rows of n with replacement, the same in every runtime.

        They are the batch that the simulator's client of this number draws at step t.

        Examples
        --------
        >>> Step(t=0, seed=1, worker=2).rows(100)
        array([49])
        """
        n, size = require_count("the number of rows", n), require_count("size", size)
        return sample_batch(self.seed, self.worker, self.t, n, size)


def local_steps(
    grad_fn: GradFn, sequences: Sequence[ArrayList], task: Task, *, worker: int = 0
) -> tuple[ArrayList, ...]:
    """Take the task's local steps over lists of NumPy arrays.

    `sequences` are the algorithm's, as broadcast, each a list of arrays; they are not changed.
    ``grad_fn(w_md, step)`` returns the gradients in the same order. `worker` is the client's
    number, for its draws.

    Examples
    --------
    Two steps of FedAvg on w^2/2:

    >>> from fedac.algorithms import FEDAVG
    >>> hp = FEDAVG.couple(eta=0.5, mu=1.0, K=2)
    >>> task = Task(algorithm=FEDAVG, hp=hp, round=1, first_step=0, local_steps=2, seed=0)
    >>> local_steps(lambda w, step: w, [[np.array([8.0])]], task)
    ([array([2.])],)
    """
    algorithm = task.algorithm
    # query and update get the sequences of one array at a time.
    states: list[tuple[Any, ...]] = list(zip(*sequences, strict=True))
    for t in range(task.first_step, task.first_step + task.local_steps):
        w_md = [np.asarray(algorithm.query(state, task.hp)) for state in states]
        step = Step(t=t, seed=task.seed, worker=worker)
        # Copies, because a gradient may be computed in place.
        gradients = _gradients(grad_fn([point.copy() for point in w_md], step), w_md)
        states = [
            algorithm.update(state, point, gradient, task.hp)
            for state, point, gradient in zip(states, w_md, gradients, strict=True)
        ]
    return tuple(
        [np.asarray(after, dtype=before.dtype) for before, after in zip(old, new, strict=True)]
        for old, new in zip(sequences, zip(*states, strict=True), strict=True)
    )


def _gradients(given: Sequence[npt.ArrayLike], w_md: ArrayList) -> ArrayList:
    if not isinstance(given, Sequence):
        raise InputError(f"the gradient must be a list of arrays, got {type(given).__name__}")
    shapes, wanted = [np.shape(g) for g in given], [point.shape for point in w_md]
    if shapes != wanted:
        raise InputError(f"the gradient has arrays of shapes {shapes}, not {wanted}")
    return [np.asarray(g, dtype=point.dtype) for g, point in zip(given, w_md, strict=True)]
