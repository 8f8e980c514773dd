"""What a worker hands over at the end of a round if its message is rounded (`fedac.wire`).

All parameters of a sequence, one after the other, are one vector of the message, as in the
simulator. Buffers of the model are not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedac import wire
from fedac.algorithms import Algorithm
from fedac.algorithms.record import State
from fedac.torch.flat import flatten, parts, sample

Bytes = npt.NDArray[np.uint8]
CPU = torch.device("cpu")


class Packet:
    """The bytes of one worker's message, and how to read those of every worker.

    Parameters
    ----------
    algorithm : Algorithm
        Whose message it is.
    message, began, memory : sequences of tuples of tensors
        For every parameter what is sent, where the round began, and what is remembered of it.
    buffers : sequence of tensors
        What is sent as it is.
    sender : Sender
        What rounds the message.

    Attributes
    ----------
    data : array of uint8
        The bytes.
    memory : list of tuples of tensors
        What is to be remembered: it follows what arrives.
    residuals : list of arrays, optional
        What rounding took from every vector, with error feedback.
    finite : bool
        Whether all of them are finite numbers.
    numbers, message_numbers : int
        How many numbers `read` returns, and how many of them are the message, which comes first.
    sample : Tensor
        Some numbers of the message (`fedac.torch.flat.sample`).
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        message: Sequence[State],
        began: Sequence[State],
        memory: Sequence[State],
        buffers: Sequence[Tensor],
        sender: wire.Sender,
    ) -> None:
        self._algorithm, self._wire = algorithm, sender.wire
        self._began = joined(began)
        vectors = joined(message)
        sent, after = wire.send(algorithm, vectors, self._began, joined(memory), sender)
        exact = flatten(buffers, CPU).numpy()
        self._exact = exact.dtype
        self._sizes = [tensors[0].numel() for tensors in message]
        self._lengths = [len(data) for data in sender.data]
        self.data: Bytes = np.concatenate([*sender.data, exact.view(np.uint8)])
        self.memory, self.residuals = apart(after, memory), sender.residuals
        self.finite = all(bool(np.isfinite(vector).all()) for vector in (*sent, *after, exact))
        self.message_numbers = sum(len(vector) for vector in sent)
        self.numbers = self.message_numbers + len(exact)
        self.sample = sample(self._by_parameter(vectors)).clone()

    def read(self, data: Bytes) -> Tensor:
        """Return the message and the buffers that arrive, parameter by parameter, in float64."""
        *rounded, exact = np.split(data, np.cumsum(self._lengths))
        vectors = wire.receive(self._algorithm, self._wire, rounded, self._began)
        buffers = torch.from_numpy(exact.view(self._exact).astype(np.float64))
        return torch.cat([self._by_parameter(vectors), buffers])

    def _by_parameter(self, vectors: State) -> Tensor:
        pieces = [torch.split(torch.from_numpy(vector), self._sizes) for vector in vectors]
        return torch.cat([*chain.from_iterable(zip(*pieces, strict=True))])


def joined(tensors: Sequence[State]) -> tuple[npt.NDArray[np.float64], ...]:
    """Return vectors of all parameters, each of which has a tensor for every vector.

    >>> joined([(torch.ones(1, 2), torch.zeros(1, 2)), (torch.ones(1), torch.zeros(1))])
    (array([1., 1., 1.]), array([0., 0., 0.]))
    """
    return tuple(flatten(vector, CPU).double().numpy() for vector in zip(*tensors, strict=True))


def apart(vectors: State, like: Sequence[State]) -> list[State]:
    """Undo `joined`, with the types of the given tensors.

    >>> apart((np.arange(3.0),), [(torch.ones(1, 2),), (torch.ones(1),)])
    [(tensor([[0., 1.]]),), (tensor([2.]),)]
    """
    columns = zip(*like, strict=True)
    pairs = zip(vectors, columns, strict=True)
    split = [parts(torch.from_numpy(vector), column) for vector, column in pairs]
    return list(zip(*split, strict=True)) or [()] * len(like)
