"""Wait for nodes and for their replies, never beyond a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.5


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> list[int]:
    """Return the connected nodes, as soon as there are `wanted` or the time is up."""
    nodes: list[int] = []

    def enough() -> bool:
        nonlocal nodes
        nodes = sorted(grid.get_node_ids())
        return len(nodes) >= wanted

    _poll(enough, seconds)
    return nodes


def send_and_wait(
    grid: Grid,
    messages: Sequence[Message],
    seconds: float,
    unanswered: dict[str, int],
) -> dict[int, Message]:
    """Send at most one message per node and return the replies that came in time, by node.

    `unanswered` maps earlier messages to their nodes and is updated. A late reply to one of them
    counts, but an error (that the message has expired, say) does not: the new reply may still come.
    """
    sent = _push(grid, messages)
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


def _push(grid: Grid, messages: Sequence[Message]) -> dict[str, int]:
    """Send messages and return the node of each message that was accepted."""
    accepted = set(grid.push_messages(messages)) if messages else set()
    if not any(accepted):  # too large for one request: send them one by one
        accepted = {name for message in messages for name in grid.push_messages([message])}
    return {
        message.metadata.message_id: message.metadata.dst_node_id
        for message in messages
        if message.metadata.message_id in accepted
    }


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
