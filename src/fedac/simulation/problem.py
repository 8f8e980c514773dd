"""What an engine gets, and what it yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.contract import couple
from fedac.algorithms.couplings import Hyperparameters
from fedac.arrays import Array
from fedac.decay import Decay
from fedac.objectives.base import Objective
from fedac.rounding import FLOAT32
from fedac.simulation.federation import Federation
from fedac.simulation.schedule import Schedule

# Beyond this size an iterate will overflow, in single and double precision alike.
DIVERGED = 1e10

ArrayState = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """One run among others on the same draws: an algorithm with its hyperparameters.

    Where the step size falls, `hp` is that of one round, and `at` gives the lane in another one.
    """

    algorithm: Algorithm
    hp: Hyperparameters
    eta: Decay | None = None  # a step size that falls, with the mu and K to couple it with
    mu: float = 0.0
    K: int = 1

    def at(self, r: int) -> Lane:
        """Return the lane in round r, counted from 0."""
        if self.eta is None:
            return self
        hp = couple(self.algorithm, eta=self.eta.at(r), mu=self.mu, K=self.K)
        return replace(self, hp=hp)

    def output(self, state: ArrayState, t: int) -> Array:
        """Return the point that is evaluated after t steps."""
        w: Array = self.algorithm.output(state, self.hp, t)
        return w

    def diverged(self, state: ArrayState, t: int) -> bool:
        """Say whether the query point or the output is out of bounds."""
        algorithm = self.algorithm
        with np.errstate(over="ignore", invalid="ignore"):
            sequences, _ = algorithm.split(state)
            local = algorithm.enter(sequences, algorithm.begin_memory(sequences), self.hp)
            points = (algorithm.query(local, self.hp), self.output(state, t))
        return not all(np.abs(point).max() <= DIVERGED for point in points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """All that determines a simulation, checked."""

    objective: Objective
    lanes: tuple[Lane, ...]
    federation: Federation
    schedule: Schedule
    start: Array
    records: frozenset[int]
    on_progress: Callable[[int], object]
    on_compile: Callable[[], object]
    wire: str = FLOAT32

    @property
    def rounds_messages(self) -> bool:
        """Whether messages lose digits on the wire, so that each client's own message counts."""
        return self.wire != FLOAT32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the server holds of a lane after a round; the last one if it diverged.

    An engine that evaluates many lanes at once also gives the loss of the lane's output.
    """

    lane: int
    step: int
    state: ArrayState
    diverged: bool = False
    loss: float | None = None
