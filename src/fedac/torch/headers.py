"""The numbers that every rank sends ahead of its tensors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

# Sent in place of the weight by a worker whose tensors are not finite.
NOT_FINITE = -1.0
# Whole numbers below 2**24 are exact in float32.
EXACT = 2**24


class Header(NamedTuple):
    """What one rank says of itself when a round ends.

    Parameters
    ----------
    weight : float
        How much it counts: 0 if its tensors are not to be used, `NOT_FINITE` if they cannot be.
    settings : int
        A hash of its settings, and of where its round began.
    steps : int
        How many it has taken.
    finished : bool
        Whether it has run out of batches and only waits for the others.
    size : float
        No number that it sends is larger.

    Examples
    --------
    >>> header = Header(weight=1.0, settings=7, steps=128, finished=True, size=2.5)
    >>> header.numbers()
    [1.0, 7, -129, 2.5]
    >>> Header.read(header.numbers(), near=100) == header
    True
    """

    weight: float
    settings: int
    steps: int
    finished: bool = False
    size: float = 0.0

    def numbers(self) -> list[float]:
        """Return what is sent."""
        counted = self.steps % (EXACT // 2) + 1
        return [self.weight, self.settings, -counted if self.finished else counted, self.size]

    @classmethod
    def read(cls, numbers: Sequence[float], *, near: int) -> Header:
        """Return the header of some rank, whose steps are less than four million from `near`."""
        weight, settings, counted, size = numbers
        half = EXACT // 4
        ahead = (int(abs(counted)) - 1 - near + half) % (EXACT // 2) - half
        return cls(weight, int(settings), near + ahead, counted < 0, size)


LENGTH = len(Header(1.0, 0, 0).numbers())


def hash_of(settings: Sequence[Sequence[float]], began: int) -> int:
    """Return a hash of settings and a checksum.

    Settings are rounded, so that it rarely differs if they hardly do.
    """
    text = " ".join(f"{x:.9g}" for group in settings for x in group)
    return zlib.crc32(f"{text} {began}".encode()) % EXACT
