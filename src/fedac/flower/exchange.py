"""Asking nodes and waiting for their answers, never longer than said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.5


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    seconds: float,
    unanswered: dict[str, int] | None = None,
    is_good: Callable[[Message], bool] = lambda reply: False,
) -> dict[int, Message]:
    """Send messages, a node at most one, and return the replies that came in time, by node.

    `unanswered` holds the nodes of messages sent earlier; it is brought up to date. A late reply to
    one of them counts if it is good. One that is not, or that says that the message has expired,
    does not end the wait for the reply to the new message.
    """
    until = time.monotonic() + seconds
    # By the message, not by what the reply says of its sender: that may be the SuperLink.
    sent = _push(grid, messages)
    waiting = {} if unanswered is None else unanswered
    waiting |= sent
    replies: dict[int, Message] = {}

    def complete() -> bool:
        for reply in grid.pull_messages(list(waiting)) if waiting else ():
            name = reply.metadata.reply_to_message_id
            node = waiting.pop(name, None)
            if node is None:
                continue
            if name in sent:
                replies.setdefault(node, reply)
            elif is_good(reply):
                replies[node] = reply
        return all(node in replies for node in sent.values())

    poll(complete, until - time.monotonic())
    return replies


def _push(grid: Grid, messages: Sequence[Message]) -> dict[str, int]:
    """Send messages and return the node of each message that left."""
    if not messages:
        return {}
    accepted = list(_accepted(grid.push_messages(messages)))
    if not accepted:  # too large for one request: one by one
        for message in messages:
            accepted += _accepted(grid.push_messages([message]))
    return {
        message.metadata.message_id: message.metadata.dst_node_id
        for message in messages
        if message.metadata.message_id in accepted
    }


def _accepted(ids: Iterable[str | None]) -> list[str]:
    return [str(name) for name in ids if name]


def poll(done: Callable[[], bool], seconds: float) -> None:
    """Ask `done` ever more rarely, until it says yes or the time is over."""
    until = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while not done():
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)
