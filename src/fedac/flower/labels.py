"""Which memory a client should use: that of its last reply which the server used.

A reply may be lost, late or dropped when the client has moved its memory already. So every memory
has a label, the run and the round that made it, and the server says which one it knows of.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedac.errors import InputError
from fedac.flower.replies import Reply

RUN = re.compile(r"[0-9a-f]{16}")  # it becomes part of a file's name on the client


@dataclass(frozen=True)
class Label:
    """What the server tells a node about its memory.

    Attributes
    ----------
    run : str
        The server's run.
    round : int
        The round of the last reply of this node that was used; 0 if there is none.
    elsewhere : dict
        The same of clients by number, for a node without such a round: it may be a client that
        came back as another node.

    Examples
    --------
    >>> Label("0" * 16, 0, {"7": 3}).of_client(7), Label("0" * 16, 5).of_client(7)
    (3, 5)
    >>> Label("0" * 16, 0, {"7": 3}).of_client(8) is None
    True
    """

    run: str
    round: int
    elsewhere: Mapping[str, int] = field(default_factory=dict)

    def of_client(self, number: int) -> int | None:
        """Return the round that made the memory to use, or None to begin one."""
        return self.round or self.elsewhere.get(str(number))

    def to_record(self) -> dict[str, Any]:
        """Return the entries of a task's record."""
        return {
            "memory_run": self.run,
            "memory_round": self.round,
            "memory_clients": list(self.elsewhere),
            "memory_rounds": list(self.elsewhere.values()),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Label | None:
        """Read the entries of a task's record, if they are there."""
        if "memory_run" not in record:
            return None
        run = record["memory_run"]
        if not (isinstance(run, str) and RUN.fullmatch(run)):
            raise InputError(f"the server's run must be 16 hexadecimal digits, got {run!r:.40}")
        pairs = zip(record["memory_clients"], record["memory_rounds"], strict=True)
        return cls(run, int(record["memory_round"]), dict(pairs))


@dataclass
class Labels:
    """What the server knows of all memories: its run, and the rounds of the replies it used.

    Attributes
    ----------
    run : str
        A random name, the same for a run and all that resume it.
    rounds : dict
        The round of the last used reply, by node.
    clients : dict
        The client's number, by node.

    Examples
    --------
    >>> labels = Labels()
    >>> labels.use(3, {11: Reply(1.0, {}, {}, client="0")})
    >>> labels.of_node(11).round
    3
    >>> labels.of_node(12).of_client(0)  # the client may have come back as node 12
    3
    """

    run: str = field(default_factory=lambda: secrets.token_hex(8))
    rounds: dict[int, int] = field(default_factory=dict)
    clients: dict[int, str] = field(default_factory=dict)

    def of_node(self, node: int) -> Label:
        """Return what to tell a node."""
        if node in self.rounds:
            return Label(self.run, self.rounds[node])
        latest: dict[str, int] = {}
        for other, client in self.clients.items():
            latest[client] = max(self.rounds[other], latest.get(client, 0))
        return Label(self.run, 0, latest)

    def use(self, server_round: int, replies: Mapping[int, Reply]) -> None:
        """Note that the replies of a round were used."""
        for node, reply in replies.items():
            self.rounds[node] = server_round
            if reply.client is not None:
                self.clients[node] = reply.client

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        nodes = [[node, number, self.clients.get(node)] for node, number in self.rounds.items()]
        return {"run": self.run, "nodes": nodes}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Labels:
        """Read what a checkpoint holds."""
        nodes: Iterable[tuple[int, int, str | None]] = content["nodes"]
        rounds = {node: number for node, number, _ in nodes}
        clients = {node: client for node, _, client in nodes if client is not None}
        return cls(content["run"], rounds, clients)
