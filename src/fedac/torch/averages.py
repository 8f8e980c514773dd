"""Weighted means over all processes: by one all-reduce, or of bytes that all ranks gather."""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedac.errors import InputError
from fedac.require import require_count
from fedac.rounding import FLOAT32
from fedac.torch.communication import NonFiniteStateError, Workers, flatten
from fedac.torch.packets import Packet
from fedac.torch.settings import require_close
from fedac.wire import require_wire

# Sent in place of the weight by a worker whose tensors are not finite.
NOT_FINITE = -1.0


def traffic(handed_over: int, *, world_size: int, wire: str = FLOAT32) -> int:
    """Return how many bytes all processes together send if each hands over so many.

    As gloo does it: in an all-reduce every part of the buffer goes around a ring of all processes
    twice, each time but for the last hop. Rounded messages are gathered: each goes to all others.

    Examples
    --------
    >>> traffic(1000, world_size=4), traffic(1000, world_size=4, wire="int8")
    (6000, 12000)
    """
    M = require_count("world_size", world_size)
    return (2 if require_wire(wire) == FLOAT32 else M) * (M - 1) * handed_over


class Mean(NamedTuple):
    """What came of an average: the mean as a flat tensor, and whose tensors are in it.

    `share` is how many of all workers these are; `used` says whether this one is among them.
    """

    values: Tensor
    share: float
    used: bool


class Average(ABC):
    """A weighted mean of tensors, which is started when it is made.

    Every rank hands over two numbers, its weight and a hash of its settings (lr and mu by group),
    which must be the same in all processes up to rounding, and what it wants to have averaged.
    `steps` is how many this worker has taken. Of the tensors in `moving` a copy is kept, for
    `progress`.

    Attributes
    ----------
    bytes : int
        How many this process hands over.
    """

    bytes: int
    _work: Any

    def __init__(
        self,
        workers: Workers,
        *,
        settings: list[list[float]],
        steps: int,
        moving: Sequence[Tensor] = (),
    ) -> None:
        self.steps = steps
        self._workers, self._settings = workers, settings
        self._own = flatten(moving, workers.device) if moving else None
        # Rounded, so that hashes seldom differ if the numbers hardly do. Whole numbers below 2**24
        # are exact in float32.
        text = " ".join(f"{x:.9g}" for group in settings for x in group)
        self._hash = zlib.crc32(text.encode()) % 2**24

    def wait(self) -> float:
        """Wait until all has arrived; return the seconds it took."""
        before = time.perf_counter()
        with self._workers.guard():
            self._work.wait()
        return time.perf_counter() - before

    def mean(self, on_nonfinite: str) -> Mean:
        """Return the mean, or say whose state is not finite."""
        weights, hashes = self._headers()
        if len(set(hashes)) > 1:  # all processes see it, so all of them ask what the numbers are
            reports = self._workers.exchange({"settings": self._settings})
            try:
                name = f"lr after {self.steps} steps"
                require_close(name, [theirs["settings"] for theirs in reports])
            except InputError as error:
                raise InputError(
                    f"{error}. Schedulers must do the same in all processes. No state was averaged"
                ) from None
        bad = [str(rank) for rank, weight in enumerate(weights) if weight == NOT_FINITE]
        total = sum(weight for weight in weights if weight != NOT_FINITE)
        if bad and (on_nonfinite == "raise" or total <= 0):
            advice = ", or on_nonfinite='skip-worker'" if on_nonfinite == "raise" else ""
            raise NonFiniteStateError(
                f"the state of rank {', '.join(bad)} holds NaN or infinity after {self.steps} "
                f"steps; no state was averaged. Use a smaller lr{advice}"
            )
        if total <= 0:
            raise InputError("no worker counted any examples; call count(examples) every step")
        mean = self._sum(weights)
        mean /= total
        if not torch.isfinite(mean).all():
            raise NonFiniteStateError(
                f"the sum of all states overflows {mean.dtype} after {self.steps} steps; no state "
                "was averaged. Use a smaller lr"
            )
        used = [weight > 0 for weight in weights]
        return Mean(mean, sum(used) / self._workers.size, used[self._workers.rank])

    def progress(self, moving: Sequence[Tensor]) -> Tensor:
        """Return how far this worker has moved since; 0 if it was not finite then."""
        now = flatten(moving, self._workers.device)
        return torch.zeros_like(now) if self._own is None else now - self._own

    @abstractmethod
    def _headers(self) -> tuple[list[float], list[float]]:
        """Return the weights and hashes of all ranks."""

    @abstractmethod
    def _sum(self, weights: list[float]) -> Tensor:
        """Return the sum of what good ranks sent, times their weights."""


class Reduced(Average):
    """An average by one all-reduce.

    The buffer begins with the two numbers of all ranks. Every rank fills in its own and leaves the
    others 0, so that the sum has them all. The tensors times the weight follow. Tensors in
    `private` are not sent, but must be finite as well.
    """

    def __init__(
        self,
        workers: Workers,
        tensors: Sequence[Tensor],
        *,
        weight: float,
        private: Sequence[Tensor] = (),
        **more: Any,
    ) -> None:
        super().__init__(workers, **more)
        self._buffer = flatten(tensors, workers.device, leading_zeros=2 * workers.size)
        body = self._buffer[2 * workers.size :]
        finite = [torch.isfinite(t).all().to(workers.device) for t in (body, *private)]
        if not torch.stack(finite).all():
            body.zero_()  # NaN would spoil the sum
            self._own, weight = None, NOT_FINITE
        elif weight != 1:
            body *= weight
        self._buffer[workers.rank] = weight
        self._buffer[workers.size + workers.rank] = self._hash
        self.bytes = self._buffer.nbytes
        with workers.guard():
            self._work = dist.all_reduce(self._buffer, group=workers.group, async_op=True)

    def _headers(self) -> tuple[list[float], list[float]]:
        weights, hashes = self._buffer[: 2 * self._workers.size].view(2, -1).tolist()
        return weights, hashes

    def _sum(self, weights: list[float]) -> Tensor:
        return self._buffer[2 * self._workers.size :]


class Gathered(Average):
    """An average of packets: every rank gathers the bytes of all, and reads them in float64."""

    def __init__(self, workers: Workers, packet: Packet, *, weight: float, **more: Any) -> None:
        super().__init__(workers, **more)
        self._packet = packet
        if not packet.finite:
            self._own, weight = None, NOT_FINITE
        header = np.array([weight, self._hash], np.float64)
        self._length = header.nbytes
        whole = np.concatenate([header.view(np.uint8), packet.data])
        mine = torch.from_numpy(whole).to(workers.device)
        self.bytes = mine.nbytes
        self._rows = [torch.empty_like(mine) for _ in range(workers.size)]
        with workers.guard():
            self._work = dist.all_gather(self._rows, mine, group=workers.group, async_op=True)

    def _headers(self) -> tuple[list[float], list[float]]:
        headers = [row[: self._length].cpu().numpy().view(np.float64) for row in self._rows]
        weights, hashes = np.transpose(headers).tolist()
        return weights, hashes

    def _sum(self, weights: list[float]) -> Tensor:
        total = torch.zeros(self._packet.numbers, dtype=torch.float64)
        for weight, row in zip(weights, self._rows, strict=True):
            if weight > 0:
                total += weight * self._packet.read(row[self._length :].cpu().numpy())
        return total.to(self._workers.device)
