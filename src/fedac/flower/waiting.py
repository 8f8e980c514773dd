"""How long a round waits for its clients."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fedac.errors import InputError
from fedac.require import require_positive

ADAPTIVE = "adaptive"
LONGEST, SHORTEST = 600.0, 10.0
# An adaptive deadline is so many times the slowest reply of the last rounds.
TIMES, ROUNDS = 3.0, 5


@dataclass
class Deadline:
    """Seconds to wait for replies: a fixed number, or "adaptive", which follows the times seen.

    An adaptive deadline begins with ten minutes. Then it is three times the slowest reply of the
    last five rounds, but at least ten seconds; it doubles when a round stays below its quorum.

    Examples
    --------
    >>> deadline = Deadline("adaptive")
    >>> deadline.seconds
    600.0
    >>> deadline.saw(20.0)
    >>> deadline.seconds
    60.0
    >>> deadline.missed()
    >>> deadline.seconds
    120.0
    """

    given: float | str = LONGEST
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS), repr=False)
    _factor: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.given, str):
            self.given = require_positive("deadline", self.given)
        elif self.given != ADAPTIVE:
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
