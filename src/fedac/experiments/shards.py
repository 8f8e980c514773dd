"""Shards: the groups of a grid divided among machines that do not talk to each other.

Every machine computes the same division from the grid alone, whatever its store holds, and runs its
own part. `merge_stores` joins the stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from fedac.errors import InputError

Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a grid, counted from 1.

    Examples
    --------
    >>> shard = Shard.parse("1/2")
    >>> shard.select(["a", "bb", "ccc", "dddd"], seconds=len)
    ['a', 'dddd']
    >>> Shard.parse("5/4")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: there is no shard 5/4: the parts of 4 are 1/4 to 4/4
    """

    part: int
    of: int

    def __post_init__(self) -> None:
        if self.of < 1:
            raise InputError(f"there is no shard {self}: give at least one part, as 1/1")
        if not 1 <= self.part <= self.of:
            known = f"the parts of {self.of} are 1/{self.of} to {self.of}/{self.of}"
            raise InputError(f"there is no shard {self}: {known}")

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a shard such as 3/16, the third part of sixteen."""
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if not found:
            raise InputError(
                f"a shard is a part and the number of parts, such as 3/16, not '{text}'"
            )
        return cls(*map(int, found.groups()))

    def select(self, groups: Sequence[Group], seconds: Callable[[Group], float]) -> list[Group]:
        """Return the groups of this part, in the order given.

        Parts take about the same time: the longest group goes first, each to the part that has
        least to do. The time of two parts differs by that of one group at most.
        """
        # Whole microseconds: sums are exact, and no machine rounds the last bit another way.
        costs = [round(seconds(group) * 1e6) for group in groups]
        loads = [0] * self.of
        ours = set()
        for place in sorted(range(len(groups)), key=lambda place: -costs[place]):
            part = loads.index(min(loads))
            loads[part] += costs[place]
            if part == self.part - 1:
                ours.add(place)
        return [group for place, group in enumerate(groups) if place in ours]
