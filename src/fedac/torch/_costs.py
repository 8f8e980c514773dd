# SPDX-License-Identifier: Apache-2.0
"""Costs of a round: bytes between processes, and seconds on a link."""

from __future__ import annotations

import math

from fedac.algorithms import Algorithm, get
from fedac.federation.compression import FLOAT32, bytes_up, require_wire
from fedac.federation.link import Link, as_link
from fedac.torch._averaging import is_gathered
from fedac.validate import require_count, require_nonnegative

# The largest segment in bytes of an all-reduce in gloo.
SEGMENT = 2**20


def traffic(
    handed_over: int, *, world_size: int, wire: str = FLOAT32, algorithm: str | Algorithm = "fedavg"
) -> int:
    """Return the bytes that all processes send together if each hands over `handed_over` bytes.

    This follows gloo: in an all-reduce every part of the buffer goes around a ring of all processes
    twice, each time without the last hop. Messages in int8 are gathered instead: each goes to all
    other processes. So are bfloat16 messages of methods with control variates.

    Examples
    --------
    >>> traffic(1000, world_size=4), traffic(1000, world_size=4, wire="int8")
    (6000, 12000)
    """
    M = require_count("world_size", world_size)
    method = get(algorithm) if isinstance(algorithm, str) else algorithm
    return (M if is_gathered(require_wire(wire), method) else 2) * (M - 1) * handed_over


def round_seconds(
    link: Link | str,
    numbers: int,
    *,
    world_size: int,
    local_steps: int,
    algorithm: str | Algorithm = "fedavg",
    wire: str = FLOAT32,
    delay_steps: int = 0,
    rounding: float = 0.0,
) -> float:
    """Predict the seconds of a round of gloo processes, each with its own link.

    An all-reduce takes 2(M-1) hops around a ring of M workers, and every hop waits for a round
    trip. But two segments, of a megabyte at most, are on their way at once: where sending one takes
    longer than a round trip, only two round trips remain. Gathered messages (see `traffic`) go to
    all others at once, in one round trip.

    Parameters
    ----------
    link : Link or str
        Between workers: `latency` is a round trip from one to another. Its stragglers do not count.
    numbers : int
        Parameters of the model.
    world_size : int
        The number of workers, M.
    local_steps : int
        Steps between two synchronizations, K.
    algorithm : str or Algorithm
        The method; FedAc sends two vectors, DiLoCo and all optimizers of PyTorch send one.
    wire : "float32" or "bfloat16" or "int8"
        As for `synchronize`.
    delay_steps : int
        Local steps that overlap with the transfer, if `overlap=True`.
    rounding : float
        Processor time of a round outside its steps: encoding a message and decoding all
        messages (`benchmarks/torch_rounding.py`).

    Examples
    --------
    >>> link = Link(latency="50ms", up="20Mbit", gradient="300ms")
    >>> model = {"numbers": 1_000_000, "world_size": 4, "local_steps": 10}
    >>> round_seconds(link, **model)  # 10 steps, 6 MB, 2 round trips
    5.5
    >>> round(round_seconds(link, **model, wire="int8"), 3)  # 3 MB, 1 round trip
    4.269
    >>> [round(round_seconds(link, **model, delay_steps=delay), 3) for delay in (6, 9)]
    [3.7, 3.0]
    """
    link = as_link(link)
    method = get(algorithm) if isinstance(algorithm, str) else algorithm
    M, K = require_count("world_size", world_size), require_count("local_steps", local_steps)
    handed_over = bytes_up(method, require_count("numbers", numbers), require_wire(wire))
    # Workers send and receive at the same time, at the slower of the two rates.
    sending = 0.0
    if M > 1 and is_gathered(wire, method):
        sending = link.latency + (M - 1) * 8 * handed_over / min(link.up, link.down)
    elif M > 1:
        sending = _all_reduce_seconds(link, handed_over, M)
    hidden = require_count("delay_steps", delay_steps, least=0) * link.gradient
    busy = require_nonnegative("rounding (seconds)", rounding)
    return K * link.gradient + max(0.0, sending - hidden) + busy


def _all_reduce_seconds(link: Link, size: int, M: int) -> float:
    """Return how long gloo's ring takes: a reduce-scatter, and then an all-gather like it."""
    rate = min(link.up, link.down) / 8
    part = size / M  # sent in one of the M-1 hops, two segments at a time
    pairs = max(1, math.ceil(part / (2 * SEGMENT)))
    a_segment = part / (2 * pairs) / rate
    waits = link.latency + ((M - 1) * pairs - 1) * max(0.0, link.latency - a_segment)
    return 2 * ((M - 1) * part / rate + waits)
