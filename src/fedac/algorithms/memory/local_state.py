# SPDX-License-Identifier: Apache-2.0
"""The state of a local rule at the end of a round: reset, or averaged like the parameters.

Without these pieces AdamW's moments stay on the client, and momentum is averaged. `local` keeps
momentum on the client. `fedac.torch.synchronize(state=...)` uses the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.algorithm import (
    NUMBERS,
    Algorithm,
    ClientWork,
    RoundInfo,
    State,
    Vector,
    override,
)
from fedac.algorithms.memory.local_momentum import with_local_momentum
from fedac.errors import InputError


def with_reset(rule: Algorithm) -> Algorithm:
    """Return a rule that begins every round with a fresh state.

    >>> from fedac.algorithms import get
    >>> get("adamw+reset").memory, get("momentum+reset").sequences
    ((), ('w',))
    """
    _require_state(rule, "reset")
    if not rule.memory:
        if not rule.is_plain:
            raise InputError(f"'reset' does not work with '{rule.name}': its state is the server's")
        rule = with_local_momentum(rule)  # a client without memory starts afresh
    return override(rule, _Reset(rule), memory=(), first_memory=None)


def with_average(rule: Algorithm) -> Algorithm:
    """Return a rule whose clients send their state along; the server takes its mean.

    >>> from fedac.algorithms import get
    >>> get("adamw+average").sequences, get("adamw+average").memory
    (('w', 'm', 'v'), ('steps',))
    """
    _require_state(rule, "average")
    if not rule.memory:
        raise InputError(f"'{rule.name}' averages its state already: omit 'average'")
    # A number of steps is counted on the client and not averaged.
    counts = tuple(name for name in rule.memory if name in NUMBERS)
    moments = rule.memory[: len(rule.memory) - len(counts)]
    return override(
        rule,
        _Averaged(rule, len(moments)),
        sequences=(*rule.sequences, *moments),
        memory=counts,
        means=(*rule.means, *moments),
    )


def _require_state(rule: Algorithm, piece: str) -> None:
    if not rule.memory and len(rule.sequences) == 1:
        raise InputError(
            f"'{piece}' needs a local rule with state, such as adamw or momentum(0.9), but "
            f"'{rule.name}' has none"
        )


@dataclass(frozen=True)
class _Reset:
    rule: Algorithm

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        return self.rule.enter(sequences, self.rule.begin_memory(sequences), hp)

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        fresh = self.rule.begin_memory(sequences)
        message, _ = self.rule.leave(local, sequences, fresh, hp, done)
        return message, ()


@dataclass(frozen=True)
class _Averaged:
    """The memory of the rule becomes its last `moments` sequences."""

    rule: Algorithm
    moments: int

    def start(self, w_0: Vector) -> State:
        sequences, server = self.rule.split(self.rule.start(w_0))
        return (*sequences, *(0 * w_0 for _ in range(self.moments)), *server)

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        own, moments = self._split(sequences)
        return self.rule.enter(own, (*moments, *memory), hp)

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        own, moments = self._split(sequences)
        message, kept = self.rule.leave(local, own, (*moments, *memory), hp, done)
        return (*message, *kept[: self.moments]), kept[self.moments :]

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        (own, moments), (before, _) = self._split(message), self._split(sequences)
        after, server = self.rule.serve(own, before, server, hp, this)
        return (*after, *moments), server

    def output(self, state: State, hp: Any, t: int) -> Vector:
        sequences, server = state[: self._all], state[self._all :]
        return self.rule.output((*self._split(sequences)[0], *server), hp, t)

    @property
    def _all(self) -> int:
        return len(self.rule.sequences) + self.moments

    def _split(self, sequences: State) -> tuple[State, State]:
        """Return the sequences of the rule, and its moments."""
        S = len(self.rule.sequences)
        return sequences[:S], sequences[S:]
