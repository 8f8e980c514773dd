# SPDX-License-Identifier: Apache-2.0
"""Synchronization schedules, and step sizes that decay over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fedac.errors import InputError
from fedac.validate import parse_piece, require_count, require_positive


class Span(NamedTuple):
    """One round: its number (from 0), its first step and its length."""

    number: int
    t: int
    gap: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Round lengths; each round ends with a synchronization.

    K of an irregular schedule is its longest gap: the theorems only need gaps of at most K
    (footnote of theorem fedaci:full).

    Examples
    --------
    >>> Schedule.every(4, steps=12)
    Schedule(gaps=(4, 4, 4))
    >>> irregular = Schedule.at([1, 4, 6])
    >>> irregular.gaps, irregular.K, irregular.T, irregular.rounds
    ((1, 3, 2), 3, 6, 3)
    """

    gaps: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.gaps:
            raise InputError("a schedule needs at least one round")
        for gap in self.gaps:
            require_count("a round's length", gap)

    @classmethod
    def every(cls, K: int, *, steps: int) -> Schedule:
        """Synchronize every K of `steps` steps; K must divide them."""
        require_count("K (local steps)", K)
        require_count("T (steps)", steps)
        if steps % K:
            whole = steps // K * K
            less = f"T={whole} or " if whole else ""
            raise InputError(
                f"K={K} does not divide T={steps}: the last round would be cut short. Use {less}"
                f"T={whole + K}"
            )
        return cls((K,) * (steps // K))

    @classmethod
    def at(cls, synchronizations: Iterable[int]) -> Schedule:
        """Synchronize after the given step counts, in ascending order; the last one is T."""
        gaps = tuple(b - a for a, b in pairwise([0, *synchronizations]))
        if any(gap < 1 or int(gap) != gap for gap in gaps):
            raise InputError("synchronizations must be ascending whole step counts from 1 on")
        return cls(gaps)

    @property
    def K(self) -> int:
        """The longest gap between synchronizations."""
        return max(self.gaps)

    @property
    def T(self) -> int:
        """The number of steps."""
        return sum(self.gaps)

    @property
    def rounds(self) -> int:
        """R, the number of synchronizations."""
        return len(self.gaps)

    def __iter__(self) -> Iterator[Span]:
        """Yield the rounds."""
        t = 0
        for number, gap in enumerate(self.gaps):
            yield Span(number, t, gap)
            t += gap

    def records(self, every: int) -> frozenset[int]:
        """Return the steps to record: 0, T, and the first synchronization after each `every`.

        >>> sorted(Schedule.every(4, steps=20).records(every=6))
        [0, 8, 12, 20]
        """
        require_count("record_every", every)
        ends = {t + gap for _, t, gap in self if t // every < (t + gap) // every}
        return frozenset({0, self.T} | ends)


# The factor of the step size in round r = 1, 2, ..., given the number in parentheses.
DECAYS: dict[str, Callable[[int, float], float]] = {
    "1/r": lambda r, c: 1 / r,
    "1/sqrt(r)": lambda r, c: 1 / math.sqrt(r),
    "inverse(c)": lambda r, c: 1 / (1 + (r - 1) / c),
    "halve(c)": lambda r, c: 0.5 ** ((r - 1) // c),
}


@dataclass(frozen=True, slots=True)
class Decay:
    """A step size that decays from round to round and is constant within a round.

    Parameters
    ----------
    start : float
        The step size of the first round.
    by : str
        The factor in round r = 1, 2, ...: ``"1/r"``, ``"1/sqrt(r)"``, ``"inverse(c)"`` for
        1/(1 + (r - 1)/c), or ``"halve(c)"`` to halve it every c rounds.

    Examples
    --------
    >>> eta = Decay(0.5, "1/sqrt(r)")
    >>> [eta.at(r) for r in (0, 3, 24)]
    [0.5, 0.25, 0.1]
    """

    start: float
    by: str

    def __post_init__(self) -> None:
        require_positive("the start of a decay", self.start)
        self.at(0)  # raises InputError if the decay is unknown

    def at(self, r: int) -> float:
        """Return the step size of round r = 0, 1, ..."""
        if self.by in ("1/r", "1/sqrt(r)"):
            return self.start * DECAYS[self.by](r + 1, 1.0)
        try:
            name, (c,), _ = parse_piece(self.by)
            return self.start * DECAYS[f"{name}(c)"](r + 1, require_positive("c", c))
        except (KeyError, ValueError):
            raise InputError(
                f"unknown decay {self.by!r}; known: {', '.join(DECAYS)}, where c > 0 is a number "
                "of rounds"
            ) from None
