"""What every synchronization was like, for logs and plots."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple


class Synchronization(NamedTuple):
    """One row of `Synchronizer.history`, as seen by this process.

    Parameters
    ----------
    round : int
        Its number, from 1.
    step : int
        After how many steps it was started.
    seconds : float
        How long this process waited for it.
    bytes : int
        What this process handed over.
    traffic : int
        What this process sent for it, as gloo does it (`fedac.torch.traffic`).
    skipped : tuple of int
        The ranks whose state was not finite, so that they were left out.
    spread : float, optional
        How far what this worker sent was from the mean of all, as a Euclidean distance; of large
        models estimated from 65,536 of their numbers.
    """

    round: int
    step: int
    seconds: float
    bytes: int
    traffic: int
    skipped: tuple[int, ...]
    spread: float


def warn_of_skipped(history: Sequence[Synchronization], *, rank: int) -> None:
    """Say at rank 0, and where it happened, that the last average was without some workers."""
    last = history[-1]
    if last.skipped and rank in (0, *last.skipped):
        times = sum(len(row.skipped) for row in history)
        warnings.warn(
            f"synchronization {last.round}, after {last.step} steps, left out rank "
            f"{', '.join(map(str, last.skipped))}, whose state holds NaN or infinity; workers were "
            f"left out {times} times so far",
            RuntimeWarning,
            stacklevel=3,
        )
