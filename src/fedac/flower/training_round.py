"""The training round in progress: who was asked, and who answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedac.flower.labels import Labels
from fedac.flower.messages import NamedArrays
from fedac.flower.replies import Reply
from fedac.flower.roster import Roster, count_of


@dataclass
class TrainingRound:
    """The training round in progress.

    Attributes
    ----------
    number : int
        Its number, from 1 on.
    sent : ArrayRecord
        All sequences, as sent to the clients; `before` has them as arrays.
    kept, labels : dict, Labels
        What the server kept to itself, and knew of the clients' memories, when the round began.
    quorum : int
        How many good replies it needs.
    attempts : int
        How many times nodes were asked.
    connected, asked : set of int
        All nodes that were seen in the round, and those that were asked.
    good : dict
        The good replies so far, by node.
    told : dict
        The round of the memory that each node was told to use, by node.
    foreign : set of int
        Nodes whose client does not seem to know our messages.
    finished : bool
        Whether the good replies were aggregated.
    """

    number: int
    sent: ArrayRecord
    before: NamedArrays
    kept: NamedArrays = field(default_factory=dict)
    labels: Labels = field(default_factory=Labels)
    quorum: int = 1
    attempts: int = 0
    connected: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    good: dict[int, Reply] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    finished: bool = False

    def choose(
        self, connected: Sequence[int], roster: Roster, *, sample: float | None, seed: int
    ) -> list[int]:
        """Return the nodes to ask in the next attempt; those that were not asked yet go first.

        The choice depends only on the seed, the round, the attempt and the numbers of the clients
        that are connected. If all of them are, the first one is the simulator's.
        """
        self.attempts += 1
        self.connected.update(connected)
        wanted = count_of(sample, len(connected)) - len(self.good)
        if self.attempts == 1:
            nodes = roster.draw(connected, wanted, seed, self.number - 1)
        else:
            key = f"{seed}/{self.number}/{self.attempts}"
            new = set(connected) - self.asked
            nodes = roster.draw_others(new, wanted, key)
            failed = set(connected) & self.asked - set(self.good)
            nodes += roster.draw_others(failed, wanted - len(nodes), key)
        self.asked.update(nodes)
        return sorted(nodes)

    def weigh(
        self, replies: Mapping[int, Reply], roster: Roster, *, examples: bool
    ) -> tuple[dict[int, float], float]:
        """Return how some replies count, by node, and how all clients do together.

        All clients are those of the replies, those whose replies were used before, and those that
        are connected. Where `examples` count, one that has not told them counts from its first
        reply on: until then it has c_m = 0, so c is a mean of c_m all the same.
        """
        labels = self.labels
        weights = {n: replies[n].weight if examples else 1.0 for n in sorted(replies)}
        members = {labels.name(node, replies[node].client) for node in replies}
        idle = {labels.name(node, roster.client(node)): node for node in self.connected}
        new = [node for name, node in idle.items() if name not in members | labels.used.keys()]
        others = [roster.examples.get(node, 0.0) if examples else 1.0 for node in new]
        return weights, sum(weights.values()) + labels.weight_without(members) + sum(others)

    @property
    def question(self) -> str:
        """What to ask if no client seems to know our messages, else nothing."""
        if self.good or not self.foreign:
            return ""
        return (
            "is the client made by client_app, or does it train in local_training and return "
            f"local.reply(...)? It was sent the arrays {', '.join(self.before)}"
        )
