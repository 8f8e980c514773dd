# SPDX-License-Identifier: Apache-2.0
"""Local momentum: clients send only the first sequence of a rule and keep its other sequences.

A client stores each of them as an offset from the value it would have in a run that starts at the
first sequence. For FedAc the offset is v = w - w_ag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector, override
from fedac.errors import InputError


def with_local_momentum(rule: Algorithm) -> Algorithm:
    """Return a rule whose clients send only the first sequence.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> mine = with_local_momentum(FEDAC_I)
    >>> mine.sequences, mine.local, mine.memory
    (('w_ag',), ('w_ag', 'w'), ('kept_w',))
    """
    first, *others = rule.sequences
    if not rule.is_plain:
        raise InputError(
            f"'local' does not work with '{rule.name}', which has its own enter or leave"
        )
    if not others:
        raise InputError(
            f"'local' needs a rule with several sequences, but '{rule.name}' has only one; use "
            "fedac-i, fedac-ii, fedac-vanilla, momentum or gpa"
        )
    return override(
        rule,
        _LocalMomentum(rule),
        sequences=(first,),
        local=rule.local_sequences,
        memory=tuple(f"kept_{name}" for name in others),
    )


@dataclass(frozen=True)
class _LocalMomentum:
    rule: Algorithm

    def start(self, w_0: Vector) -> State:
        return self.rule.start(w_0)[:1]

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        first, *others = self.rule.start(sequences[0])
        return first, *(fresh + kept for fresh, kept in zip(others, memory, strict=True))

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        _, *fresh = self.rule.start(local[0])
        return local[:1], tuple(now - new for now, new in zip(local[1:], fresh, strict=True))

    def output(self, state: State, hp: Any, t: int) -> Vector:
        return self.rule.output(self.rule.start(state[0]), hp, t)
