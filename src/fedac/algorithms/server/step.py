"""A longer or shorter step than the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.record import State, Vector
from fedac.algorithms.server.rule import ServerRule
from fedac.require import require_positive


@dataclass(frozen=True)
class Step(ServerRule):
    """x <- x - gamma delta.

    Examples
    --------
    >>> Step(2.0).step(3.0, 0.5, (), None, 0)
    (2.0, ())
    """

    gamma: float

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, r: int) -> tuple[Vector, State]:
        """Go gamma times as far as the clients did."""
        return x - self.gamma * delta, kept
