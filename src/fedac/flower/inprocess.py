"""A federation in one process, for tests, figures and first steps: no Ray, no network."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedac.require import require_count

RAISED = 2  # Flower's code for a ClientApp that raised


class InProcessGrid(Grid):
    """Run a ClientApp for `nodes` nodes, one after the other, when their replies are pulled.

    Slow nodes are waited for: deadlines apply only in real federations. As in Flower, every node
    has a ``context.state`` of its own, which stays from message to message.

    Parameters
    ----------
    client_app : ClientApp
        The app that every node runs.
    nodes : int
        How many; node i+1 gets ``partition-id`` i of ``num-partitions`` in its node_config.
    run_config : dict, optional
        What ``flwr run --run-config`` would set.
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, *, run_config: Mapping[str, Any] | None = None
    ) -> None:
        require_count("nodes", nodes, least=0)
        self.client_app = client_app
        self.run_config = dict(run_config or {})
        self.configs: dict[int, dict[str, Any]] = {
            i + 1: {"partition-id": i, "num-partitions": nodes} for i in range(nodes)
        }
        self.states: dict[int, RecordDict] = {}
        self._ids = itertools.count(1)
        self._waiting: dict[str, Message] = {}
        # Flower builds messages only in a process that has an identity, as a ServerApp has.
        for name in ("_task_id", "_run_id", "_node_id"):
            if getattr(TaskIdentity, name) is None:
                setattr(TaskIdentity, name, 1)

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """There is no run record."""
        raise RuntimeError("an in-process federation has no run record")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message, the deprecated way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes' numbers, from 1 on."""
        return list(self.configs)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Store messages until their replies are pulled."""
        pushed = {f"message-{next(self._ids)}": message for message in messages}
        for name, message in pushed.items():
            message.metadata.__dict__["_message_id"] = name
        self._waiting |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Answer the messages that have no reply yet."""
        names = [name for name in message_ids if name in self._waiting]
        replies = [self.answer(self._waiting.pop(name)) for name in names]
        return [reply for reply in replies if reply is not None]

    def answer(self, message: Message) -> Message | None:
        """Return a node's reply, or None for no reply. Tests override it to inject faults."""
        node = message.metadata.dst_node_id
        if node not in self.configs:
            return None  # it has left
        context = Context(
            run_id=message.metadata.run_id,
            node_id=node,
            node_config=self.configs[node],
            state=self.states.setdefault(node, RecordDict()),
            run_config=self.run_config,
        )
        try:
            return self.client_app(message, context)
        except (Exception, SystemExit):  # as in Flower, it becomes an error reply
            return Message(Error(RAISED, traceback.format_exc()), reply_to=message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages and return all replies."""
        return self.pull_messages(self.push_messages(messages))
