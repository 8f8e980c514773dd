"""Who answers when: messages in background threads, in order, a few at a time.

One at a time in threads, because client code was written for a process of its own: PyTorch's random
numbers, say, are global. But a node that takes too long is left alone, and the next one starts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import Message

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
