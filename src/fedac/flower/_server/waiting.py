# SPDX-License-Identifier: Apache-2.0
"""Deadlines: how long a round waits for nodes and for their replies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedac.errors import InputError
from fedac.validate import require_positive

LONGEST, SHORTEST = 600.0, 10.0  # seconds of an adaptive deadline
# An adaptive deadline is this multiple of the slowest reply of the last rounds.
TIMES, ROUNDS = 3.0, 5
CLOCK_SKEW = 60.0  # seconds by which messages outlive their deadline, in case clocks disagree
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.5  # seconds between two looks for replies


@dataclass
class Deadline:
    """Seconds to wait for replies: a fixed number, or "adaptive", which follows the times seen.

    An adaptive deadline begins with ten minutes. Then it is three times the slowest reply of the
    last five rounds, but at least ten seconds. It doubles when a round stays below its quorum.
    """

    given: float | str = LONGEST
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS), repr=False)
    _factor: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.given, str):
            self.given = require_positive("deadline", self.given)
        elif self.given != "adaptive":
            raise InputError(f"deadline must be seconds or 'adaptive', got {self.given!r}")

    @property
    def seconds(self) -> float:
        """How long to wait now."""
        if not isinstance(self.given, str):
            return self.given
        if not self._seen:
            return LONGEST
        return min(LONGEST, max(SHORTEST, TIMES * max(self._seen)) * self._factor)

    def saw(self, slowest: float) -> None:
        """Learn from the slowest reply of a round that succeeded."""
        self._seen.append(slowest)
        self._factor = 1.0

    def missed(self) -> None:
        """Wait longer, after too few replies came in time."""
        self._factor *= 2.0

    def __str__(self) -> str:
        return self.given if isinstance(self.given, str) else f"{self.given:g} s"


def wait_for_nodes(grid: Grid, wanted: int, seconds: float) -> list[int]:
    """Return the connected nodes, as soon as there are `wanted` or the time is up."""
    poll(grid, lambda: len(list(grid.get_node_ids())) >= wanted, seconds)
    return sorted(grid.get_node_ids())


def clock_of(grid: Grid) -> Any:
    """Return the clock of a grid in virtual time, or Python's; both have monotonic and sleep."""
    return getattr(grid, "clock", time)


def post(grid: Grid, messages: Sequence[Message]) -> dict[str, int]:
    """Send messages; return the nodes of those that were accepted, by message id."""
    accepted = set(grid.push_messages(messages)) if messages else set()
    if not any(accepted):  # too large for one request: send them one by one
        accepted = {name for message in messages for name in grid.push_messages([message])}
    sent = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    return {name: node for name, node in sent.items() if name in accepted}


def pull_ready(grid: Grid, names: Iterable[str]) -> list[Message]:
    """Return the replies that are there, without waiting for others."""
    pull = getattr(grid, "pull_ready", grid.pull_messages)
    return list(pull(list(names)))


def send_and_wait(
    grid: Grid,
    messages: Sequence[Message],
    seconds: float,
    unanswered: dict[str, int],
    *,
    grace: float | None = None,
    enough: int = 0,
    wanted: int | None = None,
) -> tuple[dict[int, Message], float]:
    """Send at most one message per node and return the replies that came in time.

    They are by node, with the seconds until the last of them. After `enough` replies that are not
    errors, wait `grace` more seconds; after the `wanted` number, stop and throw the others away.
    `unanswered` maps earlier messages to their nodes and is updated. A late reply to one of them
    counts; a late error (the message has expired, for example) does not, as the new reply may still
    come.
    """
    clock = clock_of(grid)
    sent = post(grid, messages)
    began = clock.monotonic()  # the deadline starts now, too: sending may take long
    unanswered |= sent
    # With a wanted number, busy nodes are not asked again: wait for them if there are no others.
    awaited = {*(unanswered if wanted is not None and not sent else sent).values()}
    replies: dict[int, Message] = {}
    slowest = 0.0
    until: float | None = None  # when the grace period ends
    good = 0

    def complete() -> bool:
        nonlocal until, slowest, good
        for reply in grid.pull_messages(list(unanswered)) if unanswered else ():
            name = reply.metadata.reply_to_message_id
            node = unanswered.pop(name, None)
            if node is None or (name not in sent and reply.has_error()) or good == wanted:
                continue
            # An error may come from the SuperLink; name the node instead.
            reply.metadata.__dict__["_src_node_id"] = node
            replies.setdefault(node, reply)
            good = sum(not reply.has_error() for reply in replies.values())
            slowest = clock.monotonic() - began
        if good == wanted or awaited <= replies.keys():
            return True
        if grace is None:
            return False
        if good >= enough:
            until = until or clock.monotonic() + grace
        return until is not None and clock.monotonic() >= until

    poll(grid, complete, seconds)
    return replies, slowest


def poll(grid: Grid, done: Callable[[], bool], seconds: float) -> None:
    """Call `done` at growing intervals, until it returns True or the time is up."""
    clock = clock_of(grid)
    until = clock.monotonic() + seconds
    pause = FIRST_PAUSE
    while not done():
        left = until - clock.monotonic()
        if left <= 0:
            return
        clock.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)
