"""What a worker hands over at the end of a round if its rounded message is gathered (`fedac.wire`).

All parameters of a sequence, one after the other, are one vector of the message, as in the
simulator. Messages are rounded and read chunk by chunk, in float64, so that no copy of the model is
made. Buffers of the model are not rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedac.algorithms import Algorithm
from fedac.algorithms.algorithm import State
from fedac.errors import InputError
from fedac.federation import compression
from fedac.federation.compression import BLOCK, INT8, Bytes
from fedac.federation.round import compress, decompress
from fedac.torch._flat import is_finite

# Numbers that are rounded at once: some float64 copies of so many stay in the cache.
CHUNK = 128 * BLOCK


class Chunk(NamedTuple):
    """Some numbers that follow each other in every vector of a message."""

    first: int
    numbers: int
    pieces: list[tuple[int, slice]]  # in which parameters they lie, and where


def chunks(sizes: Sequence[int], numbers: int = CHUNK) -> Iterator[Chunk]:
    """Cut vectors into chunks of so many numbers, given how many every parameter has.

    >>> for chunk in chunks([2, 3], numbers=4):
    ...     print(chunk.first, chunk.numbers, chunk.pieces)
    0 4 [(0, slice(0, 2, None)), (1, slice(0, 2, None))]
    4 1 [(1, slice(2, 3, None))]
    """
    first, free, pieces = 0, numbers, list[tuple[int, slice]]()
    for i, size in enumerate(sizes):
        start = 0
        while start < size:
            end = min(size, start + free)
            pieces.append((i, slice(start, end)))
            free -= end - start
            start = end
            if not free:
                yield Chunk(first, numbers, pieces)
                first, free, pieces = first + numbers, numbers, []
    if pieces:
        yield Chunk(first, numbers - free, pieces)


class Vectors:
    """Vectors in pieces: of every parameter a tuple of tensors, one for each vector.

    >>> x = Vectors([(torch.ones(1, 2), torch.zeros(1, 2)), (torch.ones(1), torch.zeros(1))])
    >>> (whole,) = chunks([2, 1])
    >>> x.read(whole)
    (array([1., 1., 1.]), array([0., 0., 0.]))
    """

    def __init__(self, tensors: Sequence[State]) -> None:
        columns = zip(*tensors, strict=True)
        self._columns = [[tensor.reshape(-1) for tensor in column] for column in columns]

    def read(self, chunk: Chunk) -> State:
        """Return a chunk of every vector, as float64 arrays."""
        return tuple(
            torch.cat([column[i][where] for i, where in chunk.pieces]).cpu().double().numpy()
            for column in self._columns
        )

    def write(self, chunk: Chunk, values: State) -> None:
        """Replace a chunk of every vector; its tensors must be contiguous."""
        for column, value in zip(self._columns, values, strict=True):
            rest = torch.from_numpy(value)
            for i, where in chunk.pieces:
                numbers = where.stop - where.start
                column[i][where] = rest[:numbers]
                rest = rest[numbers:]


class Packet:
    """The bytes of one worker's message, and how to read those of every worker.

    Parameters
    ----------
    algorithm : Algorithm
        Whose message it is.
    flat : Tensor
        What is sent: the message, parameter by parameter, and then what is not to be rounded.
    began, memory : sequences of tuples of tensors
        For every parameter where the round began, and what is remembered of it. The memory is
        changed: it follows what arrives.
    residuals : list of tensors, optional
        What rounding took from every vector so far, with error feedback.
    leading : int
        How many bytes to leave free for a header.
    sender : Sender
        What rounds the message.

    Attributes
    ----------
    data : array of uint8
        The bytes.
    residuals : list of tensors, optional
        What rounding took from every vector.
    finite : bool
        Whether all numbers that arrive, and all that are remembered, are finite.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        flat: Tensor,
        *,
        began: Sequence[State],
        memory: Sequence[State],
        residuals: list[Tensor] | None,
        leading: int,
        sender: compression.Sender,
    ) -> None:
        self._algorithm, self._wire, self._leading = algorithm, sender.wire, leading
        self._sizes = [tensors[0].numel() for tensors in began]
        self._chunks, self._began = list(chunks(self._sizes)), Vectors(began)
        remembered, (message, exact) = Vectors(memory), self._split(flat)
        self.residuals = residuals and [torch.empty_like(each) for each in residuals]
        last = exact.cpu().numpy().view(np.uint8)
        S, wired = len(algorithm.sequences), compression.bytes_of(sender.wire, sum(self._sizes))
        self.data: Bytes = np.empty(leading + S * wired + len(last), np.uint8)
        self.finite, end = is_finite(exact), leading
        for chunk in self._chunks:
            here = slice(chunk.first, chunk.first + chunk.numbers)
            this = replace(sender, first=chunk.first, data=[])
            if residuals is not None:
                this.residuals = [each[here].double().numpy() for each in residuals]
            vectors, old = message.read(chunk), remembered.read(chunk)
            sent, after = compress(algorithm, vectors, self._began.read(chunk), old, this)
            remembered.write(chunk, after)
            for left, new in zip(self.residuals or (), this.residuals or (), strict=True):
                left[here] = torch.from_numpy(new)
            self.finite &= all(bool(np.isfinite(vector).all()) for vector in (*sent, *after))
            for data in this.data:
                self.data[end : end + len(data)] = data
                end += len(data)
        self.data[end:] = last

    def read(self, rows: Sequence[Bytes], weights: Sequence[float], flat: Tensor) -> None:
        """Write the weighted mean of what all workers have sent into a flat tensor."""
        total = sum(weight for weight in weights if weight > 0)
        used = [(w / total, row) for w, row in zip(weights, rows, strict=True) if w > 0]
        (message, exact), start = self._split(flat), self._leading
        for chunk in self._chunks:
            began = self._began.read(chunk)
            length = compression.bytes_of(self._wire, chunk.numbers)
            starts = [start + length * t for t in range(len(began))]
            start += length * len(began)
            mean = tuple(np.zeros(chunk.numbers) for _ in began)
            for share, row in used:
                data = [row[first : first + length] for first in starts]
                arrived = decompress(self._algorithm, self._wire, data, began)
                for vector, value in zip(mean, arrived, strict=True):
                    vector += share * value
            message.write(chunk, mean)
        exact.zero_()
        for share, row in used:
            exact += share * torch.from_numpy(row[start:]).view(exact.dtype).to(exact.device)

    def _split(self, flat: Tensor) -> tuple[Vectors, Tensor]:
        """Return the message in a flat tensor, and what follows it."""
        S = len(self._algorithm.sequences)
        numbers = S * sum(self._sizes)
        views = iter(torch.split(flat[:numbers], [n for n in self._sizes for _ in range(S)]))
        return Vectors([tuple(next(views) for _ in range(S)) for _ in self._sizes]), flat[numbers:]


