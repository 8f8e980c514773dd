# SPDX-License-Identifier: Apache-2.0
"""Random draws as pure functions of counters, independent of order and threads.

`sample_index` returns the row that worker m draws at step t, a pure function of (seed, m, t), and
`participants` the clients of a round, a pure function of (seed, round). So all algorithms and step
sizes see the same draws (common random numbers), in the simulator, PyTorch and Flower.

Arithmetic is in 64-bit unsigned integers that wrap around. `mix`, `worker_key` and `row_of` use
only operators that both NumPy arrays and compiled kernels support.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

# The increment and the two multipliers of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_PARTICIPATION = np.uint64(0xD1B54A32D192ED03)  # any odd number with no pattern
EPOCHS = np.uint64(0xA0761D6478BD642F)  # likewise
_STARTS = np.uint64(0x94D049BB133111EB)  # likewise
T = TypeVar("T")
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix(z: Any) -> Any:
    """Scramble 64-bit integers: SplitMix64's output function, a bijection."""
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


def worker_key(seed: Any, m: Any) -> Any:
    """Return the key of worker m's stream; all arguments are uint64."""
    return mix(mix(seed + GOLDEN) ^ (m * GOLDEN))


def row_of(key: Any, t: Any, n: Any) -> Any:
    """Return the row below n that the stream `key` draws at step t; all are uint64."""
    # The modulo bias is at most n/2^64, which no run can notice.
    return mix(key + (t + np.uint64(1)) * GOLDEN) % n


def sample_index(
    seed: int, m: npt.ArrayLike, t: npt.ArrayLike, n: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Return the rows that workers m draw at steps t, with replacement, from n.

    Examples
    --------
    >>> sample_index(1, [0, 1, 2], 0, 100)
    array([80, 15, 49])
    """
    with np.errstate(over="ignore"):  # wrap-around is the point
        key = worker_key(np.uint64(seed), np.asarray(m).astype(np.uint64))
        rows = row_of(key, np.asarray(t).astype(np.uint64), np.asarray(n).astype(np.uint64))
    return np.asarray(rows).astype(np.int64)


def sample_batch(
    seed: int, m: npt.ArrayLike, t: npt.ArrayLike, n: npt.ArrayLike, batch: int
) -> npt.NDArray[np.int64]:
    """Return the `batch` rows that workers m draw at steps t, with replacement, from n.

    The result has one more axis than m, t and n. With batch=1 it draws the same rows as
    `sample_index`.

    Examples
    --------
    >>> sample_batch(1, [0, 1], 0, 100, batch=3)
    array([[80, 90, 98],
           [15, 32, 42]])
    """
    first = np.asarray(t).astype(np.uint64)[..., None] * np.uint64(batch)
    draws = first + np.arange(batch, dtype=np.uint64)
    return sample_index(seed, np.asarray(m)[..., None], draws, np.asarray(n)[..., None])


def epoch_order(seed: int, m: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
    """Return the order in which client m visits its n rows in an epoch.

    Examples
    --------
    >>> epoch_order(1, 0, 0, 5), epoch_order(1, 0, 1, 5)
    (array([4, 3, 2, 0, 1]), array([1, 0, 2, 4, 3]))
    """
    with np.errstate(over="ignore"):
        key = worker_key(np.array([seed], np.uint64) ^ EPOCHS, np.uint64(m))
        draws = mix(mix(key + np.uint64(epoch) * GOLDEN) + np.arange(n, dtype=np.uint64) * GOLDEN)
    return np.asarray(np.argsort(draws, kind="stable"), np.int64)


def client_keys(seed: int, m: npt.ArrayLike, r: int, k: int) -> npt.NDArray[np.int64]:
    """Return a random key for local step k of each client m in round r, from 0 to 2^31 - 1."""
    step = np.uint64(r) << np.uint64(32) | np.uint64(k)
    return sample_index(seed ^ int(EPOCHS), m, step, 2**31)


def clients_in(share: float, N: int) -> int:
    """Return the number of clients in a share of N: rounded half to even, at least 1.

    >>> clients_in(0.25, 10), clients_in(0.35, 10), clients_in(0.001, 10)
    (2, 4, 1)
    """
    return max(1, round(share * N))


def participants(seed: int, r: int, N: int, count: int) -> npt.NDArray[np.int64]:
    """Return the `count` of N clients that participate in round r, in ascending order.

    All sets of `count` clients are equally likely.

    Examples
    --------
    >>> participants(1, 0, N=10, count=3)
    array([1, 2, 5])
    """
    # The first distinct ones among independent draws, so that the cost does not depend on N. If
    # count > N/2, the absent clients are drawn.
    if 2 * count > N:
        here = np.ones(N, bool)
        if count < N:
            here[participants(seed, r, N, N - count)] = False
        return np.flatnonzero(here)
    with np.errstate(over="ignore"):
        # Not a worker's stream: their keys are mixed once more.
        key = mix(mix(np.array([seed], np.uint64) ^ _PARTICIPATION) + np.uint64(r) * GOLDEN)
    draws = count + count // 4 + 1  # enough for a small share of many clients
    while True:
        with np.errstate(over="ignore"):
            drawn = row_of(key, np.arange(draws, dtype=np.uint64), np.uint64(N))
        different, first = np.unique(drawn, return_index=True)
        if len(different) >= count:
            last = np.partition(first, count - 1)[count - 1]
            return np.asarray(different[first <= last], np.int64)
        draws *= 2


def start_draws(seed: int, starts: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return the random numbers that give free places of asynchronous rounds to idle clients.

    Start number s = 0, 1, ... of a run takes the idle client at this number modulo their number.
    """
    with np.errstate(over="ignore"):
        key = mix(mix(np.array([seed], np.uint64) ^ _STARTS))
        return np.asarray(mix(mix(key + np.asarray(starts).astype(np.uint64) * GOLDEN)))


def take(idle: MutableSequence[T], place: int) -> T:
    """Remove and return an entry; the last one moves to its place.

    >>> idle = ["a", "b", "c"]
    >>> take(idle, 0), idle
    ('a', ['c', 'b'])
    """
    found, idle[place] = idle[place], idle[-1]
    idle.pop()
    return found


def gaussians(keys: npt.ArrayLike, size: int) -> npt.NDArray[np.float64]:
    """Return `size` standard normal numbers for every key (Box-Muller), shape (len(keys), size)."""
    pairs = (size + 1) // 2
    stream = mix(np.asarray(keys).astype(np.uint64)[:, None] + GOLDEN)
    counters = np.arange(1, 2 * pairs + 1, dtype=np.uint64) * GOLDEN
    bits = mix(stream + counters) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53  # never 0, so log is finite
    radius = np.sqrt(-2 * np.log(uniform[:, :pairs]))
    angle = 2 * np.pi * uniform[:, pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return normal[:, :size]
