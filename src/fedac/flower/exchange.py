"""Choose the nodes of a round and wait for their replies, never beyond a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedac.flower.messages import NamedArrays
from fedac.flower.replies import Reply

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.5


@dataclass
class TrainingRound:
    """The training round in progress: who was asked, and who answered.

    `sent` has all sequences, as sent to the clients, and `before` has them as arrays; `kept` is
    what the server kept to itself when the round began. `connected` are all nodes that were seen in
    the round; `good` has the good replies so far, by node. A round is `finished` when they were
    aggregated.
    """

    number: int
    sent: ArrayRecord
    before: NamedArrays
    kept: NamedArrays = field(default_factory=dict)
    attempts: int = 0
    connected: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    good: dict[int, Reply] = field(default_factory=dict)
    finished: bool = False

    def choose(self, connected: Sequence[int], *, sample: int | None, seed: int) -> list[int]:
        """Return the nodes to ask in the next attempt; those that were not asked yet go first.

        The choice depends only on the seed, the round, the attempt and the connected nodes.
        """
        self.attempts += 1
        self.connected.update(connected)
        draw = random.Random(f"{seed}/{self.number}/{self.attempts}")
        new = sorted(set(connected) - self.asked)
        failed = sorted(set(connected) & self.asked - set(self.good))
        wanted = len(connected) if sample is None else sample - len(self.good)
        nodes = draw.sample(new, min(wanted, len(new)))
        nodes += draw.sample(failed, min(wanted - len(nodes), len(failed)))
        self.asked.update(nodes)
        return sorted(nodes)

    @property
    def share(self) -> float:
        """Which share of all nodes has a good reply."""
        return len(self.good) / max(len(self.connected), len(self.good), 1)


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> list[int]:
    """Return the connected nodes, as soon as there are `wanted` or the time is up."""
    _poll(lambda: len(list(grid.get_node_ids())) >= wanted, seconds)
    return sorted(grid.get_node_ids())


def send_and_wait(
    grid: Grid, messages: Sequence[Message], seconds: float, unanswered: dict[str, int]
) -> dict[int, Message]:
    """Send at most one message per node and return the replies that came in time, by node.

    `unanswered` maps earlier messages to their nodes and is updated. A late reply to one of them
    counts, but an error (that the message has expired, say) does not: the new reply may still come.
    """
    accepted = set(grid.push_messages(messages)) if messages else set()
    if not any(accepted):  # too large for one request: send them one by one
        accepted = {name for message in messages for name in grid.push_messages([message])}
    sent = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    sent = {name: node for name, node in sent.items() if name in accepted}
    unanswered |= sent
    replies: dict[int, Message] = {}

    def complete() -> bool:
        for reply in grid.pull_messages(list(unanswered)) if unanswered else ():
            name = reply.metadata.reply_to_message_id
            node = unanswered.pop(name, None)
            if node is None or (name not in sent and reply.has_error()):
                continue
            # An error may come from the SuperLink; say which node it is about.
            reply.metadata.__dict__["_src_node_id"] = node
            replies.setdefault(node, reply)
        return all(node in replies for node in sent.values())

    _poll(complete, seconds)
    return replies


def _poll(done: Callable[[], bool], seconds: float) -> None:
    """Call `done` at growing intervals, until it returns True or the time is up."""
    until = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while not done():
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)
