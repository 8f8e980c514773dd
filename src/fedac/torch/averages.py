"""Weighted means over all workers: by one all-reduce, or of bytes that all of them gather."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.require import require_count
from fedac.rounding import FLOAT32
from fedac.torch.communication import NonFiniteStateError, Workers, require_same
from fedac.torch.flat import flatten, flatten_again, is_finite, parts, sample, unflatten
from fedac.torch.headers import LENGTH, NOT_FINITE, Header
from fedac.torch.packets import Packet
from fedac.torch.settings import require_close
from fedac.wire import require_wire

# Sums of numbers that are smaller do not overflow float32.
LARGE = 1e38


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


class Mean:
    """What came of an average.

    Parameters
    ----------
    total : Tensor
        The sum of what good workers sent, times their weights, as a flat tensor.
    headers : list of Header
        Of all workers.
    rank : int
        Which of them this one is.
    factor : float
        By which all of them have multiplied what they sent, besides their weights.

    Attributes
    ----------
    divisor : float
        What the sum is divided by: the sum of all weights, times the factor.
    share : float
        How many of all workers are in the mean.
    used : bool
        Whether this one is.
    skipped : tuple of int
        Whose tensors were not finite.
    steps : int
        The steps of the worker that took most.
    """

    def __init__(
        self, total: Tensor, headers: Sequence[Header], rank: int, *, factor: float
    ) -> None:
        self._total = total
        weights = [header.weight for header in headers]
        self.divisor = sum(weight for weight in weights if weight > 0) * factor
        self.share = sum(weight > 0 for weight in weights) / len(weights)
        self.used = weights[rank] > 0
        self.skipped = tuple(m for m, weight in enumerate(weights) if weight == NOT_FINITE)
        self.steps = max(header.steps for header in headers)

    def values(self) -> Tensor:
        """Return the mean as a flat tensor; call it once, and nothing else afterwards."""
        if self.divisor != 1:
            self._total /= self.divisor
        return self._total

    def copy_to(self, tensors: Sequence[Tensor]) -> None:
        """Copy the mean into tensors."""
        unflatten(self._total, tensors, divisor=self.divisor)

    def distance(self, own: Tensor, numbers: int) -> float:
        """Return the distance from other `numbers`, of which `own` is a sample."""
        difference = own - sample(self._total[:numbers]) / self.divisor
        norm = float(torch.linalg.vector_norm(difference, dtype=torch.float64))
        return norm * math.sqrt(numbers / max(own.numel(), 1))


class Average(ABC):
    """A weighted mean of tensors, which is started when it is made.

    Every rank hands over its header, and what it wants to have averaged. Of the tensors in `moving`
    a copy is kept, for `progress`.

    Attributes
    ----------
    header : Header
        This worker's.
    settings : list of list of float
        Its lr and mu by group; if it has finished, those of the workers that train, after `mean`.
    bytes : int
        How many this process hands over.
    """

    header: Header
    bytes: int
    # What rounding takes from this worker's message, with error feedback.
    residuals: list[Any] | None = None
    # Some of the numbers of this worker's message, and how many there are in all.
    _sample: Tensor
    _numbers: int
    _arriving: Tensor  # what all workers send, once it has arrived
    # By what workers multiply what they send, besides their weights.
    _factor = 1.0

    def __init__(
        self,
        workers: Workers,
        header: Header,
        *,
        settings: list[list[float]],
        moving: Sequence[Tensor] = (),
    ) -> None:
        self.header = header
        self.settings = settings
        self._workers = workers
        self._own = flatten(moving, workers.device) if moving else None

    @property
    def steps(self) -> int:
        """How many steps this worker had taken when the average was started."""
        return self.header.steps

    def wait(self) -> float:
        """Wait until all has arrived; return the seconds it took."""
        before = time.perf_counter()
        self._workers.finish(self._arriving)
        return time.perf_counter() - before

    def mean(self, on_nonfinite: str) -> Mean | None:
        """Return the mean, or say why there is none; None if all have finished and none has moved.

        A worker that has finished may have other settings than those that train.
        """
        headers = [Header.read(row, near=self.steps) for row in self._headers()]
        self._require_same_steps(headers)
        self._require_same_settings(headers)
        weights = [header.weight for header in headers]
        bad = [str(m) for m, weight in enumerate(weights) if weight == NOT_FINITE]
        total = sum(weight for weight in weights if weight > 0)
        if bad and (on_nonfinite == "raise" or total <= 0):
            advice = ", or on_nonfinite='skip-worker'" if on_nonfinite == "raise" else ""
            raise NonFiniteStateError(
                f"the state of rank {', '.join(bad)} holds NaN or infinity after {self.steps} "
                f"steps; no state was averaged. Use a smaller lr{advice}"
            )
        if total <= 0:
            if all(header.finished for header in headers):
                return None
            raise InputError("no worker counted any examples; call count(examples) every step")
        flat = self._sum(weights)
        if sum(header.size for header in headers) > LARGE and not is_finite(flat):
            raise NonFiniteStateError(
                f"the sum of all states overflows {flat.dtype} after {self.steps} steps; no state "
                "was averaged. Use a smaller lr"
            )
        return Mean(flat, headers, self._workers.rank, factor=self._factor)

    def spread(self, mean: Mean) -> float:
        """Return how far this worker's message was from the mean."""
        return mean.distance(self._sample, self._numbers)

    def progress(self, moving: Sequence[Tensor]) -> list[Tensor]:
        """Return how far this worker has moved since; 0 if it was not finite then."""
        if self._own is None:
            return [torch.zeros_like(tensor) for tensor in moving]
        since = parts(self._own, moving)  # the copy is needed no more, so this takes its place
        for then, now in zip(since, moving, strict=True):
            torch.sub(now.detach(), then, out=then)
        return since

    def everyone_finished(self) -> bool:
        """Check whether all workers have run out of batches."""
        return all(Header.read(row, near=0).finished for row in self._headers())

    def _require_same_steps(self, headers: Sequence[Header]) -> None:
        training = [header for header in headers if not header.finished]
        if len({header.steps for header in training}) > 1:
            try:
                require_same("how many steps they have taken", [h.steps for h in headers])
            except InputError as error:
                raise InputError(
                    f"{error}. All ranks must take the same number of steps, or train inside "
                    "averages.join(). No state was averaged"
                ) from None

    def _require_same_settings(self, headers: Sequence[Header]) -> None:
        if len({header.settings for header in headers}) == 1:
            return
        # All workers see it, so all of them ask what the numbers are.
        reports = self._workers.exchange({"settings": self.settings})
        by_worker = [reports[leader]["settings"] for leader in self._workers.leaders]
        furthest = max(range(len(headers)), key=lambda m: headers[m].steps)
        training = [s for s, h in zip(by_worker, headers, strict=True) if not h.finished]
        training = training or [by_worker[furthest]]
        try:
            require_close(f"lr after {self.steps} steps", training)
        except InputError as error:
            raise InputError(
                f"{error}. Schedulers must do the same in all processes. No state was averaged"
            ) from None
        self.settings = training[0]

    @abstractmethod
    def _headers(self) -> list[list[float]]:
        """Return the headers of all workers, as numbers."""

    @abstractmethod
    def _sum(self, weights: list[float]) -> Tensor:
        """Return the sum of what good workers sent, times their weights."""


