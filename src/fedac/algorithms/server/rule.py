"""What a server rule is, and how it is put on an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedac.algorithms.record import Algorithm, State, Vector, serve_mean
from fedac.errors import InputError


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
    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, r: int) -> tuple[Vector, State]:
        """Return the next x, and what to keep; r counts rounds from 0."""

    def output(self, x: Vector, kept: State) -> Vector:
        """Return the point to evaluate."""
        return x


def with_server(rule: Algorithm, server: ServerRule) -> Algorithm:
    """Let a server rule move every sequence that an algorithm sends.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> from fedac.algorithms.server.momentum import Momentum
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
        self, message: State, sequences: State, server: State, hp: Any, r: int, share: float
    ) -> tuple[State, State]:
        moved = [
            self.server.step(x, x - mean, kept, hp, r)
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
