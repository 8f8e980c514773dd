# SPDX-License-Identifier: Apache-2.0
"""Means of compressed messages, which all workers gather.

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
from fedac.federation.round import compress, decompress, squared_moves
from fedac.torch._averaging import LENGTH, NOT_FINITE, Average, Header, flatten_again, sample
from fedac.torch._communication import Workers

# Numbers rounded at a time: their float64 copies stay in the cache.
CHUNK = 128 * BLOCK
# The header of a message is in float64.
HEADER_BYTES = 8 * LENGTH


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


class Gather(Average):
    """A mean of compressed messages: every worker gathers the bytes of all and decodes them.

    `began` and `memory` have for every parameter where the round began, and the worker's memory,
    which is updated to what the server receives.
    """

    def __init__(
        self,
        workers: Workers,
        header: Header,
        message: Sequence[Tensor],
        exact: Sequence[Tensor],
        *,
        algorithm: Algorithm,
        began: Sequence[State],
        memory: Sequence[State],
        sender: Sender,
        reuse: Tensor | None,
    ) -> None:
        super().__init__(workers, header, message)
        self._algorithm, self._wire = algorithm, sender.wire
        self._sizes = [tensors[0].numel() for tensors in began]
        self._chunks, self._began = list(chunks(self._sizes)), Vectors(began)
        self.buffer, _ = flatten_again([*message, *exact], workers.device, zeros=0, reuse=reuse)
        self._sample = sample(self.buffer[: self._numbers]).clone()
        if sender.residuals is not None:
            self.residuals = [torch.from_numpy(np.empty_like(each)) for each in sender.residuals]
        data, finite = self._encode(sender, Vectors(memory))
        if not finite:
            self.header = header._replace(weight=NOT_FINITE)
        data[:HEADER_BYTES] = np.array(self.header.numbers(), np.float64).view(np.uint8)
        self.bytes = data.nbytes
        self._arriving = (workers.start_gather(torch.from_numpy(data).to(workers.device)),)

    def _encode(self, sender: Sender, memory: Vectors) -> tuple[Bytes, bool]:
        """Return the bytes to send, without a header, and whether all numbers are finite."""
        message, exact = self._split_buffer()
        last = exact.cpu().numpy().view(np.uint8)
        encoded = len(self._algorithm.sent) * bytes_of(sender.wire, sum(self._sizes))
        data: Bytes = np.empty(HEADER_BYTES + encoded + len(last), np.uint8)
        finite, end = bool(torch.isfinite(exact).all()), HEADER_BYTES
        for chunk in self._chunks:
            here = slice(chunk.first, chunk.first + chunk.numbers)
            residuals = sender.residuals and [each[here] for each in sender.residuals]
            this = replace(sender, first=chunk.first, residuals=residuals, data=[])
            vectors, began = message.read(chunk), self._began.read(chunk)
            sent, after = compress(self._algorithm, vectors, began, memory.read(chunk), this)
            memory.write(chunk, after)
            for error, new in zip(self.residuals or (), this.residuals or (), strict=True):
                error[here] = torch.from_numpy(new)
            finite &= all(bool(np.isfinite(vector).all()) for vector in (*sent, *after))
            for part in this.data:
                data[end : end + len(part)] = part
                end += len(part)
        data[end:] = last
        return data, finite

    def _header_rows(self) -> list[list[float]]:
        (rows,) = self._arriving
        return [row[:HEADER_BYTES].cpu().numpy().view(np.float64).tolist() for row in rows]

    def collect(self, weights: Sequence[float]) -> tuple[Tensor, float]:
        (rows,) = self._arriving
        total = sum(weight for weight in weights if weight > 0)
        arrived = zip(weights, rows.cpu().numpy(), strict=True)
        used = [(weight / total, row) for weight, row in arrived if weight > 0]
        (message, exact), start = self._split_buffer(), HEADER_BYTES
        algorithm = self._algorithm
        for chunk in self._chunks:
            began = self._began.read(chunk)
            length = bytes_of(self._wire, chunk.numbers)
            starts = [start + length * t for t in range(len(algorithm.sent))]
            start += length * len(starts)
            mean = tuple(np.zeros(chunk.numbers) for _ in starts)
            for share, row in used:
                data = [row[first : first + length] for first in starts]
                message_of_one = decompress(algorithm, self._wire, data, began)
                if "moves" in algorithm.asks:
                    self.spread += share * squared_moves(algorithm, message_of_one, began)
                for vector, value in zip(mean, message_of_one, strict=True):
                    vector += share * value
            message.write(chunk, mean)
        exact.zero_()
        for share, row in used:
            exact += share * torch.from_numpy(row[start:]).view(exact.dtype).to(exact.device)
        self._arriving = (rows[:, :HEADER_BYTES].clone(),)  # the rest takes much memory
        return self.buffer, 1.0

    def _split_buffer(self) -> tuple[Vectors, Tensor]:
        """Return views of the message and of the exact tensors after it."""
        S = len(self._algorithm.sent)
        numbers = S * sum(self._sizes)
        views = iter(torch.split(self.buffer[:numbers], [n for n in self._sizes for _ in range(S)]))
        message = Vectors([tuple(next(views) for _ in range(S)) for _ in self._sizes])
        return message, self.buffer[numbers:]
