"""The local steps of a NumPy client.

Steps are those of `fedac.algorithms`; this module has no formula of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.federation.sampling import sample_batch
from fedac.flower._arrays import NDArray
from fedac.flower._task import Task
from fedac.validate import require_count

# The arrays of one sequence, in the order of the strategy's initial arrays.
ArrayList = list[NDArray]
GradFn = Callable[[ArrayList, "Step"], Sequence[npt.ArrayLike]]


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

    `sequences` are what the algorithm works on, each a list of arrays; they are not changed.
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
