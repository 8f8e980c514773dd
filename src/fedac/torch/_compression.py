"""Compressed messages that all workers gather: how they are encoded, and how their mean is decoded.

Each sequence is one vector of the message, a concatenation of all parameters, as in the simulator.
Messages are rounded and decoded chunk by chunk in float64, without a copy of the model.
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
from fedac.federation.compression import BLOCK, Bytes, Sender, bytes_of
from fedac.federation.round import compress, decompress

# Numbers rounded at a time: their float64 copies stay in the cache.
CHUNK = 128 * BLOCK


class Chunk(NamedTuple):
    """A range of numbers of every vector of a message."""

    first: int
    numbers: int
    spans: list[tuple[int, slice]]  # the parameters it covers, and which part of each


def chunks(sizes: Sequence[int], numbers: int = CHUNK) -> Iterator[Chunk]:
    """Split vectors into chunks, given the sizes of all parameters.

    >>> for chunk in chunks([2, 3], numbers=4):
    ...     print(chunk.first, chunk.numbers, chunk.spans)
    0 4 [(0, slice(0, 2, None)), (1, slice(0, 2, None))]
    4 1 [(1, slice(2, 3, None))]
    """
    first, free, spans = 0, numbers, list[tuple[int, slice]]()
    for i, size in enumerate(sizes):
        start = 0
        while start < size:
            end = min(size, start + free)
            spans.append((i, slice(start, end)))
            free -= end - start
            start = end
            if not free:
                yield Chunk(first, numbers, spans)
                first, free, spans = first + numbers, numbers, []
    if spans:
        yield Chunk(first, numbers - free, spans)


class Vectors:
    """Vectors made of tensors: for every parameter a tuple with a tensor for each vector."""

    def __init__(self, tensors: Sequence[State]) -> None:
        columns = zip(*tensors, strict=True)
        self._columns = [[tensor.reshape(-1) for tensor in column] for column in columns]

    def read(self, chunk: Chunk) -> State:
        """Return a chunk of every vector, as float64 arrays."""
        return tuple(
            torch.cat([column[i][where] for i, where in chunk.spans]).cpu().double().numpy()
            for column in self._columns
        )

    def write(self, chunk: Chunk, values: State) -> None:
        """Replace a chunk of every vector; its tensors must be contiguous."""
        for column, value in zip(self._columns, values, strict=True):
            rest = torch.from_numpy(value)
            for i, where in chunk.spans:
                numbers = where.stop - where.start
                column[i][where] = rest[:numbers]
                rest = rest[numbers:]


class Packet:
    """The encoded message of one worker, and a decoder for the messages of all workers.

    `flat` has the message, parameter by parameter, and then the exact tensors; `began` and `memory`
    have for every parameter where the round began, and the worker's memory, which is updated to
    what the server receives. The bytes start with `leading` free ones, for a header.
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
        sender: Sender,
    ) -> None:
        self._algorithm, self._wire, self._leading = algorithm, sender.wire, leading
        self._sizes = [tensors[0].numel() for tensors in began]
        self._chunks, self._began = list(chunks(self._sizes)), Vectors(began)
        remembered, (message, exact) = Vectors(memory), self._split(flat)
        self.residuals = residuals and [torch.empty_like(each) for each in residuals]
        last = exact.cpu().numpy().view(np.uint8)
        S, encoded = len(algorithm.sequences), bytes_of(sender.wire, sum(self._sizes))
        self.data: Bytes = np.empty(leading + S * encoded + len(last), np.uint8)
        self.finite, end = bool(torch.isfinite(exact).all()), leading
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
        """Decode the packets of all workers, and write their weighted mean into a flat tensor."""
        total = sum(weight for weight in weights if weight > 0)
        used = [(w / total, row) for w, row in zip(weights, rows, strict=True) if w > 0]
        (message, exact), start = self._split(flat), self._leading
        for chunk in self._chunks:
            began = self._began.read(chunk)
            length = bytes_of(self._wire, chunk.numbers)
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
        """Return the message in a flat tensor, and the exact tensors after it."""
        S = len(self._algorithm.sequences)
        numbers = S * sum(self._sizes)
        views = iter(torch.split(flat[:numbers], [n for n in self._sizes for _ in range(S)]))
        return Vectors([tuple(next(views) for _ in range(S)) for _ in self._sizes]), flat[numbers:]
