# SPDX-License-Identifier: Apache-2.0
"""A whole federation in this process, or in a few worker processes, without Flower's deployment."""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import math
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import Array, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedac.errors import InputError
from fedac.flower._server.waiting import CLOCK_SKEW
from fedac.flower._virtual import VirtualClock, require_seconds
from fedac.processes import Handler, Pool, WorkerDiedError, usable_cores
from fedac.validate import require_count

log = logging.getLogger("flwr.fedac")

App = Callable[[Message, Context], Message]

# The next node starts in parallel when one has used this share of the time until the deadline, and
# at least LEAST_SECONDS. If several nodes took longer, not all could meet the deadline.
SHARE, LEAST_SECONDS = 0.25, 1.0
POLL_SECONDS = 0.05  # between two checks for overdue nodes


@dataclass(eq=False)
class Delivery:
    """A message on its way to a node and back. The server stops waiting for it at `deadline`."""

    node: int
    message: Message
    deadline: float
    overdue_at: float = math.inf
    overdue: bool = False
    finished: bool = False
    expires: bool = False  # in virtual time
    reply: Message | None = None
    problem: BaseException | None = None

    def begin(self) -> None:
        """Start the clock: the node begins to work."""
        now = time.monotonic()
        self.overdue_at = now + max(SHARE * (self.deadline - now), LEAST_SECONDS)


