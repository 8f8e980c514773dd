# SPDX-License-Identifier: Apache-2.0
"""FedDyn: dynamic regularization (arXiv 2111.04263).

In round r client m minimizes f_m(y) - <h_m, y> + a/2 |y - x|^2 by local steps, and then updates
h_m <- h_m - a (y_m - x). The server keeps h, the weighted mean of all h_m, and moves to
mean(y_m) - h/a. At a fixed point all y_m are x and h_m is the gradient of f_m there, so x is the
pooled optimum.

Both are stored divided by -a: the client adds its moves, z_m <- z_m + (y_m - x), and the server
the mean move, z <- z + share mean(y_m - x). So h costs no bytes: it follows from the points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.algorithm import (
    Algorithm,
    ClientWork,
    RoundInfo,
    State,
    Vector,
    override,
    serve_mean,
)
from fedac.errors import InputError
from fedac.validate import require_positive


def with_feddyn(rule: Algorithm, a: float = 0.1) -> Algorithm:
    """Return a rule that steps with g - h_m + a (y - x), and has FedDyn's server step.

    >>> from fedac.algorithms import FEDAVG
    >>> feddyn = with_feddyn(FEDAVG, a=0.5)
    >>> hp = feddyn.couple(eta=0.5, mu=1.0, K=1)
    >>> local = feddyn.enter((3.0,), (2.0,), hp)  # x; z_m = -h_m/a
    >>> local  # y, a (z_m - x)
    (3.0, -0.5)
    >>> local = feddyn.update(local, 3.0, 1.0, hp)
    >>> local
    (2.0, -0.5)
    >>> feddyn.leave(local, (3.0,), (2.0,), hp, ClientWork(steps=1))
    ((2.0,), (1.0,))
    >>> feddyn.serve((2.0,), (3.0,), (2.0,), hp, RoundInfo(share=0.5))
    ((3.5,), (1.5,))
    """
    if len(rule.sequences) > 1 or rule.serve is not serve_mean:
        raise InputError(
            f"'feddyn' needs a local rule with one sequence, such as fedavg, not '{rule.name}'"
        )
    (name,) = rule.sequences
    return override(
        rule,
        _FedDyn(rule, require_positive("a of feddyn", a)),
        local=(*rule.local_sequences, "correction"),
        memory=(*rule.memory, "z_m"),
        server=("z",),
        echoes=(*rule.echoes, (name, "z_m")),  # z_m adds what the server received
        pooled=(("z", "z_m"),),
    )


@dataclass(frozen=True)
class _FedDyn:
    rule: Algorithm
    a: float

    def start(self, w_0: Vector) -> State:
        return (*self.rule.start(w_0), 0 * w_0)

    def first_memory(self, sequences: State) -> State:
        return (*self.rule.begin_memory(sequences), 0 * sequences[0])

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        *kept, z_m = memory
        return (*self.rule.enter(sequences, tuple(kept), hp), self.a * (z_m - sequences[0]))

    def query(self, local: State, hp: Any) -> Vector:
        return self.rule.query(local[:-1], hp)

    def update(self, local: State, w_md: Vector, g: Vector, hp: Any) -> State:
        *state, correction = local
        after = self.rule.update(tuple(state), w_md, g + self.a * w_md + correction, hp)
        return (*after, correction)

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        *kept, z_m = memory
        message, after = self.rule.leave(local[:-1], sequences, tuple(kept), hp, done)
        return message, (*after, z_m + (message[0] - sequences[0]))

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        (mean,), (x,), (z,) = message, sequences, server
        z = z + this.share * (mean - x)
        return (mean + z,), (z,)

    def output(self, state: State, hp: Any, t: int) -> Vector:
        return self.rule.output(state[:1], hp, t)
