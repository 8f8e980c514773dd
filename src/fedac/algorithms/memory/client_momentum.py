# SPDX-License-Identifier: Apache-2.0
"""FedCM: momentum of the server inside the clients' steps (arXiv 2106.10874).

The server broadcasts D, the mean gradient that the clients of the last round stepped along, and
every local step goes along a g + (1 - a) D. With control variates it is SCAFFOLD-M
(arXiv 2306.16504): a (g - c_m + c) + (1 - a) D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector, override
from fedac.algorithms.local.fedavg import FEDAVG
from fedac.errors import InputError
from fedac.validate import require_positive


def with_client_momentum(rule: Algorithm, a: float = 0.1) -> Algorithm:
    """Return SGD that steps with a g + (1 - a) D instead of g.

    D is the clients' mean move divided by -eta and by their mean number of steps, whatever the
    server rule does with the move. Clients need not send it.

    >>> fedcm = with_client_momentum(FEDAVG, a=0.5)
    >>> hp = fedcm.couple(eta=0.5, mu=1.0, K=2)
    >>> local = fedcm.enter((3.0, 4.0), (), hp)  # x and D
    >>> fedcm.update(local, 3.0, 2.0, hp)
    (1.5, 4.0)
    >>> fedcm.serve((1.0,), (3.0, 4.0), (), hp, RoundInfo(steps=2))
    ((1.0, 2.0), ())
    """
    if rule.update is not FEDAVG.update:
        raise InputError(f"'fedcm' needs the local rule fedavg, not '{rule.name}'")
    if not 0 < require_positive("a of fedcm", a) <= 1:
        raise InputError(f"a of fedcm must be above 0 and at most 1, got {a:g}")
    return override(
        rule,
        _ClientMomentum(rule, a),
        sequences=(*rule.sequences, "D"),
        local=(*rule.local_sequences, "D"),
        broadcast_only=(*rule.broadcast_only, "D"),
        asks=tuple(dict.fromkeys((*rule.asks, "steps"))),
    )


@dataclass(frozen=True)
class _ClientMomentum:
    rule: Algorithm
    a: float

    def start(self, w_0: Vector) -> State:
        sequences, server = self.rule.split(self.rule.start(w_0))
        return (*sequences, 0 * w_0, *server)

    def first_memory(self, sequences: State) -> State:
        return self.rule.begin_memory(sequences[:-1])

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        *others, D = sequences
        return (*self.rule.enter(tuple(others), memory, hp), D)

    def query(self, local: State, hp: Any) -> Vector:
        return self.rule.query(local[:-1], hp)

    def update(self, local: State, w_md: Vector, g: Vector, hp: Any) -> State:
        *state, D = local
        return (*self.rule.update(tuple(state), w_md, self.a * g + (1 - self.a) * D, hp), D)

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        return self.rule.leave(local[:-1], sequences[:-1], memory, hp, done)

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        *others, _ = sequences
        after, server = self.rule.serve(message, tuple(others), server, hp, this)
        D = (others[0] - message[0]) / (this.steps * hp.eta)
        return (*after, D), server

    def output(self, state: State, hp: Any, t: int) -> Vector:
        S = len(self.rule.sequences)
        return self.rule.output((*state[:S], *state[S + 1 :]), hp, t)
