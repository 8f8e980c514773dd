"""A step size per coordinate on the server: FedAdam, FedYogi, FedAdagrad (arXiv 2003.00295).

There is no bias correction, and v starts at tau^2, as in the paper.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from fedac.algorithms.record import State, Vector
from fedac.algorithms.server.rule import ServerRule
from fedac.require import require_fraction, require_positive


class Adaptive(ServerRule):
    """m <- b1 m - (1 - b1) delta, v by each rule, x <- x + gamma m/(sqrt(v) + tau)."""

    gamma: float
    b1: float
    tau: float
    keeps = ("m", "v")

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)
        require_fraction("b1", self.b1)
        require_positive("tau", self.tau)

    def start(self, x: Vector) -> State:
        """Start v at tau^2."""
        return 0 * x, 0 * x + self.tau**2

    @abstractmethod
    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return the next v, given delta^2."""

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, r: int) -> tuple[Vector, State]:
        """Divide the momentum by the size that moves usually have."""
        m, v = kept
        m = self.b1 * m - (1 - self.b1) * delta
        v = self.second_moment(v, delta**2)
        return x + self.gamma * m / (v**0.5 + self.tau), (m, v)


@dataclass(frozen=True)
class Adam(Adaptive):
    """v <- b2 v + (1 - b2) delta^2.

    Examples
    --------
    >>> Adam(gamma=1.0, b1=0.5, b2=0.75, tau=1.0).step(3.0, 2.0, (0.0, 0.0), None, 0)
    (2.5, (-1.0, 1.0))
    """

    gamma: float = 0.1
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction("b2", self.b2)

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Forget old squares at the rate b2."""
        return self.b2 * v + (1 - self.b2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """v <- v - (1 - b2) delta^2 sign(v - delta^2), with the numbers of Adam.

    Examples
    --------
    >>> Yogi(gamma=1.0, b1=0.5, b2=0.75, tau=1.0).step(3.0, 2.0, (0.0, 8.0), None, 0)[1]
    (-1.0, 7.0)
    """

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Go towards the square by a share of the square itself, never by a share of v."""
        sign = 1.0 * (v > square) - 1.0 * (v < square)
        return v - (1 - self.b2) * square * sign


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """v <- v + delta^2; no momentum by default, as in the paper.

    Examples
    --------
    >>> Adagrad(gamma=1.0, b1=0.5, tau=1.0).step(3.0, 2.0, (0.0, 5.0), None, 0)
    (2.75, (-1.0, 9.0))
    """

    gamma: float = 0.1
    b1: float = 0.0
    tau: float = 1e-3

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Add up all squares."""
        return v + square
