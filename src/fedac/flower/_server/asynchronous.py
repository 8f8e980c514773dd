# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds: nodes work at their own pace, the server steps after every Z good replies.

A node has one message at a time. It starts from the server's version of that moment; its reply
counts for the version at which it arrives (`fedac.federation.round.arrive`), and the node is idle
again. Free places go to idle nodes by the simulator's draws. Nodes whose reply was bad wait for the
next step of the server.

A node that is silent until the deadline, or that leaves, is lost: its place is given away. Flower
cannot take a message back, so the node gets no other one before the first has ended, and a late
reply still counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType

from fedac.errors import InputError
from fedac.federation.round import arrive, staleness_scale
from fedac.federation.sampling import start_draws, take
from fedac.flower._arrays import (
    NamedArrays,
    buffers_of,
    count_bytes,
    flatten,
    unflatten,
    with_prefix,
)
from fedac.flower._server.checkpoint import Checkpoint
from fedac.flower._server.hooks import RoundHooks, TrainingRound
from fedac.flower._server.replies import Reply
from fedac.flower._server.result import TRAIN, QuorumError, RoundSummary
from fedac.flower._server.round import FederationRun
from fedac.flower._server.waiting import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    post,
    pull_ready,
    wait_for_nodes,
)
from fedac.flower._task import ROUND

HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


@dataclass(eq=False)
class Assignment:
    """The work of a node: the version that it started from, and the memories named to it."""

    node: int
    version: int  # steps that the server had taken
    sent: NamedArrays
    memory: int  # the number of the memory to use
    makes: int  # and of the one to make
    began: float
    lost: bool = False  # its place was given away
    void: bool = False  # it would add to a control variate that has begun again


