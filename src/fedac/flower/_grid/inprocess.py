"""Copies of messages, as if they had travelled through a network.

The bytes of arrays are immutable and shared, so a copy of a large model costs next to nothing.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedac.flower._server.strategy import CLOCK_SKEW
from fedac.validate import require_count

if TYPE_CHECKING:
    from fedac.flower._grid.processes import Processes


def copy_message(message: Message) -> Message:
    """Return a message that has nothing in common with this one that anybody could change."""
    twin = _with_own_metadata(message)
    if message.has_content():
        twin.content = copy_records(message.content)
    return twin


def without_content(message: Message) -> Message:
    """Return a copy that is as good for replies, but small."""
    twin = _with_own_metadata(message)
    twin.content = RecordDict()
    return twin


def copy_records(records: RecordDict) -> RecordDict:
    """Return a copy of all records.

    Examples
    --------
    >>> from flwr.app import ConfigRecord
    >>> sent = RecordDict({"config": ConfigRecord({"widths": [8, 4]})})
    >>> copy_records(sent)["config"]["widths"].append(2)
    >>> sent["config"]["widths"]
    [8, 4]
    """
    return RecordDict({name: _copy_record(record) for name, record in records.items()})


def _with_own_metadata(message: Message) -> Message:
    twin = copy.copy(message)
    twin.__dict__["_metadata"] = copy.copy(message.metadata)
    return twin


def _copy_record(record: Any) -> Any:
    twin = record.copy()
    for key, value in record.items():
        if isinstance(record, ArrayRecord):
            twin.__dict__["_data"][key] = _copy_array(value)
        elif isinstance(value, list):
            twin.__dict__["_data"][key] = list(value)
    return twin


def _copy_array(array: Array) -> Array:
    # Not what Flower has cached in it, which cannot be pickled. Its fields have been checked.
    twin = Array.__new__(Array)
    fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    twin.__dict__.update(fields)
    return twin


# --- One call of a ClientApp, as Flower makes it: whatever happens, there is a reply.

App = Callable[[Message, Context], Message]


def call_app(app: App, message: Message, context: Context) -> tuple[Message, RecordDict]:
    """Return an app's reply, and the state of its node afterwards.

    A call that fails gives an error with the traceback and leaves the state as it was.
    """
    before = copy_records(context.state)
    try:
        reply = app(message, context)
        mine = isinstance(reply, Message) and reply.metadata.reply_to_message_id
        if mine != message.metadata.message_id:
            got = "another Message" if isinstance(reply, Message) else f"{reply!r:.80}"
            raise TypeError(
                f"a ClientApp must return Message(content, reply_to=message), not {got}"
            )
        return copy_message(reply), copy_records(context.state)
    except BaseException:  # sys.exit too: the node fails, not the federation
        return error_reply(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION), before


def error_reply(message: Message, code: int, reason: str | None = None) -> Message:
    """Return a reply with an error; its reason is the current exception unless one is given."""
    return Message(Error(code, reason or traceback.format_exc()), reply_to=message)


def take_identity() -> None:
    """Let this process make messages, as Flower does in the processes that it starts."""
    for name in ("_task_id", "_run_id", "_node_id"):
        if getattr(TaskIdentity, name) is None:
            setattr(TaskIdentity, name, SUPERLINK_NODE_ID)


# --- Who answers when: messages in background threads, in order, a few at a time.
#
# One at a time in threads, because client code was written for a process of its own: PyTorch's
# random
# numbers, say, are global. But a node that takes too long is left alone, and the next one starts.

log = logging.getLogger("flwr.fedac")

# A node may use this share of the time that is left until the deadline, and these seconds at least.
# Nodes that take longer could not all make it one after the other anyway.
SHARE, LEAST = 0.25, 1.0
TICK = 0.05  # seconds between two looks for nodes that take too long


@dataclass(eq=False)
class Turn:
    """A node's message, and what became of it. Nobody waits for its reply after `until`."""

    node: int
    message: Message
    until: float
    overdue: float = math.inf
    finished: bool = False
    reply: Message | None = None
    problem: BaseException | None = None

    def begin(self) -> None:
        """Note that the node starts to work."""
        now = time.monotonic()
        self.overdue = now + max(SHARE * (self.until - now), LEAST)


class Turns:
    """Gives every message its turn.

    Parameters
    ----------
    answer : callable
        ``answer(turn) -> reply``, called in a background thread; it calls ``turn.begin()``.
    side_by_side : int
        How many at a time. Two messages of the same node never are.
    """

    def __init__(self, answer: Callable[[Turn], Message | None], side_by_side: int) -> None:
        self._answer = answer
        self._side_by_side = side_by_side
        self._waiting: list[Turn] = []
        self._running: set[Turn] = set()
        self._left_alone: set[Turn] = set()
        self._changed = threading.Condition()

    def add(self, turns: Iterable[Turn]) -> None:
        """Queue up; return at once."""
        with self._changed:
            self._waiting += turns
            self._start()

    def wait(self, turns: Iterable[Turn], seconds: float) -> None:
        """Wait until all of these are finished or the time is up."""
        until, waited_for = time.monotonic() + seconds, list(turns)
        with self._changed:
            while not all(turn.finished for turn in waited_for):
                now = time.monotonic()
                if now >= until:
                    return
                self._leave_alone(now)
                self._changed.wait(min(until - now, TICK))

    def clear(self) -> None:
        """Forget those that have not started."""
        with self._changed:
            self._waiting.clear()

    def _start(self) -> None:
        while (turn := self._next()) is not None:
            threading.Thread(target=self._work, args=(turn,), daemon=True).start()

    def _next(self) -> Turn | None:
        """Return who starts now, if anybody may. The caller holds the lock, as for all of these."""
        if len(self._running) >= self._side_by_side:
            return None
        busy = {turn.node for turn in self._running | self._left_alone}
        turn = next((turn for turn in self._waiting if turn.node not in busy), None)
        if turn is not None:
            self._waiting.remove(turn)
            self._running.add(turn)
        return turn

    def _work(self, turn: Turn | None) -> None:
        while turn is not None:
            try:
                turn.reply = self._answer(turn)
            except BaseException as problem:  # for those who wait for it
                turn.problem = problem
            with self._changed:
                turn.finished = True
                self._running.discard(turn)
                self._left_alone.discard(turn)
                self._changed.notify_all()
                turn = self._next()

    def _leave_alone(self, now: float) -> None:
        """Let the next ones start beside those that take too long."""
        slow = {turn for turn in self._running if turn.overdue <= now} if self._waiting else set()
        for turn in slow:
            log.warning(
                "node %d takes long: the next one starts beside it. Where client code must not run "
                "side by side in threads, use workers=, or a longer deadline",
                turn.node,
            )
        self._running -= slow
        self._left_alone |= slow
        if slow:
            self._start()


# --- A whole federation in one process, or in a few: the fast way to simulate any Flower app.

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
            from fedac.flower._grid.processes import Processes

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
