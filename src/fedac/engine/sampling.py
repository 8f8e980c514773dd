"""The sampler: which row worker m draws at step t.

A pure function of (seed, m, t), written once for every engine and runtime. Hence all
algorithms and step sizes see the same draws (common random numbers), results do not depend
on threads, and the simulator, PyTorch and Flower can be compared step for step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.random import GOLDEN, mix


def worker_key(seed: Any, m: Any) -> Any:
    """Return the start of worker m's stream; all arguments are uint64."""
    return mix(mix(seed + GOLDEN) ^ (m * GOLDEN))


def row_of(key: Any, t: Any, n: Any) -> Any:
    """Return the row, below n, that the stream `key` draws at step t; all are uint64.

    The remainder favours some rows by at most n/2^64, far below what any run can see.
    """
    return mix(key + (t + np.uint64(1)) * GOLDEN) % n


def sample_index(seed: int, m: npt.ArrayLike, t: npt.ArrayLike, n: int) -> npt.NDArray[np.int64]:
    """Return the rows drawn with replacement from n by worker(s) m at step(s) t.

    Examples
    --------
    >>> sample_index(1, [0, 1, 2], 0, 100)
    array([80, 15, 49])
    >>> int(sample_index(1, 2, 0, 100))
    49
    """
    with np.errstate(over="ignore"):  # wrap-around is the point
        key = worker_key(np.uint64(seed), np.asarray(m).astype(np.uint64))
        rows = row_of(key, np.asarray(t).astype(np.uint64), np.uint64(n))
    return np.asarray(rows).astype(np.int64)
