"""What the workers of a round share if they draw the same rows many times.

Until Y is folded, a worker moves only along the rows it draws. So the margin of a row is its margin
at the start, the same for all workers, plus what the worker's own moves add. And the sum of all
moves is known from how much of every row the workers added.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedac.simulation._fast.records import Shared

STRANDS = 16
# Memory that the sums of all strands may take.
LARGEST = 2**26


def make_shared(n: int, W: int, dtype: npt.DTypeLike) -> Shared:
    """Return zeros for n rows; n = 0 for workers that share nothing."""
    return Shared(np.zeros((n, W), dtype), np.zeros((STRANDS, n, W)))


def worth_sharing(draws: int, n: int, W: int) -> bool:
    """Say whether there are far fewer rows than draws, and few enough to keep sums of each."""
    return draws >= 2 * n and 8 * STRANDS * n * W <= LARGEST
