"""What the workers of a round share, where they draw the same rows again and again.

Until Y is folded, a worker moves only along the rows it draws. A row's margin is then its margin
at the start, the same for all workers, plus what the worker's own moves add; and all that is left
of the workers after the round is how much of every row they added together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedac.simulation._fast.records import Shared

STRANDS = 16
# Memory that the sums of all strands may take.
LARGEST = 2**26


def make_shared(n: int, W: int, dtype: npt.DTypeLike) -> Shared:
    """Return zeros for n rows; for none, what a kernel gets where nothing is shared."""
    return Shared(np.zeros((n, W), dtype), np.zeros((STRANDS, n, W)))


def worth_sharing(draws: int, n: int, W: int) -> bool:
    """Say whether there are far fewer rows than draws, and few enough to keep sums of each."""
    return draws >= 2 * n and 8 * STRANDS * n * W <= LARGEST
