"""A whole federation in one process, or in a few: the fast way to simulate any Flower app."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedac.flower.calls import App, call_app, error_reply, take_identity
from fedac.flower.copies import copy_message, without_content
from fedac.flower.strategy import CLOCK_SKEW
from fedac.flower.turns import Turn, Turns
from fedac.require import require_count

if TYPE_CHECKING:
    from fedac.flower.processes import Processes

log = logging.getLogger("flwr.fedac")


class InProcessGrid(Grid):
    """Simulate any Flower app here: no Ray, no network, no start-up time.

    Give it to a strategy's ``start``, or to a ServerApp (``server_app(grid, context)``). Nodes see
    what they would see in Flower: a ``context.state`` of their own that stays from message to
    message, copies of messages, node ids of 64 bits (the same in every run), and errors instead of
    replies where a client fails. Deadlines hold: the server waits no longer than it says.

    Without `workers`, nodes run one after the other in a background thread, so that client code
    needs no locks and random numbers repeat. A node that uses up a quarter of the time until the
    deadline (or a second, if that is longer) is left alone in its thread, and the next one starts
    beside it; a warning says so.

    Parameters
    ----------
    client_app : ClientApp
        The app that every node runs.
    nodes : int
        How many; the i-th of ``get_node_ids()`` gets ``partition-id`` i of ``num-partitions`` in
        its node_config.
    run_config : dict, optional
        What ``flwr run --run-config`` would set.
    workers : int, optional
        Run the nodes in so many processes side by side, which share the cores. The app reaches
        them by cloudpickle. Any of them may get a message of any node: what should stay, belongs
        in ``context.state``. The first message waits until they are ready, which takes seconds and
        counts towards no deadline. They end with the grid, with ``close()``, and with this process.

    Examples
    --------
    >>> from flwr.app import ConfigRecord
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> @app.query()
    ... def query(message, context):
    ...     return Message(RecordDict({"i": ConfigRecord(context.node_config)}), reply_to=message)
    >>> grid = InProcessGrid(app, nodes=2)
    >>> asked = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    >>> [dict(reply.content["i"]) for reply in grid.send_and_receive(asked)]
    [{'partition-id': 0, 'num-partitions': 2}, {'partition-id': 1, 'num-partitions': 2}]
    """

    # How long pull_messages waits for replies that are not there yet.
    pull_seconds = 0.1

    def __init__(
        self,
        client_app: App,
        nodes: int,
        *,
        run_config: Mapping[str, Any] | None = None,
        workers: int | None = None,
    ) -> None:
        require_count("nodes", nodes, least=0)
        self.client_app = client_app
        self.run_config = dict(run_config or {})
        self.workers = None if workers is None else require_count("workers", workers)
        self.configs: dict[int, dict[str, Any]] = {
            _node_id(i): {"partition-id": i, "num-partitions": nodes} for i in range(nodes)
        }
        self.states: dict[int, RecordDict] = {}
        take_identity()
        self._run = Run.create_empty(TaskIdentity.run_id)
        self._names = itertools.count(1)
        self._turns = Turns(self._take_turn, self.workers or 1)
        self._pushed: dict[str, Turn] = {}
        self._processes: Processes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the messages that no node has started with, and end the worker processes."""
        self._turns.clear()
        if self._processes is not None:
            self._processes.close()

    def set_run(self, run: Run) -> None:
        """Set what `run` returns."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run; as long as nobody sets one, it has a number and nothing else."""
        return self._run

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
        """Return the nodes' ids, in the order of their partitions."""
        return list(self.configs)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return at once, with the ids of those whose node exists."""
        return self._push(messages, math.inf)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there, each of them once; errors for messages that expired.

        If some are missing, wait a moment for them: a server that asks again and again needs no
        pauses of its own.
        """
        names = [name for name in message_ids if name in self._pushed]
        self._turns.wait((self._pushed[name] for name in names), self.pull_seconds)
        return self._collect(names)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return all replies, or those that are there after `timeout` seconds."""
        seconds = math.inf if timeout is None else timeout
        names = self._push(messages, seconds)
        self._turns.wait((self._pushed[name] for name in names), seconds)
        return self._collect(names)

    def answer(self, message: Message) -> Message | None:
        """Return a node's reply, or None for no reply. Tests override it to inject faults."""
        node = message.metadata.dst_node_id
        if node not in self.configs:
            return None  # it has left
        context = Context(
            run_id=message.metadata.run_id,
            node_id=node,
            node_config=dict(self.configs[node]),
            state=self.states.get(node, RecordDict()),
            run_config=dict(self.run_config),
        )
        turn = self._pushed.get(message.metadata.message_id)
        begin = turn.begin if turn is not None else lambda: None
        if self._processes is not None:
            reply, self.states[node] = self._processes.answer(message, context, begin)
        else:
            begin()
            reply, self.states[node] = call_app(self.client_app, message, context)
        return reply

    def _push(self, messages: Iterable[Message], seconds: float) -> list[str]:
        """Send messages whose replies nobody waits for after so many seconds."""
        if self.workers is not None:
            self._start_processes(self.workers)
        pushed = {}
        for message in messages:
            if message.metadata.dst_node_id not in self.configs:
                log.error(
                    "there is no node %d: its message is dropped", message.metadata.dst_node_id
                )
                continue
            name = f"message-{next(self._names)}"
            message.metadata.__dict__["_message_id"] = name  # as Flower does
            until = time.monotonic() + min(seconds, _seconds_left(message))
            pushed[name] = Turn(message.metadata.dst_node_id, copy_message(message), until)
        self._pushed |= pushed
        self._turns.add(pushed.values())
        return list(pushed)

    def _start_processes(self, count: int) -> None:
        """Wait for processes here, before any clock starts: no deadline is about our imports."""
        if self._processes is None:
            from fedac.flower.processes import Processes

            self._processes = Processes(self.client_app, count)
        self._processes.start(len(self.configs))

    def _collect(self, names: Iterable[str]) -> list[Message]:
        found = {name: _reply(self._pushed[name]) for name in names}
        replies = {name: reply for name, reply in found.items() if reply is not None}
        for name in replies:
            del self._pushed[name]
        return list(replies.values())

    def _take_turn(self, turn: Turn) -> Message | None:
        if _expired(turn.message):
            return None
        # Its reply may never be pulled, so keep little of it. And clients may change messages.
        message, turn.message = turn.message, without_content(turn.message)
        return self.answer(message)


def _reply(turn: Turn) -> Message | None:
    """Return what a server gets for its message now."""
    if turn.problem is not None:
        raise turn.problem
    if _expired(turn.message):
        return error_reply(turn.message, ErrorCode.MESSAGE_UNAVAILABLE, "The message has expired.")
    return turn.reply


def _expired(message: Message) -> bool:
    return message.metadata.created_at + message.metadata.ttl <= time.time()


def _seconds_left(message: Message) -> float:
    """Return how long the server waits for a reply, as far as the message says."""
    ttl = message.metadata.ttl
    return ttl - CLOCK_SKEW if ttl > CLOCK_SKEW else ttl


def _node_id(number: int) -> int:
    """Return a node's id: 64 bits, as Flower draws them, but the same in every run."""
    digest = hashlib.sha256(f"fedac node {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
