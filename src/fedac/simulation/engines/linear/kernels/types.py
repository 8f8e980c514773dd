"""The arguments of the kernels: named tuples, which Numba understands.

Kernels unpack them first: reading an array from a tuple inside a loop would count a reference in
every pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.validate import Array


class Rows(NamedTuple):
    """A linear model's data, the same in every round."""

    data: tuple[npt.NDArray[Any], ...]
    """``(indptr, indices)`` for rows of ones, ``(indptr, indices, values)``, or ``(X,)``."""
    y: npt.NDArray[np.floating[Any]]
    offsets: npt.NDArray[np.floating[Any]]
    """``center . x_i`` by row; empty if the l2 term is centered at zero."""
    loss: tuple[int, ...]
    """One of `fedac.objectives.losses`, or a user's (`losses.Custom`)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision of the workers' states."""
        return self.y.dtype

    @property
    def dense(self) -> bool:
        """Whether rows are dense."""
        return len(self.data) == 1

    @property
    def nonzeros_per_row(self) -> float:
        """How many numbers a row stores on average."""
        return self.data[-1].size / len(self.y)


class Draws(NamedTuple):
    """The participants of a round and their draws.

    Rows are sorted by client, so a client's rows are those between two bounds.
    """

    seed: np.uint64
    r: int  # the number of the round
    t: int  # the first step of the round
    gap: int  # how many steps it has
    batch: int  # rows per step; 0: all rows of the client
    taking_part: int  # number of participants
    members: npt.NDArray[np.int64]  # their ids; empty if all clients participate
    bounds: npt.NDArray[np.int64]
    """The rows of client m are bounds[m] to bounds[m + 1]; empty if every client has all rows."""
    weighted: bool  # whether clients count by their rows

    def client_ids(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the ids of some clients, given by their places among the participants."""
        return self.members[first:last] if self.members.size else np.arange(first, last)

    def rows_held(self, first: int, last: int, n: int) -> npt.NDArray[np.int64]:
        """Return how many of n rows each of some clients holds."""
        m = self.client_ids(first, last)
        return self.bounds[m + 1] - self.bounds[m] if self.bounds.size else np.full(len(m), n)

    def total_weight(self, n: int) -> float:
        """Return the sum of the weights of all clients of the round."""
        everybody = self.taking_part
        return float(self.rows_held(0, everybody, n).sum() if self.weighted else everybody)

    def rows_drawn(self, n: int) -> int:
        """Return how many of n rows all clients of the round draw together."""
        if self.batch:
            return self.taking_part * self.gap * self.batch
        return int(self.rows_held(0, self.taking_part, n).sum()) * self.gap


class Tables(NamedTuple):
    """What a kernel needs to know of algorithms for a round of some length (see `coefficients.py`).

    Arrays end in (sequence, lane) like a state; for the kernels they are padded and flat.
    """

    q: npt.NDArray[Any]  # c' A^t by step, t counted from the last fold, shape (gap, S, V)
    r: npt.NDArray[Any]  # A^-(t+1) b by step, of the same shape
    e: npt.NDArray[Any]
    """If the l2 term is centered at a point u: the multiple of u in the query point by step, shape
    (gap, V)."""
    fold_after: npt.NDArray[np.bool_]  # whether Y is folded at this step, before its row is added
    folds: npt.NDArray[Any]
    """``A^L`` by fold, column by column (S numbers per lane), shape (folds, S, S, V)."""


class Closing(NamedTuple):
    """How the averaged Y of a round becomes the state after it; arrays end in (sequence, lane)."""

    to_base: Array  # matrices from the broadcast state to where an idle worker's Y ends
    to_state: Array  # matrices from there to the state at the end of the round
    constant: Array  # the multiples of the center of the l2 term in the state


class Shared(NamedTuple):
    """Numbers by row of the data, for W sequences and lanes (see `workers.py`)."""

    margins: npt.NDArray[Any]  # every row times the start, shape (n, W)
    steps: npt.NDArray[np.float64]
    """The multiples of every row that each strand has added, shape (strands, n, W)."""


class LocalRound(NamedTuple):
    """One round of local steps."""

    draws: Draws
    tables: Tables
    start: npt.NDArray[Any]  # where all workers start
    base: npt.NDArray[Any]  # where a worker that never moves ends
    shared: Shared  # without any rows if the workers share nothing
    collect: int  # how the workers' moves are collected (see `steps.py`)


class Combinations(NamedTuple):
    """Linear combinations of vectors from some sources, without the terms that are zero.

    A slot is one combination's share of one source; the slots of a combination follow each other.
    """

    bounds: npt.NDArray[np.uint64]  # the terms of slot i are bounds[i] to bounds[i + 1]
    inputs: npt.NDArray[np.uint64]  # by term, which vector of its source it takes
    coefficients: npt.NDArray[Any]  # by term, a number per lane; flat


class ClientCoefficients(NamedTuple):
    """How clients enter and leave a round: T vectors travel, P are kept.

    Arrays end in a number per lane; they are padded and flat.
    """

    begin: Combinations  # A client's first memory, from the broadcast
    enter: Combinations  # what it works on, from the broadcast and its memory
    leave: Combinations
    """Its message and next memory, from its last Y, the broadcast, and its memory."""
    constant: npt.NDArray[Any]
    """The multiples of the center of the l2 term in both, shape (T + P, V)."""
    broadcast: npt.NDArray[Any]  # the sequences, shape (d, T, V)
    reference: npt.NDArray[Any]
    """Subtracted from messages, of the same shape: the message of a client without memory that
    takes no step or, if messages are rounded, the point that rounding starts from."""
    center: npt.NDArray[Any]  # the center of the l2 term, shape (d,)
    wire: int  # the format of messages, an index of `fedac.federation.compression.WIRES`
    echoes: npt.NDArray[np.int64]
    """By vector of the memory, the vector of the message that it follows where that is rounded;
    -1: none."""


class Memories(NamedTuple):
    """What clients keep between their rounds."""

    memory: npt.NDArray[Any]  # by client, shape (N, d P V)
    started: npt.NDArray[np.bool_]  # which clients have a memory already


class Scratch(NamedTuple):
    """The working memory of one task."""

    Y: npt.NDArray[Any]  # A worker's state
    sums: npt.NDArray[Any]  # sums of some workers' moves
    drawn: npt.NDArray[np.uint64]  # the rows that a worker draws in a round
    slopes: npt.NDArray[Any] | tuple[()]
    """The derivatives of the losses of a batch; an empty tuple where batches are single rows."""


class DenseBlock(NamedTuple):
    """Some steps of some dense workers: arrays of shape (workers, steps, ...)."""

    P: npt.NDArray[Any]  # each row times the state before the block
    gram: npt.NDArray[Any]  # the rows of a worker times each other
    y: npt.NDArray[Any]
    offsets: npt.NDArray[Any]


class RowBatch(NamedTuple):
    """The rows of a minibatch, and how much each counts."""

    drawn: npt.NDArray[np.uint64]
    weights: Array