class InProcessGrid(Grid):
    """Simulate any Flower app in this process: no Ray, no network, no start-up time.

    Pass it to a strategy's ``start``, or to a ServerApp (``server_app(grid, context)``). Nodes see
    what they would see in Flower: their own ``context.state``, which persists between messages,
    copies of messages, node ids of 64 bits (the same in every run), and errors instead of replies
    when a client fails. Deadlines hold: the server never waits longer than it says.

    Without `workers`, nodes run one at a time in a background thread, so client code needs no
    locks and random numbers repeat. If a node uses more than a quarter of the time until the
    deadline (and more than a second), the next node starts in parallel, with a warning.

    Parameters
    ----------
    client_app : ClientApp
        The app that every node runs.
    nodes : int
        Number of nodes. The i-th of ``get_node_ids()`` gets ``partition-id`` i of
        ``num-partitions`` in its node_config.
    run_config : dict, optional
        What ``flwr run --run-config`` would set.
    workers : int, optional
        Number of parallel processes for the nodes, which share the cores. The app reaches them
        through cloudpickle. Any process may get any node's message, so keep state that must persist
        in ``context.state``. The first message waits until the processes are ready, which takes
        seconds and counts towards no deadline. They end with the grid, with ``close()``, and with
        this process.
    seconds : sequence or callable, optional
        Virtual time: how long every training takes, one number per partition or
        ``seconds(partition)``, called for each training. The strategy sees a reply at its end, and
        nobody really waits: deadlines, asynchronous rounds and the history are in virtual seconds.
        Everything else takes no time.

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

    # How long pull_messages waits for replies that have not arrived yet.
    pull_seconds = 0.1

    def __init__(
        self,
        client_app: App,
        nodes: int,
        *,
        run_config: Mapping[str, Any] | None = None,
        workers: int | None = None,
        seconds: Sequence[float] | Callable[[int], float] | None = None,
    ) -> None:
        require_count("nodes", nodes, least=0)
        if seconds is not None and not callable(seconds):
            if not isinstance(seconds, Iterable):
                raise InputError(f"seconds is a number for each node, got {seconds!r}")
            seconds = [require_seconds(each) for each in seconds]
            if len(seconds) != nodes:
                raise InputError(f"seconds has {len(seconds)} numbers for {nodes} nodes")
        self.clock: Any = time if seconds is None else VirtualClock(seconds)
        self.client_app = client_app
        self.run_config = dict(run_config or {})
        self.workers = None if workers is None else require_count("workers", workers)
        self.configs: dict[int, dict[str, Any]] = {
            _node_id(i): {"partition-id": i, "num-partitions": nodes} for i in range(nodes)
        }
        self.states: dict[int, RecordDict] = {}
        take_identity()
        self._run = Run.create_empty(TaskIdentity.run_id)
        self._message_numbers = itertools.count(1)
        self._pool: Pool | None = None
        self._pushed: dict[str, Delivery] = {}
        # Deliveries whose node has not started, and those whose node works; guarded by the lock.
        self._queue: list[Delivery] = []
        self._running: set[Delivery] = set()
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Discard messages that no node has started on, and end the worker processes."""
        with self._changed:
            self._queue.clear()
        if self._pool is not None:
            self._pool.close()

    def set_run(self, run: Run) -> None:
        """Set what `run` returns."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run; a placeholder with only an id until `set_run` is called."""
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
        """Send messages and return at once, with the ids of those whose node exists."""
        return self._push(messages, math.inf)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return each reply that has arrived once; for an expired message, an error.

        If some are missing, wait a moment for them, so that a polling server needs no pauses. In
        virtual time, those that have arrived are there at once.
        """
        if isinstance(self.clock, VirtualClock):
            return self.pull_ready(message_ids)
        return self._collect(message_ids, self.pull_seconds)

    def pull_ready(self, message_ids: Iterable[str]) -> list[Message]:
        """Return each reply that has arrived once, without waiting for others."""
        if isinstance(self.clock, VirtualClock):
            return self._collect(self.clock.due(message_ids), math.inf)
        return self._collect(message_ids, 0.0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return the replies that arrive within `timeout` seconds (default: all)."""
        seconds = math.inf if timeout is None else timeout
        return self._collect(self._push(messages, seconds), seconds)

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
        delivery = self._pushed.get(message.metadata.message_id)
        begin = delivery.begin if delivery is not None else lambda: None
        reply: Message
        if self._pool is None:
            begin()
            reply, self.states[node] = call_app(self.client_app, message, context)
            return reply
        # The state travels with the message: a process that is killed takes nothing with it.
        try:
            reply, self.states[node] = self._pool.call((message, context), on_begin=begin)
        except WorkerDiedError as died:
            reason = f"the process that ran this node died: {died}"
            reply = error_reply(message, ErrorCode.CLIENT_APP_CRASHED, reason)
        return reply

    def _push(self, messages: Iterable[Message], seconds: float) -> list[str]:
        """Queue messages; the server waits at most `seconds` for their replies."""
        if self.workers is not None:  # before any clock starts: imports count towards no deadline
            if self._pool is None:
                self._pool = make_pool(self.client_app, self.workers)
            self._pool.start(len(self.configs))
        pushed = {}
        for message in messages:
            node, ttl = message.metadata.dst_node_id, message.metadata.ttl
            if node not in self.configs:
                log.error("there is no node %d; its message is dropped", node)
                continue
            name = f"message-{next(self._message_numbers)}"
            message.metadata.__dict__["_message_id"] = name  # as Flower does
            left = ttl - CLOCK_SKEW if ttl > CLOCK_SKEW else ttl
            deadline = time.monotonic() + min(seconds, left)
            delivery = pushed[name] = Delivery(node, copy_message(message), deadline)
            training = message.metadata.message_type == MessageType.TRAIN
            if training and isinstance(self.clock, VirtualClock):
                partition = int(self.configs[node]["partition-id"])
                delivery.expires = not self.clock.begin(name, partition=partition, limit=left)
        self._pushed |= pushed
        with self._changed:
            self._queue += pushed.values()
            self._start_next()
        return list(pushed)

    def _collect(self, message_ids: Iterable[str], seconds: float) -> list[Message]:
        """Wait until all replies have arrived or the time is up; return what has arrived."""
        until = time.monotonic() + seconds
        waiting = {name: self._pushed[name] for name in message_ids if name in self._pushed}
        with self._changed:
            while not all(delivery.finished for delivery in waiting.values()):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._start_next()
                self._changed.wait(min(left, POLL_SECONDS))
        replies = []
        for name, delivery in waiting.items():
            if delivery.problem is not None:
                raise delivery.problem
            reply = delivery.reply
            if isinstance(self.clock, VirtualClock):
                if reply is None and not delivery.expires:
                    delivery.expires = True
                    self.clock.lose(name)
                    continue
                self.clock.forget(name)
            if delivery.expires or _expired(delivery.message):
                reply = error_reply(
                    delivery.message, ErrorCode.MESSAGE_UNAVAILABLE, "The message has expired."
                )
            if reply is not None:
                replies.append(reply)
                del self._pushed[name]
        return replies

    def _start_next(self) -> None:
        """Start the queued deliveries that may run now. The caller holds the lock."""
        now = time.monotonic()
        for running in self._running if self._queue else ():
            if running.overdue_at <= now and not running.overdue:
                running.overdue = True
                log.warning(
                    "node %d is slow: the next node starts in parallel. If client code must not "
                    "run in parallel threads, use workers= or a longer deadline",
                    running.node,
                )
        # One at a time without workers, because client code expects to be alone in its process:
        # PyTorch's random numbers, for example, are global. Never two messages of one node.
        for delivery in list(self._queue):
            if sum(not running.overdue for running in self._running) >= (self.workers or 1):
                return
            if all(running.node != delivery.node for running in self._running):
                self._queue.remove(delivery)
                self._running.add(delivery)
                threading.Thread(target=self._deliver, args=(delivery,), daemon=True).start()

    def _deliver(self, delivery: Delivery) -> None:
        """Get a node's reply, in a background thread."""
        # The reply may never be pulled, so keep little of the message. And clients may change it.
        message, delivery.message = delivery.message, copy_message(delivery.message, empty=True)
        try:
            late = delivery.expires or _expired(message)
            delivery.reply = None if late else self.answer(message)
        except BaseException as problem:  # a fault of the grid, raised where the reply is pulled
            delivery.problem = problem
        with self._changed:
            delivery.finished = True
            self._running.remove(delivery)
            self._start_next()
            self._changed.notify_all()


