# SPDX-License-Identifier: Apache-2.0
"""Weighted means over all workers by one all-reduce, in flat buffers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.federation.compression import BFLOAT16, INT8
from fedac.torch._communication import Workers

CHUNK = 2**18  # numbers copied at a time: they are still in the cache when they are read again
SAMPLED, STRETCHES = 2**16, 64  # the size of a sample, and the stretches it consists of
NOT_FINITE = -1.0  # sent in place of the weight by a worker whose tensors are not finite
EXACT = 2**24  # whole numbers below are exact in float32


class Header(NamedTuple):
    """What a worker sends ahead of its tensors.

    >>> header = Header(weight=1.0, digest=7, steps=128, finished=True, size=2.5)
    >>> header.numbers()
    [1.0, 7, -129, 2.5]
    >>> Header.read(header.numbers(), near=100) == header
    True
    """

    weight: float  # 0 without a step, `NOT_FINITE` if its tensors are not
    digest: int  # a hash of its settings and of where its round began
    steps: int
    finished: bool = False  # whether it has run out of batches
    size: float = 0.0  # a bound on the numbers it sends

    def numbers(self) -> list[float]:
        counted = self.steps % (EXACT // 2) + 1
        return [self.weight, self.digest, -counted if self.finished else counted, self.size]

    @classmethod
    def read(cls, numbers: Sequence[float], *, near: int) -> Header:
        """Return a worker's header; its steps are less than four million from `near`."""
        weight, digest, counted, size = numbers
        half = EXACT // 4
        ahead = (int(abs(counted)) - 1 - near + half) % (EXACT // 2) - half
        return cls(weight, int(digest), near + ahead, counted < 0, size)


LENGTH = len(Header(1.0, 0, 0).numbers())


class Average(ABC):
    """A weighted mean over all workers, started when it is created.

    Every worker sends a header, its message, and the `exact` tensors (buffers of the model, state
    of the user's optimizer), which are never rounded.
    """

    bytes: int  # handed over by this process
    buffer: Tensor  # flat memory, for the next average to reuse
    residuals: list[Tensor] | None = None  # rounding errors of the message, with error feedback
    spread: float = 0.0  # weighted mean of the squared moves, if asked for; see `collect`
    _sample: Tensor  # of this worker's message
    _arriving: tuple[Tensor, ...]  # what all workers send

    def __init__(self, workers: Workers, header: Header, message: Sequence[Tensor]) -> None:
        self.header, self._workers = header, workers
        self._numbers = sum(tensor.numel() for tensor in message)

    def wait(self) -> float:
        """Wait until everything has arrived; return the seconds it took."""
        before = time.perf_counter()
        self._workers.finish(*self._arriving)
        return time.perf_counter() - before

    def headers(self) -> list[Header]:
        return [Header.read(row, near=self.header.steps) for row in self._header_rows()]

    def distance(self, flat: Tensor, divisor: float) -> float:
        """Return how far this worker's message was from the mean; an estimate if it is large."""
        difference = self._sample - sample(flat[: self._numbers]) / divisor
        norm = float(torch.linalg.vector_norm(difference, dtype=torch.float64))
        return norm * math.sqrt(self._numbers / max(self._sample.numel(), 1))

    @abstractmethod
    def _header_rows(self) -> list[list[float]]: ...

    @abstractmethod
    def collect(self, weights: Sequence[float]) -> tuple[Tensor, float]:
        """Return a flat sum over the workers with positive weights, and the divisor of the mean.

        If the method asks for "moves", `spread` is known from here on.
        """


class AllReduce(Average):
    """A mean by one all-reduce.

    The buffer ends with the headers of all workers. Every worker fills in one and leaves the rest
    0, so the sum has them all. `private` tensors are not sent but must be finite too.

    If the number of workers is a power of two, they divide by it before they send: that rounds
    nothing, and the sum is usually the mean.

    `squared_moves`, for methods that ask for "moves", returns the squared length of the moves of a
    message. The buffer then has it too, as its last number before the headers.
    """

    def __init__(
        self,
        workers: Workers,
        header: Header,
        message: Sequence[Tensor],
        exact: Sequence[Tensor],
        *,
        private: Sequence[Tensor] = (),
        squared_moves: Callable[[Iterable[Tensor]], Tensor] | None = None,
        reuse: Tensor | None = None,
    ) -> None:
        super().__init__(workers, header, message)
        tensors = [*message, *exact]
        self._zeros = LENGTH * workers.size
        self._factor = 1 / workers.size if workers.size.bit_count() == 1 else 1.0
        factor = (header.weight or 1.0) * self._factor
        self._has_spread = squared_moves is not None
        if squared_moves is not None:
            tensors.append(squared_moves(self._decoded(message, factor)).to(message[0].dtype))
        self.buffer, norm = self._fill(tensors, factor, reuse)
        unsure = () if torch.isfinite(norm) else (*tensors, *self._arriving[:-1])
        if all(map(is_finite, (*unsure, *private))):
            size = min(float(norm), torch.finfo(self.buffer.dtype).max)
            self.header = header._replace(size=size)
        else:
            self.header = header._replace(weight=NOT_FINITE)
        if self.header.weight <= 0:
            for tensor in self._arriving:
                tensor.zero_()  # NaN would spoil the sum
        self._all_headers = self.buffer[-self._zeros :].view(-1, LENGTH)
        self._all_headers[workers.rank] = torch.tensor(self.header.numbers(), dtype=torch.float64)
        self.bytes = sum(tensor.nbytes for tensor in self._arriving)
        workers.start_sum(*self._arriving)

    def _fill(
        self, tensors: Sequence[Tensor], factor: float, reuse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the buffer and the norm of what is sent."""
        device = self._workers.device
        buffer, norm = flatten_again(tensors, device, zeros=self._zeros, reuse=reuse, factor=factor)
        self._sample = sample(buffer[: self._numbers]) / factor
        self._arriving = (buffer,)
        return buffer, norm

    def _header_rows(self) -> list[list[float]]:
        return list(self._all_headers.tolist())

    def _decoded(self, message: Sequence[Tensor], factor: float) -> Iterable[Tensor]:
        """Return the message as the other workers receive it."""
        return message

    def collect(self, weights: Sequence[float]) -> tuple[Tensor, float]:
        flat, divisor = self.buffer[: -self._zeros], sum(w for w in weights if w > 0) * self._factor
        if self._has_spread:
            self.spread = float(flat[-1]) / divisor
            flat = flat[:-1]
        return flat, divisor


class BFloat16AllReduce(AllReduce):
    """A mean by a bfloat16 all-reduce of the messages' differences from where the round `began`.

    Sums are rounded to bfloat16 wherever two are added, in the same way for all workers. Exact
    tensors and headers go by a second all-reduce.
    """

    def __init__(self, *arguments: Any, began: Sequence[Tensor], **options: Any) -> None:
        self._began = began
        super().__init__(*arguments, **options)

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

    def _decoded(self, message: Sequence[Tensor], factor: float) -> Iterable[Tensor]:
        for ours, began in zip(message, self._began, strict=True):
            yield began + ((ours - began) * factor).to(torch.bfloat16).to(ours) / factor

    def collect(self, weights: Sequence[float]) -> tuple[Tensor, float]:
        flat, total = super().collect(weights)
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


def is_gathered(wire: str, algorithm: Algorithm) -> bool:
    """Check whether workers gather all messages instead of using an all-reduce.

    Codes of int8 cannot be added. An all-reduce rounds partial sums of bfloat16, so a worker's
    memory of its message would not match what arrived, and control variates would drift.
    """
    remembers = bool(algorithm.echoes or algorithm.changes)
    return wire == INT8 or (wire == BFLOAT16 and remembers)


@torch.no_grad()
def flatten(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Concatenate tensors into one of the most precise of their types, at least float32."""
    zeros = torch.zeros(0, dtype=torch.float32, device=device)
    return torch.cat([zeros, *_flat_views(tensors, device)])


@torch.no_grad()
def flatten_again(
    tensors: Sequence[Tensor],
    device: torch.device,
    *,
    zeros: int,
    reuse: Tensor | None,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Flatten tensors times a factor into one that ends with `zeros` zeros; return it and its norm.

    If `reuse` has the size and type of the result, it becomes the result: allocating takes longer
    than copying. The norm is computed while the numbers are in the cache.
    """
    views = _flat_views(tensors, device)
    numbers = zeros + sum(view.numel() for view in views)
    dtype = reduce(torch.promote_types, {view.dtype for view in views}, torch.float32)
    flat = reuse
    if flat is None or (flat.numel(), flat.dtype, flat.device) != (numbers, dtype, device):
        with torch.inference_mode(False):  # the state may move into it
            flat = torch.empty(numbers, dtype=dtype, device=device)
    end = numbers - zeros
    flat[end:] = 0
    squares = [torch.zeros((), dtype=dtype, device=device)]
    # From the end, which the last step has left in the cache, to the beginning, which is then in
    # the cache when the mean is read.
    for batch in reversed(_batches(views)):
        sizes = [view.numel() for view in batch]
        part = flat[end - sum(sizes) : end]
        end -= sum(sizes)
        targets = torch.split(part, sizes)
        if factor == 1:
            torch._foreach_copy_(targets, batch)
        else:
            for target, view in zip(targets, batch, strict=True):
                torch.mul(view.to(dtype), factor, out=target)
        squares.append(torch.dot(part, part))
    return flat, torch.stack(squares).double().sum().sqrt()


def parts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat tensor into tensors like the given ones."""
    cut = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(like).to(like) for part, like in zip(cut, tensors, strict=True)]


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor], *, divisor: float = 1.0) -> None:
    """Copy the parts of a flat tensor, divided by a number, into tensors."""
    cut = torch.split(flat, [tensor.numel() for tensor in tensors])
    values = [part.view_as(tensor) for part, tensor in zip(cut, tensors, strict=True)]
    if divisor == 1:
        torch._foreach_copy_(list(tensors), values)
        return
    for value, tensor in zip(values, tensors, strict=True):
        if value.device == tensor.device:  # both in one pass over memory
            torch.div(value, divisor, out=tensor)
        else:
            tensor.copy_(value / divisor)


