# SPDX-License-Identifier: Apache-2.0
"""Server rules: how the server moves each sequence, given the mean move of the clients.

In all formulas delta = x - mean(clients), the pseudo-gradient of a sequence x.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from fedac.algorithms.algorithm import Algorithm, RoundInfo, State, Vector, override, serve_mean
from fedac.errors import InputError
from fedac.validate import require_fraction, require_positive

Moved = tuple[Vector, State]
"""The next value of a sequence, and the vectors that the server keeps for it."""


class ServerRule(ABC):
    """How the server moves one sequence.

    A rule is a frozen dataclass. Its fields are its numbers, in the order in which users type them.
    """

    keeps: ClassVar[tuple[str, ...]] = ()
    """Names of the vectors that the server keeps for each sequence, such as a momentum."""
    asks: ClassVar[tuple[str, ...]] = ()
    """What the rule needs to know of a round: see `Algorithm.asks`."""

    def start(self, x: Vector) -> State:
        """Return the kept vectors before the first round. Default: zeros."""
        return tuple(0 * x for _ in self.keeps)

    @abstractmethod
    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Return the next x and the kept vectors."""

    def output(self, x: Vector, kept: State) -> Vector:
        """Return the point to evaluate. Default: x."""
        return x


def with_server(rule: Algorithm, server: ServerRule) -> Algorithm:
    """Apply a server rule to every point of an algorithm."""
    if rule.minibatch or rule.serve is not serve_mean or rule.broadcast_only:
        raise InputError(f"'{rule.name}' cannot have a server rule")
    names = tuple(f"{name}_{kept}" for name in rule.points for kept in server.keeps)
    asks = tuple(dict.fromkeys((*rule.asks, *server.asks)))
    return override(rule, _Served(rule, server), server=names, asks=asks)


@dataclass(frozen=True)
class _Served:
    rule: Algorithm
    server: ServerRule

    def start(self, w_0: Vector) -> State:
        sequences = self.rule.start(w_0)
        points = [x for x, is_point in zip(sequences, self._are_points, strict=True) if is_point]
        return (*sequences, *(kept for x in points for kept in self.server.start(x)))

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        moved: list[Vector] = []
        left: list[Vector] = []
        for x, mean, kept in zip(sequences, message, self._by_sequence(server), strict=True):
            after, now = (
                (mean, ()) if kept is None else self.server.step(x, x - mean, kept, hp, this)
            )
            moved.append(after)
            left += now
        return tuple(moved), tuple(left)

    def output(self, state: State, hp: Any, t: int) -> Vector:
        S = len(self.rule.sequences)
        points = [
            x if kept is None else self.server.output(x, kept)
            for x, kept in zip(state[:S], self._by_sequence(state[S:]), strict=True)
        ]
        return self.rule.output(tuple(points), hp, t)

    @property
    def _are_points(self) -> list[bool]:
        return [name in self.rule.points for name in self.rule.sequences]

    def _by_sequence(self, server: State) -> list[State | None]:
        """Return the kept vectors of every sequence; None if it is not a point."""
        n, left = len(self.server.keeps), list(server)
        found: list[State | None] = []
        for is_point in self._are_points:
            found.append(tuple(left[:n]) if is_point else None)
            left = left[n:] if is_point else left
        return found


class _BuiltInRule(ServerRule):
    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            check = require_fraction if field.name in ("beta", "b1", "b2") else require_positive
            check(field.name, getattr(self, field.name))


@dataclass(frozen=True)
class ServerStep(_BuiltInRule):
    """x <- x - gamma delta."""

    gamma: float

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Move gamma times as far as the clients."""
        return x - self.gamma * delta, kept


@dataclass(frozen=True)
class Extrapolation(_BuiltInRule):
    """FedExP: x <- x - gamma delta; gamma grows with the clients' disagreement (arXiv 2301.09604).

    gamma = max(1, spread / (2 (moved + eps))), where `spread` is the weighted mean of the squared
    lengths of the moves and `moved` the squared length of their mean. The paper evaluates the mean
    of the last two iterates; here the output is the last one.
    """

    eps: float = 1e-3
    asks = ("moves",)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Move further the more the clients disagree, all points by the same factor."""
        gamma = this.spread / (2 * (this.moved + self.eps))
        return x - (1 + (gamma - 1) * (gamma > 1)) * delta, kept