# --- What rounding took from this worker's messages, to be sent with the next one.


class Feedback:
    """The residuals of every vector of a message, or none without `error_feedback`.

    Examples
    --------
    >>> feedback = Feedback(True, wire="int8")
    >>> feedback.residuals(vectors=2, numbers=3, dtype=torch.float32)
    [tensor([0., 0., 0.]), tensor([0., 0., 0.])]
    """

    def __init__(self, error_feedback: bool, *, wire: str) -> None:
        if error_feedback and wire != INT8:
            raise InputError("error_feedback is for wire='int8' only, which rounds at random")
        self.is_used = error_feedback
        self._residuals: list[Tensor] = []  # those of the last message that arrived

    def residuals(self, *, vectors: int, numbers: int, dtype: torch.dtype) -> list[Tensor] | None:
        """Return those of so many vectors of so many numbers; they are not to be changed."""
        if not self.is_used:
            return None
        # Older checkpoints have them in float64.
        kept = [residual.to(dtype) for residual in self._residuals]
        return kept or [torch.zeros(numbers, dtype=dtype)] * vectors

    def keep(self, residuals: list[Tensor] | None) -> None:
        """Keep what a message that arrived has left."""
        self._residuals = residuals or []

    def tensors(self) -> list[Tensor] | None:
        """Return what a checkpoint holds."""
        return self._residuals if self.is_used else None

    def load(self, tensors: list[Tensor] | None) -> None:
        """Continue from a checkpoint; one that has none begins with zeros."""
        self._residuals = list(tensors or ())