def is_finite(tensor: Tensor) -> bool:
    """Check for NaN and infinity, usually in one pass over memory."""
    # If the norm is finite, so are all numbers; if not, it may have overflowed.
    norm = torch.linalg.vector_norm(tensor)
    return bool(torch.isfinite(norm)) or bool(torch.isfinite(tensor).all())


@torch.no_grad()
def checksum(tensors: Sequence[Tensor], device: torch.device) -> int:
    """Return a sum of the bits of tensors, in about half the time of a copy."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for batch in _batches(_flat_views(tensors, device)):
        part = batch[0] if len(batch) == 1 else torch.cat(batch)
        # Sums in the type of the bits are much faster than others; they may wrap around.
        bits = torch.int64 if part.element_size() == 8 else torch.int32
        total += part.view(bits).sum(dtype=bits)
    return int(total)


def sample(flat: Tensor) -> Tensor:
    """Return stretches of a flat tensor; all of it if it is small."""
    if len(flat) <= SAMPLED:
        return flat
    rows = flat[: len(flat) // STRETCHES * STRETCHES].view(STRETCHES, -1)
    return rows[:, : SAMPLED // STRETCHES]


def _flat_views(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return flat views of tensors; neighbours in memory share one."""
    joined = (
        run[0] if len(run) == 1 else run[0].as_strided((sum(t.numel() for t in run),), (1,))
        for run in _neighbours(tensors)
    )
    views = [view.reshape(-1) for view in joined]
    return [view if view.device == device else view.to(device) for view in views]


