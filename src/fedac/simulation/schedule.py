"""When workers synchronize: every K steps, or irregularly with gaps of at most K."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fedac.errors import InputError
from fedac.require import require_count


class Span(NamedTuple):
    """The steps of one round: its number from 0 on, its first step and its length."""

    number: int
    t: int
    gap: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The lengths of the rounds; each ends with a synchronization.

    The theorems only need every gap to be at most K (footnote of theorem fedaci:full), so K
    of an irregular schedule is its longest gap.

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
            choices = f"T={whole + K}" if whole == 0 else f"T={whole} or T={whole + K}"
            raise InputError(
                f"K={K} does not divide T={steps}: the last round would be cut short. Use {choices}"
            )
        return cls((K,) * (steps // K))

    @classmethod
    def at(cls, synchronizations: Iterable[int]) -> Schedule:
        """Synchronize after the given step counts, in ascending order; the last one is T."""
        times = [0, *synchronizations]
        gaps = tuple(b - a for a, b in pairwise(times))
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
        """Yield every round."""
        t = 0
        for number, gap in enumerate(self.gaps):
            yield Span(number, t, gap)
            t += gap

    def records(self, every: int) -> frozenset[int]:
        """Return the steps to record: 0, T, and the first synchronization after each `every`.

        Between synchronizations no machine knows the average, so nothing is recorded there.

        Examples
        --------
        >>> sorted(Schedule.every(4, steps=20).records(every=6))
        [0, 8, 12, 20]
        """
        require_count("record_every", every)
        steps = {0, self.T}
        for _, t, gap in self:
            if t // every < (t + gap) // every:
                steps.add(t + gap)
        return frozenset(steps)
