"""Outer acceleration with growing weights (arXiv 2509.10439)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.record import State, Vector
from fedac.algorithms.server.rule import ServerRule
from fedac.require import require_positive


@dataclass(frozen=True)
class Accelerated(ServerRule):
    """In round r: u <- x - delta, z <- z - gamma (r+1)/2 delta, x <- (1-tau) u + tau z; output u.

    tau = 2/(r+3); x, u and z start at the same point.

    Examples
    --------
    >>> Accelerated(gamma=1.0).step(3.0, 0.5, (3.0, 3.0), None, 1)
    (2.5, (2.5, 2.5))
    """

    gamma: float = 1.0
    keeps = ("u", "z")

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    def start(self, x: Vector) -> State:
        """Start all sequences at the same point."""
        return x, x

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, r: int) -> tuple[Vector, State]:
        """Take a short step and a growing one, and go between them."""
        _, z = kept
        u = x - delta
        z = z - self.gamma * (r + 1) / 2 * delta
        tau = 2 / (r + 3)
        return (1 - tau) * u + tau * z, (u, z)

    def output(self, x: Vector, kept: State) -> Vector:
        """Return the sequence of short steps."""
        return kept[0]