def _neighbours(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group tensors of one type that are neighbours in the same storage."""
    runs: list[list[Tensor]] = []
    end = limit = -1  # of the last tensor, and of its storage once that is needed
    for tensor in tensors:
        start, length, in_order = tensor.data_ptr(), tensor.nbytes, tensor.is_contiguous()
        follows = start == end and tensor.dtype == runs[-1][0].dtype
        if follows and limit < 0:
            memory = runs[-1][0].untyped_storage()
            limit = memory.data_ptr() + memory.nbytes()
        # Tensors in another memory format (channels last) have no neighbours.
        if follows and start + length <= limit and in_order:
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
            limit = -1
        end = start + length if in_order else -1
    return runs


def _batches(views: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return lists of tensors that fill the cache together; large ones are split."""
    batches: list[list[Tensor]] = []
    numbers = CHUNK
    for view in views:
        for part in torch.split(view, CHUNK) if view.numel() > CHUNK else (view,):
            if numbers >= CHUNK:
                batches.append([])
                numbers = 0
            batches[-1].append(part)
            numbers += part.numel()
    return batches


@torch.no_grad()
def move_state(mean: Tensor, state: Sequence[Tensor], exact: Sequence[Tensor]) -> Tensor | None:
    """Make state tensors views of a flat mean; the exact tensors after them get copies.

    This is double buffering: the state is not copied, and the next round fills the memory that it
    leaves, which is returned. So a round that fails has changed nothing but the buffer it filled.

    State tensors of another type or memory format (channels last) get copies too. All state tensors
    that share memory must move together.
    """
    left: Tensor | None = None
    dtype, device = mean.dtype, mean.device
    parts = iter(torch.split(mean, [tensor.numel() for tensor in (*state, *exact)]))
    for tensor, part in zip(state, parts, strict=False):
        value, same_kind = part.view_as(tensor), tensor.dtype == dtype
        if same_kind and tensor.device == device and tensor.is_contiguous():
            if left is None:
                left = torch.empty(0, dtype=dtype, device=device)
                left.set_(tensor.untyped_storage())
            tensor.data = value
        else:
            tensor.copy_(value)
    for tensor, part in zip(exact, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
    return left
