"""Weighted means over all workers: by one all-reduce, or of bytes that all of them gather."""

from __future__ import annotations

import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedac.errors import InputError
from fedac.torch._communication import NonFiniteStateError, Workers, require_close, require_same
from fedac.torch._compression import Packet
from fedac.torch._flat import CHUNK, flatten, flatten_again, is_finite, parts, sample, unflatten

# Sums of numbers that are smaller do not overflow float32.
LARGE = 1e38


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
    divisor : float
        What the sum is to be divided by.

    Attributes
    ----------
    weights : list of float
        How much every worker counts; at most 0 if it is not in the mean.
    used : bool
        Whether this one is.
    skipped : tuple of int
        Whose tensors were not finite.
    steps : int
        The steps of the worker that took most.
    agreed : bool
        Whether all workers had the same settings, and began the round in the same place.
    """

    def __init__(
        self, total: Tensor, headers: Sequence[Header], rank: int, *, divisor: float
    ) -> None:
        self._total, self.divisor = total, divisor
        self.weights = weights = [header.weight for header in headers]
        self.used = weights[rank] > 0
        self.skipped = tuple(m for m, weight in enumerate(weights) if weight == NOT_FINITE)
        self.steps = max(header.steps for header in headers)
        self.agreed = len({header.settings for header in headers}) == 1

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
    _arriving: tuple[Tensor, ...]  # what all workers send, once it has arrived
    buffer: Tensor  # flat, for the next average to reuse

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
        self._workers.finish(*self._arriving)
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
        flat, divisor = self._collect(weights)
        if sum(header.size for header in headers) > LARGE and not is_finite(flat):
            raise NonFiniteStateError(
                f"the sum of all states overflows {flat.dtype} after {self.steps} steps; no state "
                "was averaged. Use a smaller lr"
            )
        return Mean(flat, headers, self._workers.rank, divisor=divisor)

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
    def _collect(self, weights: list[float]) -> tuple[Tensor, float]:
        """Return the sum of what good workers sent, and what to divide it by for the mean."""


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
        tensors = [*message, *beside]
        self._zeros, self._numbers = LENGTH * workers.size, sum(t.numel() for t in message)
        self._factor = 1 / workers.size if workers.size.bit_count() == 1 else 1.0
        factor = (header.weight or 1.0) * self._factor
        self.buffer, norm = self._fill(tensors, factor, reuse)
        unsure = () if torch.isfinite(norm) else (*tensors, *self._arriving[:-1])
        if all(map(is_finite, (*unsure, *private))):
            size = min(float(norm), torch.finfo(self.buffer.dtype).max)
            self.header = header._replace(size=size)
        else:
            self._own, self.header = None, header._replace(weight=NOT_FINITE)
        if self.header.weight <= 0:
            for tensor in self._arriving:
                tensor.zero_()  # NaN would spoil the sum
        mine = torch.tensor(self.header.numbers(), dtype=torch.float64)
        self._all_headers[workers.rank] = mine
        self.bytes = sum(tensor.nbytes for tensor in self._arriving)
        workers.start_sum(*self._arriving)

    @property
    def _all_headers(self) -> Tensor:
        return self.buffer[-self._zeros :].view(-1, LENGTH)

    def _fill(
        self, tensors: Sequence[Tensor], factor: float, reuse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the buffer and the norm of what is sent."""
        device = self._workers.device
        buffer, norm = flatten_again(tensors, device, zeros=self._zeros, reuse=reuse, factor=factor)
        self._sample = sample(buffer[: self._numbers]) / factor
        self._arriving = (buffer,)
        return buffer, norm

    def _headers(self) -> list[list[float]]:
        rows: list[list[float]] = self._all_headers.tolist()
        return rows

    def _collect(self, weights: list[float]) -> tuple[Tensor, float]:
        return self.buffer[: -self._zeros], _total(weights) * self._factor


