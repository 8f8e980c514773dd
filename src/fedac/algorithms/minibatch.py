# SPDX-License-Identifier: Apache-2.0
"""The minibatch baselines: one step per round on the mean gradient of M*K samples.

They take the steps of FedAvg and FedAc, but T/K of them (appendix "Additional setup details").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector, override
from fedac.algorithms.local.fedac import FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG

MB_SGD = replace(FEDAVG, name="mb-sgd", label="MB-SGD", minibatch=True)
"""Minibatch SGD: one step per round, on the mean of M K gradients."""
MB_AC_SGD = replace(FEDAC_VANILLA, name="mb-ac-sgd", label="MB-AC-SGD", minibatch=True)
"""Accelerated minibatch SGD: one accelerated step per round, on the mean of M K gradients."""


@cache  # one object per algorithm: engines group runs by algorithm
def on_clients(algorithm: Algorithm) -> Algorithm:
    """Return a minibatch algorithm in terms of client messages: receive w_md, send a gradient.

    Engines use it where messages are compressed one by one. The results are the same, except that
    with a decaying step size w_md lags one round behind.
    """
    return override(
        algorithm,
        _OnClients(algorithm),
        minibatch=False,
        sequences=("w_md",),
        server=algorithm.sequences,
        local=("w_md", "gradients"),
        changes=("w_md",),
    )


def takes_one_batch(algorithm: Algorithm) -> bool:
    """Return whether a client computes all gradients of a round as one batch.

    >>> takes_one_batch(MB_SGD), takes_one_batch(on_clients(MB_SGD)), takes_one_batch(FEDAVG)
    (True, True, False)
    """
    return algorithm.minibatch or isinstance(getattr(algorithm.enter, "__self__", 0), _OnClients)


@dataclass(frozen=True)
class _OnClients:
    rule: Algorithm

    def start(self, w_0: Vector) -> State:
        return (w_0, *self.rule.start(w_0))  # all sequences start equal, so w_md equals them

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        (w_md,) = sequences
        return w_md, 0 * w_md

    def query(self, local: State, hp: Any) -> Vector:
        return local[0]

    def update(self, local: State, w_md: Vector, g: Vector, hp: Any) -> State:
        return local[0], local[1] + g

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        return (local[1] / done.steps,), memory

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        after = self.rule.update(server, sequences[0], message[0], hp)
        return (self.rule.query(after, hp),), after

    def output(self, state: State, hp: Any, t: int) -> Vector:
        return self.rule.output(state[1:], hp, t)