def call_app(app: App, message: Message, context: Context) -> tuple[Message, RecordDict]:
    """Call a ClientApp as Flower does; return its reply and the node's new state.

    If it fails, the reply is an error with the traceback, and the state is unchanged.
    """
    before = copy_records(context.state)
    try:
        reply = app(message, context)
        answered = isinstance(reply, Message) and reply.metadata.reply_to_message_id
        if answered != message.metadata.message_id:
            got = "another Message" if isinstance(reply, Message) else f"{reply!r:.80}"
            raise TypeError(
                f"a ClientApp must return Message(content, reply_to=message), not {got}"
            )
        return copy_message(reply), copy_records(context.state)
    except BaseException:  # even sys.exit: the node fails, not the federation
        return error_reply(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION), before


def error_reply(message: Message, code: int, reason: str | None = None) -> Message:
    """Return a reply with an error. Default reason: the current exception."""
    return Message(Error(code, reason or traceback.format_exc()), reply_to=message)


def take_identity() -> None:
    """Let this process create messages, as Flower does in the processes that it starts."""
    for name in ("_task_id", "_run_id", "_node_id"):
        if getattr(TaskIdentity, name) is None:
            setattr(TaskIdentity, name, SUPERLINK_NODE_ID)


def copy_message(message: Message, *, empty: bool = False) -> Message:
    """Copy a message as if it had crossed a network; an `empty` copy is only good for replies."""
    twin = copy.copy(message)
    twin.__dict__["_metadata"] = copy.copy(message.metadata)
    if empty:
        twin.content = RecordDict()
    elif message.has_content():
        twin.content = copy_records(message.content)
    return twin


def copy_records(records: RecordDict) -> RecordDict:
    """Copy all records. The bytes of arrays are immutable, so large models cost next to nothing."""
    copies: dict[str, Any] = {}
    for name, record in records.items():
        copies[name] = record.copy()
        values = copies[name].__dict__["_data"]
        for key, value in record.items():
            if isinstance(value, list):
                values[key] = list(value)
            elif isinstance(value, Array):
                # Without what Flower has cached in the array, which cannot be pickled.
                values[key] = Array.__new__(Array)
                fields = {k: getattr(value, k) for k in ("dtype", "shape", "stype", "data")}
                values[key].__dict__.update(fields)
    return RecordDict(copies)


def _expired(message: Message) -> bool:
    return message.metadata.created_at + message.metadata.ttl <= time.time()


def _node_id(number: int) -> int:
    """Return a node id: 64 bits as in Flower, but the same in every run."""
    digest = hashlib.sha256(f"fedac node {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def make_pool(app: App, count: int) -> Pool:
    """Return up to `count` processes that run a ClientApp; any of them may answer any message."""
    import cloudpickle

    try:
        pickled = cloudpickle.dumps(app)
    except Exception as problem:
        raise InputError(
            f"workers= sends the ClientApp to other processes, which failed: {problem}"
        ) from problem
    return Pool(make_handler, pickled, [max(1, usable_cores() // count)] * count)


def make_handler(pickled: bytes, _threads: int) -> Handler:
    """Load the app in a worker process; if that fails, every message gets an error."""
    take_identity()
    try:
        app: App = pickle.loads(pickled)
    except BaseException:  # importing the user's modules may raise anything
        code, problem = ErrorCode.LOAD_CLIENT_APP_EXCEPTION, traceback.format_exc()
        return lambda asked, _send: (error_reply(asked[0], code, problem), asked[1].state)
    return lambda asked, _send: call_app(app, *asked)
