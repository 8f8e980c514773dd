# SPDX-License-Identifier: Apache-2.0
"""Virtual time: a clock that an in-process federation moves from reply to reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real

from fedac.errors import InputError

NANOSECONDS = 10**9


def require_seconds(seconds: object) -> float:
    """Return the seconds of a training; infinity for one that never ends."""
    if isinstance(seconds, Real) and float(seconds) >= 0:
        return float(seconds)
    raise InputError(f"the seconds of a training must be a number, at least 0, got {seconds!r}")


@dataclass
class VirtualClock:
    """A clock that stands still while anybody computes, and moves when the server sleeps.

    `seconds` is how long the training of each partition takes. Times are whole nanoseconds, so that
    ties are exact.

    >>> clock = VirtualClock([3.0, 5.0])
    >>> clock.begin("message-1", partition=1, limit=60.0)
    True
    >>> clock.sleep(2.0), clock.monotonic(), clock.due(["message-1"])
    (None, 2.0, [])
    >>> clock.sleep(60.0), clock.monotonic(), clock.due(["message-1"])
    (None, 5.0, ['message-1'])
    """

    seconds: Sequence[float] | Callable[[int], float]
    _now: int = 0
    # By message: the end, the partition, and the latest end.
    _due: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def monotonic(self) -> float:
        """Return the seconds since the start."""
        return self._now / NANOSECONDS

    def sleep(self, seconds: float) -> None:
        """Move the clock, at most to the time of the next reply."""
        later = [end for end, _, _ in self._due.values() if end > self._now]
        self._now = min([self._now + max(1, round(seconds * NANOSECONDS)), *later])

    def begin(self, name: str, *, partition: int, limit: float) -> bool:
        """Start the training of a message; return False if it takes longer than `limit` seconds."""
        given = self.seconds
        seconds = require_seconds(given(partition) if callable(given) else given[partition])
        ends = (self._now + round(min(s, limit) * NANOSECONDS) for s in (seconds, limit))
        self._due[name] = next(ends), partition, next(ends)
        return seconds <= limit

    def due(self, names: Iterable[str]) -> list[str]:
        """Return the messages whose reply is there, by time and partition."""
        ends = [(self._due.get(name, (0, 0, 0)), name) for name in names]
        return [name for (end, _, _), name in sorted(ends) if end <= self._now]

    def lose(self, name: str) -> None:
        """Let a message without a reply end as late as it may."""
        _, partition, latest = self._due[name]
        self._due[name] = latest, partition, latest

    def forget(self, name: str) -> None:
        """Forget a message whose reply was delivered."""
        self._due.pop(name, None)
