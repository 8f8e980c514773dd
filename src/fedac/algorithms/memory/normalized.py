# SPDX-License-Identifier: Apache-2.0
"""FedNova: normalized averaging, for clients with different numbers of steps (arXiv 2007.07481)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, override
from fedac.algorithms.local.fedavg import FEDAVG
from fedac.errors import InputError


def with_normalized_moves(rule: Algorithm) -> Algorithm:
    """Return SGD whose moves are averaged per step, and then taken the mean number of steps.

    A client sends x + (y_m - x)/K_m, so that clients with more steps do not count more. With equal
    numbers of steps it is FedAvg.

    >>> fednova = with_normalized_moves(FEDAVG)
    >>> hp = fednova.couple(eta=0.5, mu=1.0, K=4)
    >>> fednova.leave((2.0,), (3.0,), (), hp, ClientWork(steps=4))
    ((2.75,), ())
    >>> fednova.serve((2.75,), (3.0,), (), hp, RoundInfo(steps=2))
    ((2.5,), ())
    """
    if rule.update is not FEDAVG.update:
        raise InputError(f"'fednova' needs the local rule fedavg, not '{rule.name}'")
    asks = tuple(dict.fromkeys((*rule.asks, "steps")))
    return override(rule, _NormalizedMoves(rule), asks=asks)


@dataclass(frozen=True)
class _NormalizedMoves:
    rule: Algorithm

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        message, memory = self.rule.leave(local, sequences, memory, hp, done)
        return self._scaled(message, sequences, 1 / done.steps), memory

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        mean, larger = self._scaled(message, sequences, this.steps), this.steps**2
        this = replace(this, spread=larger * this.spread, moved=larger * this.moved)
        return self.rule.serve(mean, sequences, server, hp, this)

    def _scaled(self, message: State, sequences: State, factor: Any) -> State:
        """Return a message whose points are moved `factor` times as far from the sequences."""
        (x, *_), (y, *others) = sequences, message
        return (x + factor * (y - x), *others)
