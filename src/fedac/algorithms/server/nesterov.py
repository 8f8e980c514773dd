"""Nesterov's momentum on the server: the outer step of DiLoCo (arXiv 2311.08105)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.record import State, Vector
from fedac.algorithms.server.rule import ServerRule
from fedac.require import require_fraction, require_positive


@dataclass(frozen=True)
class Nesterov(ServerRule):
    """u <- beta u + delta, x <- x - gamma (beta u + delta).

    Examples
    --------
    >>> Nesterov(gamma=2.0, beta=0.5).step(3.0, 0.5, (1.0,), None, 0)
    (1.0, (1.0,))
    """

    gamma: float = 0.7
    beta: float = 0.9
    keeps = ("u",)

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)
        require_fraction("beta", self.beta)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, r: int) -> tuple[Vector, State]:
        """Look ahead along the momentum."""
        u = self.beta * kept[0] + delta
        return x - self.gamma * (self.beta * u + delta), (u,)
