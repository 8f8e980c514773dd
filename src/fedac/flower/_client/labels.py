"""Which memory a client should use: that of its last reply which the server used.

A reply may be lost, late or dropped when the client has moved its memory already. So every memory
has a label, the run and the round that made it, and the server says which one it knows of.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from fedac.errors import InputError
from fedac.flower._server.replies import Reply

RUN = re.compile(r"[0-9a-f]{16}")  # it becomes part of a file's name on the client


@dataclass(frozen=True)
class Label:
    """What the server tells a node about its memory.

    Attributes
    ----------
    run : str
        The server's run.
    round : int
        The round of this client's last reply that was used; 0 if there is none.
    weight : float
        The number of examples that reply counted with; 0 if all clients count the same.
    """

    run: str
    round: int
    weight: float = 0.0

    def to_record(self) -> dict[str, Any]:
        """Return the entries of a task's record."""
        return {
            "memory_run": self.run,
            "memory_round": self.round,
            "memory_weight": float(self.weight),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Label | None:
        """Read the entries of a task's record, if they are there."""
        if "memory_run" not in record:
            return None
        run = record["memory_run"]
        if not (isinstance(run, str) and RUN.fullmatch(run)):
            raise InputError(f"the server's run must be 16 hexadecimal digits, got {run!r:.40}")
        return cls(run, int(record["memory_round"]), float(record["memory_weight"]))


@dataclass(frozen=True)
class Labels:
    """What the server knows of all memories: its run, and the last used reply of every client.

    The server's c is the sum of n_m c_m over all clients, divided by `total`, the sum of n_m. Here
    n_m is the weight of the client's last used reply: that is how much of its c_m is in c.

    Attributes
    ----------
    run : str
        A random name, the same for a run and all that resume it.
    clients : dict
        The client's number, by node.
    used : dict
        The round and the weight of the last used reply, by client (`name`).
    total : float
        The weight of all clients when c was last computed; 0 before the first round.

    Examples
    --------
    >>> replies = {11: Reply(30.0, {}, {}, client="0")}
    >>> labels = Labels().use(3, replies, {11: 30.0}, total=40.0)
    >>> labels.of_node(11).round, labels.of_node(12).round
    (3, 0)
    >>> labels.of_node(12, "0").round  # the client has come back as node 12
    3
    """

    run: str = field(default_factory=lambda: secrets.token_hex(8))
    clients: dict[int, str] = field(default_factory=dict)
    used: dict[str, tuple[int, float]] = field(default_factory=dict)
    total: float = 0.0

    def name(self, node: int, client: str | None = None) -> str:
        """Return a client's number, or that of its node if the client has not said its own."""
        return client or self.clients.get(node) or f"node {node}"

    def of_node(self, node: int, client: str | None = None) -> Label:
        """Return what to tell a node, whose client's number may be known."""
        return Label(self.run, *self.used.get(self.name(node, client), (0, 0.0)))

    def weight_without(self, members: Container[str]) -> float:
        """Return the weight of the clients with used replies that are not among the members."""
        return sum(weight for name, (_, weight) in self.used.items() if name not in members)

    def use(
        self,
        server_round: int,
        replies: Mapping[int, Reply],
        weights: Mapping[int, float],
        total: float,
    ) -> Labels:
        """Return the labels after a round that used these replies with these weights."""
        clients = {node: r.client for node, r in replies.items() if r.client is not None}
        used = {self.name(n, r.client): (server_round, weights[n]) for n, r in replies.items()}
        return Labels(self.run, self.clients | clients, self.used | used, total)

    def forget(self) -> Labels:
        """Return what the server knows when all clients begin their memories again."""
        return Labels(self.run, self.clients)

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "run": self.run,
            "clients": [*self.clients.items()],
            "used": [[name, *used] for name, used in self.used.items()],
            "total": self.total,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Labels:
        """Read what a checkpoint holds; before version 3 it was by node and had no weights."""
        nodes = sorted(content.get("nodes", ()), key=itemgetter(1))
        clients = {node: client for node, _, client in nodes if client is not None}
        labels = cls(content["run"], clients | dict(content.get("clients", ())))
        used = {labels.name(node): (number, 1.0) for node, number, _ in nodes}
        used |= {name: (number, weight) for name, number, weight in content.get("used", ())}
        return replace(labels, used=used, total=content.get("total", 0.0))