class AsynchronousRun(FederationRun):
    """One call of `LocalStrategy.start` with a mode such as "buffer(10)"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        strategy, mode = self.strategy, self.strategy.mode
        if self.wrapper is not None:
            raise InputError(f"mode='{mode}' takes no wrapper: a wrapper's hooks are for rounds")
        own = [n for n in HOOKS if getattr(type(strategy), n) is not getattr(RoundHooks, n)]
        if own:
            raise InputError(f"mode='{mode}' does not call {own[0]}, which your strategy overrides")
        self._at_work: dict[str, Assignment] = {}  # by message
        self._asked: dict[str, int] = {}  # new nodes that were asked for their client id
        self._idle: list[int] = []
        self._resting: list[int] = []  # until the next step of the server
        self._arrived: deque[Message] = deque()
        self._starts = 0
        self._last: dict[str, tuple[int, int]] = {}  # version and repetitions, by client
        self._buffer: Mapping[int, Reply] = {}  # of a checkpoint
        self._reset = self._began = False
        self._pause = FIRST_PAUSE
        self._seen = self.clock.monotonic()  # when somebody was last at work

    @property
    def _seconds(self) -> float:
        return min(self.strategy.deadline.seconds, self.timeout or math.inf)

    def _restore(self, found: Checkpoint) -> None:
        self._buffer, self._starts = found.buffer, found.starts["starts"]
        self._last = {key: (version, n) for key, (version, n) in found.starts["last"].items()}
        self._reset = found.starts["reset"]

    def _train(self, row: RoundSummary) -> ArrayRecord:
        """Give nodes work until Z good replies are there; return the server's step."""
        strategy = self.strategy
        training = strategy.begin_round(row.round, self._arrays)
        training.quorum, training.reset = int(strategy.mode.number), self._reset
        training.good, self._buffer = dict(self._buffer), {}
        row.attempts = 1
        if not self._began:
            self._begin_nodes()
        self._idle += self._resting
        self._resting.clear()
        while True:
            held = len(training.good)
            while self._arrived:
                self._take(row, training, self._arrived.popleft())
                if len(training.good) == training.quorum:
                    after = self._step(row, training)
                    if after is not None:
                        return after
            if len(training.good) > held:
                self._write_checkpoint()
            self._give_places(row)
            self._pull(row)

    def _begin_nodes(self) -> None:
        """Wait for the nodes, and learn their client ids."""
        self._began, strategy = True, self.strategy
        nodes = wait_for_nodes(self.grid, strategy.min_nodes, self._seconds)
        strategy.clients.ask(
            self.grid, nodes, self._seconds, self._entries(self._finished + 1), sampled=True,
            examples=strategy.asks_examples,
        )  # fmt: skip
        self._idle = strategy.clients.ordered(nodes)
        self._seen = self.clock.monotonic()

    def _entries(self, number: int) -> ConfigRecord:
        return ConfigRecord({**(self.train_config or {}), ROUND: number})

    def _pull(self, row: RoundSummary) -> None:
        """Pull the replies that are there, ordered by client; if there are none, pause."""
        pending = {name: work.node for name, work in self._at_work.items()} | self._asked
        replies = pull_ready(self.grid, pending) if pending else []
        row.bytes_up += count_bytes(replies)
        by_node = {}
        for reply in replies:
            # An error may come from the SuperLink; name the node instead.
            node = pending[reply.metadata.reply_to_message_id]
            reply.metadata.__dict__["_src_node_id"] = node
            by_node[node] = reply
        self._arrived.extend(by_node[node] for node in self.strategy.clients.ordered(by_node))
        if by_node:
            self._pause = FIRST_PAUSE
        else:
            self.clock.sleep(self._pause)
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)

    def _take(self, row: RoundSummary, training: TrainingRound, message: Message) -> None:
        """Check a reply and put it into the buffer; its node is idle again."""
        strategy, clients = self.strategy, self.strategy.clients
        name, node = message.metadata.reply_to_message_id, message.metadata.src_node_id
        if name in self._asked:
            clients.hear(node, message)
            del self._asked[name]
            self._idle.append(node)
            return
        work = self._at_work.pop(name)
        # Of several nodes with one client id, only the first may have its memory.
        lost = {work.node for work in self._at_work.values() if work.lost}
        others = {other for other in self._nodes() - lost if other < node}
        good, bad = strategy.check(
            [message], work.version + 1, work.sent, {node: work.memory}, others
        )
        if work.void and good:
            good, bad = {}, {node: "it began before all clients' control variates began again"}
        (self._idle if good or work.void else self._resting).append(node)
        if bad:
            if not work.lost:
                row.bad += 1
                strategy.drop(row.round, bad, during="training")
            return
        reply = good[node]
        stale = self._finished - work.version
        if stale:
            reply = replace(reply, arrays=self._moved(reply, work, training), staleness=stale)
        training.good[work.makes] = reply
        weight = reply.weight if strategy.weighting == "examples" else 1.0
        clients.use(work.makes, {node: weight}, clients.total)

    def _moved(self, reply: Reply, work: Assignment, training: TrainingRound) -> NamedArrays:
        """Return a stale reply's arrays as they count for the server's version."""
        algorithm = self.strategy.algorithm
        model = with_prefix(algorithm.sequences[0], work.sent)
        message = flatten(algorithm.sent, reply.arrays, model)
        old, now = (flatten(algorithm.sequences, a, model) for a in (work.sent, training.before))
        scale = staleness_scale(self._finished - work.version)
        with np.errstate(over="ignore", invalid="ignore"):  # the step's check finds it
            vectors = arrive(algorithm, message, old, now, scale)
            return buffers_of(reply.arrays) | unflatten(algorithm.sent, vectors, model)

    def _step(self, row: RoundSummary, training: TrainingRound) -> ArrayRecord | None:
        """Take the server's step, or None if that needs more replies."""
        strategy, clients = self.strategy, self.strategy.clients
        training.connected = self._nodes()
        replies = dict(training.good)
        after, metrics = strategy.take_step(training)
        for number in replies.keys() - training.good.keys():
            # Its client may work with the memory of the dropped message by now: that is lost.
            clients.used.pop(clients.key(replies[number].node), None)
            self._reset = training.reset = strategy.adds_up
        if after is None:
            row.bad += len(replies) - len(training.good)
            return None
        self._reset = False
        if strategy.adds_up and not clients.used:  # all control variates began again
            for work in self._at_work.values():
                work.void = True
        row.good = len(replies)
        row.staleness = sum(reply.staleness for reply in replies.values()) / len(replies)
        row.memory_lost = sum(reply.memory_lost for reply in replies.values())
        if metrics is not None:
            self.result.add_metrics(row, metrics, TRAIN)
        return after

    def _nodes(self) -> set[int]:
        """Return the nodes that are at work or may be."""
        return {*self._idle, *self._resting, *(work.node for work in self._at_work.values())}

    def _give_places(self, row: RoundSummary) -> None:
        """Notice nodes that are lost or new, and give free places to idle ones."""
        strategy, now = self.strategy, self.clock.monotonic()
        connected = set(self.grid.get_node_ids())
        for work in self._at_work.values():
            silent = now - work.began >= self._seconds
            if not work.lost and (silent or work.node not in connected):
                work.lost = True
                row.lost += 1
                reason = "no reply in time" if silent else "its node has left"
                strategy.drop(row.round, {work.node: reason}, during="training")
        self._idle = [node for node in self._idle if node in connected]
        self._resting = [node for node in self._resting if node in connected]
        new = sorted(connected - self._nodes() - {*self._asked.values()})
        if new:
            entries = self._entries(row.round)
            examples = strategy.asks_examples
            questions = strategy.clients.questions(new, entries, examples=examples)
            self._asked |= post(self.grid, questions)
        working = sum(not work.lost for work in self._at_work.values())
        free = len(connected) if strategy.concurrency is None else strategy.concurrency
        chosen: list[int] = []
        while self._idle and len(chosen) < free - working:
            (draw,) = start_draws(strategy.seed, [self._starts + len(chosen)])
            chosen.append(take(self._idle, int(draw) % len(self._idle)))
        self._post(row, chosen, now)
        if chosen or working:
            self._seen = now
        elif self._resting and row.attempts <= strategy.retries:
            row.attempts += 1
            self._idle, self._resting = self._resting, []
        elif self._resting or now - self._seen >= self._seconds:
            raise self._quorum_error(row)

    def _post(self, row: RoundSummary, nodes: Iterable[int], now: float) -> None:
        """Send nodes the server's version."""
        strategy, training = self.strategy, self.strategy.training
        assert training is not None
        messages, works = [], []
        for node in nodes:
            key, version = strategy.clients.key(node), self._finished
            before, times = self._last.get(key, (-1, 0))
            # A client that starts twice from one version must not draw the same rows again.
            times = times + 1 if before == version else 0
            self._last[key] = version, times
            self._starts += 1
            messages += strategy.messages(
                MessageType.TRAIN, row.round, self._arrays, self.train_config or ConfigRecord(),
                [node], draws=version + times * self.num_rounds, makes=self._starts,
            )  # fmt: skip
            memory = training.versions.get(node, 0)
            works.append(
                Assignment(node, version, training.before, memory, self._starts, began=now)
            )
        row.bytes_down += count_bytes(messages)
        names = {node: name for name, node in post(self.grid, messages).items()}
        for work in works:
            if work.node in names:
                self._at_work[names[work.node]] = work
            else:
                self._resting.append(work.node)
                strategy.drop(row.round, {work.node: "not reachable"}, during="training")

    def _quorum_error(self, row: RoundSummary) -> QuorumError:
        strategy, training = self.strategy, self.strategy.training
        assert training is not None
        row.good = len(training.good)
        drops = (drop for drop in self.result.history.dropped if drop.round == row.round)
        reasons = {drop.node: drop.reason for drop in drops}
        names = {node: strategy.clients.name(node) for node in reasons}
        return QuorumError(row, training.quorum, reasons, names)

    def _buffered(self) -> dict[str, Any]:
        training = self.strategy.training
        good = {} if training is None or training.finished else training.good
        starts = {"starts": self._starts, "last": self._last, "reset": self._reset}
        return {"buffer": good, "starts": starts}
