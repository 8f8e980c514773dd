# SPDX-License-Identifier: Apache-2.0
"""What the server knows about its clients: ids, examples, and which memory each of them has.

Flower draws new node ids for every run, but a client's ``partition-id`` stays the same. Clients are
sampled by this id, so a run is reproducible and a resumed run continues as if uninterrupted.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedac.errors import InputError
from fedac.federation.sampling import clients_in, participants
from fedac.flower._server.replies import MOST_EXAMPLES, Reply, as_client_id
from fedac.flower._server.waiting import send_and_wait
from fedac.flower._task import CLIENT, CONFIG, EXAMPLES, QUESTION, WEIGHT, MemoryVersion

log = logging.getLogger("flwr.fedac")


@dataclass
class KnownClients:
    """The clients of one run, as far as the server knows them.

    The server's control variate c is the sum of n_m c_m over all clients, divided by `total`, the
    sum of n_m. Here n_m is the weight of client m's last used reply, which is also the weight of
    c_m in c. The same is true of FedDyn's z and z_m.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(8))  # a resumed run keeps its name
    ids: dict[int, int] = field(default_factory=dict)  # by node
    examples: dict[int, float] = field(default_factory=dict)  # by node, if the server asked
    used: dict[str, tuple[int, float]] = field(default_factory=dict)  # last round, weight, by `key`
    total: float = 0.0  # weight of all clients when c was last computed
    _asked: set[int] = field(default_factory=set, compare=False)

    def learn(self, node: int, client: str | None) -> None:
        """Record the client id that a node claims."""
        if client is not None:
            self.ids[node] = int(client)

    def name(self, node: int) -> str:
        """Return the name of a node in logs."""
        return f"node {node}" + f" (partition {self.ids.get(node)})" * (node in self.ids)

    def key(self, node: int) -> str:
        """Return the client id of a node as a string; without one, a name made of the node id."""
        return str(self.ids[node]) if node in self.ids else f"node {node}"

    def sample(self, nodes: Iterable[int], count: int, seed: int, r: int) -> list[int]:
        """Sample the nodes of round r, counted from 0, as the simulator does."""
        order = self.ordered(nodes)
        if count >= len(order):
            return order
        return [order[i] for i in participants(seed, r, N=len(order), count=count)]

    def sample_by_key(self, nodes: Iterable[int], count: int, key: str) -> list[int]:
        """Sample some of the nodes; the key seeds the draw."""
        order = self.ordered(nodes)
        return random.Random(key).sample(order, max(0, min(count, len(order))))

    def ordered(self, nodes: Iterable[int]) -> list[int]:
        """Sort nodes by client id; those without one come last, by node id."""
        return sorted(nodes, key=lambda n: (n not in self.ids, self.ids.get(n, n), n))

    def weigh(
        self, replies: Mapping[int, Reply], connected: Iterable[int], *, by_examples: bool
    ) -> tuple[dict[int, float], float]:
        """Return the weights of some replies, and the total weight of all clients.

        The total covers the clients of the replies, of earlier replies that were used, and of
        connected nodes. With weights by examples, a client whose number is unknown counts from its
        first reply on: until then it has c_m = 0, so c is still a mean of c_m.
        """
        order = sorted(replies, key=lambda n: (replies[n].node, n))
        weights = {n: replies[n].weight if by_examples else 1.0 for n in order}
        # In asynchronous rounds a client may reply twice; its last reply counts.
        members = {self.key(replies[n].node): weight for n, weight in weights.items()}
        absent = sum(weight for key, (_, weight) in self.used.items() if key not in members)
        idle = {self.key(node): node for node in connected}
        new = [node for key, node in idle.items() if key not in members.keys() | self.used.keys()]
        others = sum(self.examples.get(node, 0.0) if by_examples else 1.0 for node in new)
        return weights, sum(members.values()) + absent + others

    def memory_version(self, node: int) -> MemoryVersion:
        """Return the memory that a node should use."""
        return MemoryVersion(self.run, *self.used.get(self.key(node), (0, 0.0)))

    def use(self, server_round: int, weights: Mapping[int, float], total: float) -> None:
        """Record that a round used the replies of some nodes, with these weights."""
        now = {self.key(node): (server_round, weight) for node, weight in weights.items()}
        self.used, self.total = self.used | now, total

    def ask(
        self,
        grid: Grid,
        nodes: Iterable[int],
        seconds: float,
        config: Mapping[str, Any],
        *,
        sampled: bool,
        examples: bool,
    ) -> None:
        """Ask new nodes for their client ids, and optionally their numbers of examples."""
        new = [node for node in nodes if node not in self._asked]
        if not new:
            return
        questions = self.questions(new, config, examples=examples)
        replies, _ = send_and_wait(grid, questions, seconds, {})
        for node, reply in replies.items():
            self.hear(node, reply)
        silent = sum(node not in self.ids for node in new)
        if silent:
            log.warning(
                "%d of %d nodes did not report a client id, so %s: make the app with client_app, "
                "or call fedac.flower.tell_number(app)",
                silent, len(new),
                "sampling uses node ids, which Flower draws at random, and will not repeat"
                if sampled
                else "a client that returns as another node starts its memory again",
            )  # fmt: skip
        silent = sum(node not in self.examples for node in new)
        if examples and silent:
            log.warning(
                "%d of %d nodes did not report how many examples they have: they count among all "
                "clients from their first reply on. Make the app with client_app, or call "
                "fedac.flower.tell_number(app, examples=...)",
                silent, len(new),
            )  # fmt: skip

    def questions(
        self, nodes: Sequence[int], config: Mapping[str, Any], *, examples: bool
    ) -> list[Message]:
        """Return the messages that ask nodes for their client ids."""
        self._asked.update(nodes)
        record = ConfigRecord({**config, EXAMPLES: examples})
        return [Message(RecordDict({CONFIG: record}), node, QUESTION) for node in nodes]

    def hear(self, node: int, reply: Message) -> None:
        """Learn from the reply to a question."""
        if reply.has_error():
            return
        told = reply.content.config_records.get(CLIENT, ConfigRecord())
        self.learn(node, as_client_id(told.get(CLIENT)))
        count = told.get(WEIGHT)
        if isinstance(count, int | float) and 0 < count <= MOST_EXAMPLES:
            self.examples[node] = float(count)

    def to_json(self) -> dict[str, Any]:
        """Return the content for a checkpoint."""
        return {name: getattr(self, name) for name in ("run", "ids", "used", "total")}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> KnownClients:
        """Read the content of a checkpoint."""
        ids = {int(node): client for node, client in content["ids"].items()}
        used = {key: (number, weight) for key, (number, weight) in content["used"].items()}
        return cls(content["run"], ids, used=used, total=content["total"])


def require_sample(name: str, sample: float | None) -> float | None:
    """Return a number of nodes (an int), or a share of them (a float up to 1), or None."""
    share = isinstance(sample, float) and 0 < sample <= 1
    count = isinstance(sample, int) and not isinstance(sample, bool) and sample > 0
    if not (sample is None or share or count):
        raise InputError(f"{name} must be a number of nodes (10), or a share (0.1), got {sample!r}")
    return sample


def sample_size(sample: float | None, nodes: int) -> int:
    """Return how many of some nodes are in a sample; a share is rounded as in the simulator."""
    if sample is None:
        return nodes
    return clients_in(sample, nodes) if isinstance(sample, float) else int(sample)
