"""What a server rule is, and how it is put on an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedac.algorithms.algorithm import Algorithm, RoundInfo, State, Vector, serve_mean
from fedac.errors import InputError
from fedac.validate import require_fraction, require_positive


class ServerRule(ABC):
    """How the server moves one sequence, given how far the clients moved it.

    A rule is a frozen dataclass whose fields are its numbers, in the order in which they are typed.
    """

    keeps: ClassVar[tuple[str, ...]] = ()
    """The names of what the server keeps for each sequence."""

    def start(self, x: Vector) -> State:
        """Return what the server keeps before the first round; zeros unless a rule says more."""
        return tuple(0 * x for _ in self.keeps)

    @abstractmethod
    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
        """Return the next x, and what to keep."""

    def output(self, x: Vector, kept: State) -> Vector:
        """Return the point to evaluate."""
        return x


def with_server(rule: Algorithm, server: ServerRule) -> Algorithm:
    """Let a server rule move every sequence that an algorithm sends.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> from fedac.algorithms.server import Momentum
    >>> with_server(FEDAC_I, Momentum(gamma=1.0, beta=0.9)).server
    ('w_ag_u', 'w_u')
    """
    if rule.minibatch or rule.serve is not serve_mean:
        raise InputError(f"'{rule.name}' cannot be given a server rule")
    mine = _Served(rule, server)
    return replace(
        rule,
        server=tuple(f"{name}_{kept}" for name in rule.sequences for kept in server.keeps),
        start=mine.start,
        output=mine.output,
        serve=mine.serve,
    )


@dataclass(frozen=True)
class _Served:
    rule: Algorithm
    server: ServerRule

    def start(self, w_0: Vector) -> State:
        sequences = self.rule.start(w_0)
        return (*sequences, *(kept for x in sequences for kept in self.server.start(x)))

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        moved = [
            self.server.step(x, x - mean, kept, hp, this)
            for x, mean, kept in zip(sequences, message, self._by_sequence(server), strict=True)
        ]
        return tuple(x for x, _ in moved), tuple(vector for _, kept in moved for vector in kept)

    def output(self, state: State, hp: Any, t: int) -> Vector:
        S = len(self.rule.sequences)
        sequences, server = state[:S], self._by_sequence(state[S:])
        points = map(self.server.output, sequences, server)
        return self.rule.output(tuple(points), hp, t)

    def _by_sequence(self, server: State) -> list[State]:
        """Cut what the server keeps into what it keeps for each sequence."""
        n = len(self.server.keeps)
        return [server[n * s : n * (s + 1)] for s in range(len(self.rule.sequences))]


# --- A longer or shorter step than the mean.


@dataclass(frozen=True)
class Step(ServerRule):
    """x <- x - gamma delta.

    Examples
    --------
    >>> Step(2.0).step(3.0, 0.5, (), None, RoundInfo())
    (2.0, ())
    """

    gamma: float

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
        """Go gamma times as far as the clients did."""
        return x - self.gamma * delta, kept


# --- Heavy-ball momentum on the server: FedAvgM (arXiv 1909.06335).


@dataclass(frozen=True)
class Momentum(ServerRule):
    """u <- beta u + delta, x <- x - gamma u.

    Examples
    --------
    >>> Momentum(gamma=2.0, beta=0.5).step(3.0, 0.5, (1.0,), None, RoundInfo())
    (1.0, (1.0,))
    """

    gamma: float = 1.0
    beta: float = 0.9
    keeps = ("u",)

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)
        require_fraction("beta", self.beta)

    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
        """Add the clients' move to the momentum, and follow it."""
        u = self.beta * kept[0] + delta
        return x - self.gamma * u, (u,)


# --- Nesterov's momentum on the server: the outer step of DiLoCo (arXiv 2311.08105).


@dataclass(frozen=True)
class Nesterov(ServerRule):
    """u <- beta u + delta, x <- x - gamma (beta u + delta).

    Examples
    --------
    >>> Nesterov(gamma=2.0, beta=0.5).step(3.0, 0.5, (1.0,), None, RoundInfo())
    (1.0, (1.0,))
    """

    gamma: float = 0.7
    beta: float = 0.9
    keeps = ("u",)

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)
        require_fraction("beta", self.beta)

    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
        """Look ahead along the momentum."""
        u = self.beta * kept[0] + delta
        return x - self.gamma * (self.beta * u + delta), (u,)


# --- SlowMo: momentum in units of the clients' step size (arXiv 1910.00643).


@dataclass(frozen=True)
class SlowMo(ServerRule):
    """u <- beta u + delta/eta, x <- x - alpha eta u.

    With a constant step size it is FedAvgM; where eta falls, the momentum falls with it.

    Examples
    --------
    >>> from fedac.algorithms.hyperparameters import Hyperparameters
    >>> SlowMo(alpha=1.0, beta=0.5).step(3.0, 0.5, (2.0,), Hyperparameters(eta=0.25), RoundInfo())
    (2.25, (3.0,))
    """

    alpha: float = 1.0
    beta: float = 0.7
    keeps = ("u",)

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)
        require_fraction("beta", self.beta)

    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
        """Keep the momentum as a sum of gradients."""
        u = self.beta * kept[0] + delta / hp.eta
        return x - self.alpha * hp.eta * u, (u,)


# --- Outer acceleration with growing weights (arXiv 2509.10439).


@dataclass(frozen=True)
class Accelerated(ServerRule):
    """In round r: u <- x - delta, z <- z - gamma (r+1)/2 delta, x <- (1-tau) u + tau z; output u.

    tau = 2/(r+3); x, u and z start at the same point.

    Examples
    --------
    >>> Accelerated(gamma=1.0).step(3.0, 0.5, (3.0, 3.0), None, RoundInfo(number=1))
    (2.5, (2.5, 2.5))
    """

    gamma: float = 1.0
    keeps = ("u", "z")

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    def start(self, x: Vector) -> State:
        """Start all sequences at the same point."""
        return x, x

    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
        """Take a short step and a growing one, and go between them."""
        _, z = kept
        u = x - delta
        z = z - self.gamma * (this.number + 1) / 2 * delta
        tau = 2 / (this.number + 3)
        return (1 - tau) * u + tau * z, (u, z)

    def output(self, x: Vector, kept: State) -> Vector:
        """Return the sequence of short steps."""
        return kept[0]


# --- A step size per coordinate on the server: FedAdam, FedYogi, FedAdagrad (arXiv 2003.00295).
#
# There is no bias correction, and v starts at tau^2, as in the paper.


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

    def step(
        self, x: Vector, delta: Vector, kept: State, hp: Any, this: RoundInfo
    ) -> tuple[Vector, State]:
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
    >>> Adam(gamma=1.0, b1=0.5, b2=0.75, tau=1.0).step(3.0, 2.0, (0.0, 0.0), None, RoundInfo())
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
    >>> Yogi(gamma=1.0, b1=0.5, b2=0.75, tau=1.0).step(3.0, 2.0, (0.0, 8.0), None, RoundInfo())[1]
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
    >>> Adagrad(gamma=1.0, b1=0.5, tau=1.0).step(3.0, 2.0, (0.0, 5.0), None, RoundInfo())
    (2.75, (-1.0, 9.0))
    """

    gamma: float = 0.1
    b1: float = 0.0
    tau: float = 1e-3

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Add up all squares."""
        return v + square