class Reduced(Average):
    """An average by one all-reduce.

    The buffer ends with the headers of all workers. Every one fills in its own and leaves the
    others 0, so that the sum has them all. Before them are the tensors times the weight: the
    `message`, and what is `beside` it. Tensors in `private` are not sent, but must be finite as
    well. `reuse` may be the buffer of an earlier average.

    Where the number of workers is a power of two, they divide by it before they send: it rounds
    nothing, and the sum is mostly the mean then.
    """

    def __init__(
        self,
        workers: Workers,
        header: Header,
        *,
        message: Sequence[Tensor],
        beside: Sequence[Tensor],
        private: Sequence[Tensor] = (),
        reuse: Tensor | None = None,
        **more: Any,
    ) -> None:
        super().__init__(workers, header, **more)
        zeros, tensors = LENGTH * workers.size, [*message, *beside]
        if workers.size.bit_count() == 1:
            self._factor = 1 / workers.size
        factor = (header.weight or 1.0) * self._factor
        self.buffer, norm = flatten_again(
            tensors, workers.device, zeros=zeros, reuse=reuse, factor=factor
        )
        body, self._all_headers = self.buffer[:-zeros], self.buffer[-zeros:].view(-1, LENGTH)
        self._numbers = sum(tensor.numel() for tensor in message)
        self._sample = sample(body[: self._numbers]) / factor
        if all(map(is_finite, (*(() if torch.isfinite(norm) else tensors), *private))):
            size = min(float(norm), torch.finfo(body.dtype).max)
            self.header = header._replace(size=size)
        else:
            self._own, self.header = None, header._replace(weight=NOT_FINITE)
        if self.header.weight <= 0:
            body.zero_()  # NaN would spoil the sum
        mine = torch.tensor(self.header.numbers(), dtype=torch.float64)
        self._all_headers[workers.rank] = mine
        self.bytes = self.buffer.nbytes
        self._arriving = self.buffer
        workers.start_sum(self.buffer)

    def _headers(self) -> list[list[float]]:
        rows: list[list[float]] = self._all_headers.tolist()
        return rows

    def _sum(self, weights: list[float]) -> Tensor:
        return self.buffer[: -self._all_headers.numel()]


class Gathered(Average):
    """An average of packets: every worker gathers the bytes of all, and reads them in float64."""

    def __init__(self, workers: Workers, header: Header, *, packet: Packet, **more: Any) -> None:
        super().__init__(workers, header, **more)
        self._packet = packet
        self._numbers, self._sample = packet.message_numbers, packet.sample
        self.residuals = packet.residuals
        if not packet.finite:
            self._own, self.header = None, header._replace(weight=NOT_FINITE)
        numbers = np.array(self.header.numbers(), np.float64)
        self._leading = numbers.nbytes
        whole = np.concatenate([numbers.view(np.uint8), packet.data])
        mine = torch.from_numpy(whole).to(workers.device)
        self.bytes = mine.nbytes
        self._arriving = workers.start_gather(mine)

    def _headers(self) -> list[list[float]]:
        return [
            row[: self._leading].cpu().numpy().view(np.float64).tolist() for row in self._arriving
        ]

    def _sum(self, weights: list[float]) -> Tensor:
        total = torch.zeros(self._packet.numbers, dtype=torch.float64)
        for weight, row in zip(weights, self._arriving, strict=True):
            if weight > 0:
                total += weight * self._packet.read(row[self._leading :].cpu().numpy())
        return total.to(self._workers.device)