@dataclass(frozen=True)
class Momentum(_BuiltInRule):
    """FedAvgM: u <- beta u + delta, x <- x - gamma u (arXiv 1909.06335)."""

    gamma: float = 1.0
    beta: float = 0.9
    keeps = ("u",)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Step along the heavy-ball momentum."""
        u = self.beta * kept[0] + delta
        return x - self.gamma * u, (u,)


@dataclass(frozen=True)
class Nesterov(_BuiltInRule):
    """DiLoCo's outer step: u <- beta u + delta, x <- x - gamma (beta u + delta) (arXiv 2311.08105).

    Examples
    --------
    >>> Nesterov(gamma=2.0, beta=0.5).step(3.0, 0.5, (1.0,), None, RoundInfo())
    (1.0, (1.0,))
    """

    gamma: float = 0.7
    beta: float = 0.9
    keeps = ("u",)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Step along the momentum with look-ahead."""
        u = self.beta * kept[0] + delta
        return x - self.gamma * (self.beta * u + delta), (u,)


@dataclass(frozen=True)
class SlowMo(_BuiltInRule):
    """u <- beta u + delta/eta, x <- x - alpha eta u (arXiv 1910.00643).

    Momentum in units of the clients' step size: FedAvgM if eta is constant.
    """

    alpha: float = 1.0
    beta: float = 0.7
    keeps = ("u",)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Keep the momentum as a sum of gradients."""
        u = self.beta * kept[0] + delta / hp.eta
        return x - self.alpha * hp.eta * u, (u,)


@dataclass(frozen=True)
class Accelerated(_BuiltInRule):
    """Outer acceleration with growing weights (arXiv 2509.10439).

    In round r = 0, 1, ...: u <- x - delta, z <- z - gamma (r+1)/2 delta, x <- (1-tau) u + tau z
    with tau = 2/(r+3). Output: u. All three start at the same point.
    """

    gamma: float = 1.0
    keeps = ("u", "z")

    def start(self, x: Vector) -> State:
        """Start u and z at x."""
        return x, x

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Interpolate between a short step and a growing one."""
        _, z = kept
        u = x - delta
        z = z - self.gamma * (this.number + 1) / 2 * delta
        tau = 2 / (this.number + 3)
        return (1 - tau) * u + tau * z, (u, z)

    def output(self, x: Vector, kept: State) -> Vector:
        """Return u."""
        return kept[0]


class Adaptive(_BuiltInRule):
    """m <- b1 m - (1 - b1) delta, x <- x + gamma m/(sqrt(v) + tau) (arXiv 2003.00295).

    Subclasses update v. As in the paper, v starts at tau^2 and there is no bias correction.
    """

    gamma: float
    b1: float
    tau: float
    keeps = ("m", "v")

    def start(self, x: Vector) -> State:
        """Start m at 0 and v at tau^2."""
        return 0 * x, 0 * x + self.tau**2

    @abstractmethod
    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return the next v, given delta^2."""

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo) -> Moved:
        """Step along the momentum, scaled per coordinate by the typical size of moves."""
        m, v = kept
        m = self.b1 * m - (1 - self.b1) * delta
        v = self.second_moment(v, delta**2)
        return x + self.gamma * m / (v**0.5 + self.tau), (m, v)


@dataclass(frozen=True)
class Adam(Adaptive):
    """v <- b2 v + (1 - b2) delta^2."""

    gamma: float = 0.1
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Average squares exponentially."""
        return self.b2 * v + (1 - self.b2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """v <- v - (1 - b2) delta^2 sign(v - delta^2), with Adam's defaults."""

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Move v towards the square by a fraction of the square."""
        sign = 1.0 * (v > square) - 1.0 * (v < square)
        return v - (1 - self.b2) * square * sign


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """v <- v + delta^2; no momentum by default, as in the paper."""

    gamma: float = 0.1
    b1: float = 0.0
    tau: float = 1e-3

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Sum all squares."""
        return v + square
