"""When to synchronize."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from itertools import pairwise

from fedac.errors import InputError
from fedac.require import require_count


class SyncSchedule:
    """The steps after which an average is started, and how much later it is applied.

    See `Synchronizer` for the options.

    Examples
    --------
    >>> schedule = SyncSchedule(4, at=[3, 5], overlap=False, delay_steps=None)
    >>> [step for step in range(1, 14) if schedule.is_due(step)]
    [3, 5, 9, 13]
    """

    def __init__(
        self, local_steps: int, *, at: Iterable[int] | None, overlap: bool, delay_steps: int | None
    ) -> None:
        self.local_steps = local_steps
        if not (at is None or isinstance(at, Iterable)):
            raise InputError(f"at must be a list of steps, [3, 8, 16] say, got {at!r}")
        self.at = sorted({require_count("every step in at", step) for step in at or ()})
        if at is not None and not self.at:
            raise InputError("at is empty; give at least one step")
        gap = max((b - a for a, b in pairwise([0, *self.at])), default=0)
        if gap > local_steps:
            raise InputError(
                f"two synchronizations are {gap} steps apart, more than local_steps={local_steps}"
            )
        if delay_steps is not None and not overlap:
            raise InputError("delay_steps is for overlap=True only")
        given = 1 if delay_steps is None else delay_steps
        self.delay = require_count("delay_steps", given) if overlap else 0
        if self.delay >= local_steps:
            raise InputError(
                f"delay_steps must be from 1 to local_steps - 1 = {local_steps - 1}, got "
                f"{self.delay}"
            )

    def rounds(self, steps: int) -> int:
        """Return how many averages are started in so many steps.

        Examples
        --------
        >>> schedule = SyncSchedule(4, at=[3, 5], overlap=False, delay_steps=None)
        >>> [schedule.rounds(step) for step in (2, 3, 5, 8, 9, 13)]
        [0, 1, 2, 2, 3, 4]
        """
        last = max(self.at, default=0)
        return bisect(self.at, steps) + max(steps - last, 0) // self.local_steps

    def is_due(self, steps: int) -> bool:
        """Check whether an average starts after so many steps."""
        last = max(self.at, default=0)
        return steps in self.at if steps < last else (steps - last) % self.local_steps == 0
