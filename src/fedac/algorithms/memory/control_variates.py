# SPDX-License-Identifier: Apache-2.0
"""Control variates: SCAFFOLD when the local rule is SGD (arXiv 1910.06378).

Client m keeps c_m, the mean of its gradients in its last round. The server keeps c, the weighted
mean of all c_m. Clients add c - c_m to their gradients, so that all head for the same point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector, override


def with_control_variates(rule: Algorithm) -> Algorithm:
    """Return a rule that steps with g - c_m + c instead of g.

    A client also sends the change of c_m. With SGD this is SCAFFOLD, option II.

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> scaffold = with_control_variates(FEDAVG)
    >>> hp = scaffold.couple(eta=0.5, mu=1.0, K=1)
    >>> local = scaffold.enter((3.0, 1.0), (0.5,), hp)  # x and c; c_m
    >>> local = scaffold.update(local, 3.0, 2.0, hp)
    >>> local  # w, c - c_m, the sum of gradients
    (1.75, 0.5, 2.0)
    >>> scaffold.leave(local, (3.0, 1.0), (0.5,), hp, ClientWork(steps=1))
    ((1.75, 1.5), (2.0,))
    """
    return override(
        rule,
        _ControlVariates(rule),
        sequences=(*rule.sequences, "c"),
        local=(*rule.local_sequences, "correction", "gradients"),
        memory=(*rule.memory, "c_m"),
        changes=(*rule.changes, "c"),
        echoes=(*rule.echoes, ("c", "c_m")),  # otherwise c would drift away from the mean of c_m
    )


@dataclass(frozen=True)
class _ControlVariates:
    rule: Algorithm

    def start(self, w_0: Vector) -> State:
        sequences, server = self.rule.split(self.rule.start(w_0))
        return (*sequences, 0 * w_0, *server)

    def first_memory(self, sequences: State) -> State:
        *others, c = sequences
        return (*self.rule.begin_memory(tuple(others)), 0 * c)

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        *others, c = sequences
        *kept, c_m = memory
        return (*self.rule.enter(tuple(others), tuple(kept), hp), c - c_m, 0 * c)

    def query(self, local: State, hp: Any) -> Vector:
        return self.rule.query(local[:-2], hp)

    def update(self, local: State, w_md: Vector, g: Vector, hp: Any) -> State:
        *state, correction, gradients = local
        after = self.rule.update(tuple(state), w_md, g + correction, hp)
        return (*after, correction, gradients + g)

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        *state, _, gradients = local
        *kept, c_m = memory
        message, kept_now = self.rule.leave(tuple(state), sequences[:-1], tuple(kept), hp, done)
        mean = gradients / done.steps
        return (*message, mean - c_m), (*kept_now, mean)

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        *received, moved = message
        *others, c = sequences
        after, server = self.rule.serve(tuple(received), tuple(others), server, hp, this)
        return (*after, c + this.share * moved), server

    def output(self, state: State, hp: Any, t: int) -> Vector:
        S = len(self.rule.sequences)
        return self.rule.output((*state[:S], *state[S + 1 :]), hp, t)