class Halved(Reduced):
    """An average by an all-reduce of bfloat16: how far messages are from where the round `began`.

    Sums are rounded to bfloat16 wherever two are added, in the same way for all workers. Buffers,
    moments and headers are not rounded: they go by a second all-reduce.
    """

    def __init__(self, *arguments: Any, began: Sequence[Tensor], **more: Any) -> None:
        self._began = began
        super().__init__(*arguments, **more)

    def _fill(
        self, tensors: Sequence[Tensor], factor: float, reuse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        device = self._workers.device
        buffer, _ = flatten_again(tensors, device, zeros=self._zeros, reuse=reuse)
        message, exact = buffer[: self._numbers], buffer[self._numbers :]
        self._sample = sample(message).clone()
        self._half = torch.empty(self._numbers, dtype=torch.bfloat16, device=device)
        exact *= factor
        squares = [torch.dot(exact, exact)]
        for ours, half, began in self._in_chunks(message):
            sent = half.copy_((ours - began) * factor).to(ours)  # it may have become infinite
            squares.append(torch.dot(sent, sent))
        self._arriving = (self._half, exact)
        return buffer, torch.stack(squares).double().sum().sqrt()

    def _collect(self, weights: list[float]) -> tuple[Tensor, float]:
        total = _total(weights) * self._factor
        flat = self.buffer[: -self._zeros]
        for mean, half, began in self._in_chunks(flat[: self._numbers]):
            torch.add(began, half.to(mean.dtype), alpha=1 / total, out=mean)
        flat[self._numbers :] /= total
        return flat, 1.0

    def _in_chunks(self, message: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Return parts of a message, of what is sent, and of where the round began."""
        sizes = [tensor.numel() for tensor in self._began]
        pairs = (torch.split(flat, sizes) for flat in (message, self._half))
        for began, *ours in zip(self._began, *pairs, strict=True):
            flat = began.detach().reshape(-1).to(message)
            yield from zip(*(torch.split(x, CHUNK) for x in (*ours, flat)), strict=True)


class Gathered(Average):
    """An average of packets: every worker gathers the bytes of all, and reads them in float64.

    `pack` makes the packet of a flat tensor: the `message`, and what is `beside` it.
    """

    def __init__(
        self,
        workers: Workers,
        header: Header,
        *,
        message: Sequence[Tensor],
        beside: Sequence[Tensor],
        pack: Callable[..., Packet],
        reuse: Tensor | None = None,
        **more: Any,
    ) -> None:
        super().__init__(workers, header, **more)
        tensors = [*message, *beside]
        self.buffer, _ = flatten_again(tensors, workers.device, zeros=0, reuse=reuse)
        self._numbers = sum(tensor.numel() for tensor in message)
        self._sample = sample(self.buffer[: self._numbers]).clone()
        self._leading = 8 * LENGTH
        self._packet = pack(self.buffer, leading=self._leading)
        self.residuals = self._packet.residuals
        if not self._packet.finite:
            self._own, self.header = None, header._replace(weight=NOT_FINITE)
        numbers = np.array(self.header.numbers(), np.float64)
        self._packet.data[: self._leading] = numbers.view(np.uint8)
        mine = torch.from_numpy(self._packet.data).to(workers.device)
        self.bytes = mine.nbytes
        self._arriving = (workers.start_gather(mine),)

    def _headers(self) -> list[list[float]]:
        (rows,) = self._arriving
        return [row[: self._leading].cpu().numpy().view(np.float64).tolist() for row in rows]

    def _collect(self, weights: list[float]) -> tuple[Tensor, float]:
        (rows,) = self._arriving
        self._packet.read([row.cpu().numpy() for row in rows], weights, self.buffer)
        self._arriving = (rows[:, : self._leading].clone(),)  # the rest takes much memory
        del self._packet
        return self.buffer, 1.0


def _total(weights: Sequence[float]) -> float:
    return sum(weight for weight in weights if weight > 0)


# --- The numbers that every rank sends ahead of its tensors.

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
