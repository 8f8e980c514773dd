"""Momentum kept at home: of the sequences of a local rule only the first one travels.

The others stay on the client, as how far they are from where a fresh start would put them. For
FedAc that is v = w - w_ag.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector
from fedac.errors import InputError


def keep_at_home(rule: Algorithm) -> Algorithm:
    """Let only the first sequence of a rule travel.

    Examples
    --------
    >>> from fedac.algorithms import FEDAC_I
    >>> mine = keep_at_home(FEDAC_I)
    >>> mine.sequences, mine.local, mine.memory
    (('w_ag',), ('w_ag', 'w'), ('kept_w',))
    >>> mine.enter((3.0,), (0.5,), None)
    (3.0, 3.5)
    >>> mine.leave((2.0, 1.0), (3.0,), (0.5,), None, ClientWork(steps=4))
    ((2.0,), (-1.0,))
    """
    first, *others = rule.sequences
    if not rule.is_plain:
        raise InputError(f"'local' needs a rule without enter and leave of its own: '{rule.name}'")
    if not others:
        raise InputError(
            f"'local' keeps all but one sequence of a rule at home, but '{rule.name}' sends only "
            "one; use fedac-i, fedac-ii, fedac-vanilla, momentum or gpa"
        )
    mine = _AtHome(rule)
    return replace(
        rule,
        sequences=(first,),
        start=mine.start,
        output=mine.output,
        local=rule.local_sequences,
        memory=tuple(f"kept_{name}" for name in others),
        enter=mine.enter,
        leave=mine.leave,
    )


@dataclass(frozen=True)
class _AtHome:
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
