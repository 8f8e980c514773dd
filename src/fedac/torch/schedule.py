"""When to synchronize."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from fedac.errors import InputError
from fedac.require import require_count


@dataclass(frozen=True)
class SyncSchedule:
    """The steps after which an average is started, and how much later it is applied.

    Examples
    --------
    >>> schedule = make_schedule(4, at=[3, 5], overlap=False, delay=None)
    >>> [step for step in range(1, 14) if schedule.is_due(step)]
    [3, 5, 9, 13]
    """

    local_steps: int
    at: frozenset[int] | None
    delay: int

    def is_due(self, steps: int) -> bool:
        """Check whether an average starts after so many steps."""
        if self.at is None:
            return steps % self.local_steps == 0
        beyond = steps - max(self.at)
        return steps in self.at or (beyond > 0 and beyond % self.local_steps == 0)


def make_schedule(
    local_steps: int, *, at: Iterable[int] | None, overlap: bool, delay: int | None
) -> SyncSchedule:
    """Check a schedule's options; see `Synchronizer`."""
    steps = None if at is None else _check_steps(at, local_steps)
    if not overlap:
        if delay is not None:
            raise InputError("delay is for overlap=True only")
        return SyncSchedule(local_steps, steps, 0)
    delay = 1 if delay is None else require_count("delay", delay)
    if delay >= local_steps:
        raise InputError(
            f"delay must be from 1 to local_steps - 1 = {local_steps - 1}, got {delay}"
        )
    return SyncSchedule(local_steps, steps, delay)


def _check_steps(at: Iterable[int], local_steps: int) -> frozenset[int]:
    steps = sorted({require_count("every step in at", step) for step in at})
    if not steps:
        raise InputError("at is empty; give at least one step")
    gap = max(b - a for a, b in pairwise([0, *steps]))
    if gap > local_steps:
        raise InputError(
            f"two synchronizations are {gap} steps apart, more than local_steps={local_steps}"
        )
    return frozenset(steps)
