"""What the strategy's hooks remember of the training round in progress."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedac.flower.messages import NamedArrays, from_record
from fedac.flower.replies import Reply


@dataclass
class TrainingRound:
    """A round of training: who was asked, and who answered.

    Attributes
    ----------
    number : int
        The round, from 1 on.
    arrays : ArrayRecord
        All sequences, as sent to the clients; `before` has them as arrays.
    attempts : int
        How many times nodes were asked.
    asked : set of int
        The nodes that were asked.
    good : dict
        The good replies so far, by node.
    reasons : dict
        Why a node's last reply was not used, by node.
    bad : int
        How many replies were dropped.
    finished : bool
        Whether the good replies were a quorum and were aggregated.
    """

    number: int
    arrays: ArrayRecord
    before: NamedArrays = field(init=False)
    attempts: int = 0
    asked: set[int] = field(default_factory=set)
    good: dict[int, Reply] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    bad: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self.before = from_record(self.arrays)

    def choose(self, connected: Sequence[int], *, sample: int | None, seed: int) -> list[int]:
        """Return the nodes to ask in the next attempt; those that were not asked yet go first.

        The choice depends only on the seed, the round, the attempt and the connected nodes.
        """
        self.attempts += 1
        draw = random.Random(f"{seed}/{self.number}/{self.attempts}")
        new = sorted(set(connected) - self.asked)
        failed = sorted(set(connected) & self.asked - set(self.good))
        wanted = len(connected) if sample is None else sample - len(self.good)
        nodes = draw.sample(new, min(wanted, len(new)))
        nodes += draw.sample(failed, min(wanted - len(nodes), len(failed)))
        self.asked.update(nodes)
        return sorted(nodes)
