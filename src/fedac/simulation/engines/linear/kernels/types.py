"""The arguments of the kernels: named tuples, which Numba knows.

Kernels unpack them first: reading an array from a record inside a loop would count a reference in
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
    """``center . x_i`` by row; empty if the l2 term is centred at zero."""
    loss: tuple[int, ...]
    """One of `fedac.objectives.loss_functions`, or the user's own (`losses.py`)."""

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
        """How many numbers a row stores, on average."""
        return self.data[-1].size / len(self.y)


class Draws(NamedTuple):
    """Who takes part in a round, and what they draw (see `members.py`)."""

    seed: np.uint64
    r: int
    """The number of the round."""
    t: int
    """The first step of the round."""
    gap: int
    """How many steps it has."""
    batch: int
    """Rows per step; 0: all rows of the client."""
    taking_part: int
    """How many clients take part."""
    members: npt.NDArray[np.int64]
    """Their numbers; empty if everybody takes part."""
    bounds: npt.NDArray[np.int64]
    """The rows of client m are bounds[m] to bounds[m + 1]; empty if everybody has all rows."""
    weighted: bool
    """Whether clients count by their rows."""


class Tables(NamedTuple):
    """All that a kernel needs of the algorithms for one round of a given length (see `affine.py`).

    Arrays end in (sequence, lane) like a state; for the kernels they are padded and flat.
    """

    q: npt.NDArray[Any]
    """``c' A^t`` by step, t counted from the last fold, shape (gap, S, V)."""
    r: npt.NDArray[Any]
    """``A^-(t+1) b`` by step, of the same shape."""
    e: npt.NDArray[Any]
    """Where the l2 term is centred at a point u: the multiples of u that the query point has
    gathered by step, shape (gap, V)."""
    fold_after: npt.NDArray[np.bool_]
    """Whether Y is folded at this step, before its row is added."""
    folds: npt.NDArray[Any]
    """``A^L`` by fold, a column (of S numbers a lane) after the other, shape (folds, S, S, V)."""


class Closing(NamedTuple):
    """How the averaged Y of a round becomes the state after it; arrays end in (sequence, lane)."""

    to_base: Array
    """Matrices from the broadcast state to where an idle worker's Y ends."""
    to_state: Array
    """Matrices from there to the state at the end of the round."""
    constant: Array
    """The multiples of the centre of the l2 term that the state has gathered."""


class Shared(NamedTuple):
    """Numbers by row of the data, for W sequences and lanes (see `workers.py`)."""

    margins: npt.NDArray[Any]
    """Every row times the start, shape (n, W)."""
    steps: npt.NDArray[np.float64]
    """How much of every row each strand has added to its states, shape (strands, n, W)."""


class LocalRound(NamedTuple):
    """One round of local steps."""

    draws: Draws
    tables: Tables
    start: npt.NDArray[Any]
    """Where all workers start."""
    base: npt.NDArray[Any]
    """Where a worker that never moves ends."""
    shared: Shared
    """Without any rows if the workers share nothing."""
    collect: int
    """How the workers' moves are collected (see `kernels.py`)."""


class Terms(NamedTuple):
    """Linear combinations of vectors from some sources, without the terms that are zero.

    A slot is one combination's share of one source; the slots of a combination follow each other.
    """

    bounds: npt.NDArray[np.uint64]
    """The terms of slot i are bounds[i] to bounds[i + 1]."""
    inputs: npt.NDArray[np.uint64]
    """By term, which vector of its source it takes."""
    coefficients: npt.NDArray[Any]
    """By term, a number per lane; flat."""


class Boundary(NamedTuple):
    """How clients enter and leave a round (see `boundary.py`): T vectors travel, P are kept.

    Arrays end in a number per lane; they are padded and flat.
    """

    begin: Terms
    """A client's first memory, of what was broadcast."""
    enter: Terms
    """What it works on, of what was broadcast and its memory."""
    leave: Terms
    """Its message and memory, of its Y at the end, what was broadcast, and its memory before."""
    constant: npt.NDArray[Any]
    """The multiples of the centre of the l2 term in both, shape (T + P, V)."""
    broadcast: npt.NDArray[Any]
    """The sequences, shape (d, T, V)."""
    reference: npt.NDArray[Any]
    """What messages are compared with, of the same shape: the message of a client that remembers
    nothing and takes no step or, where messages are rounded, what their rounding starts from."""
    center: npt.NDArray[Any]
    """The centre of the l2 term, shape (d,)."""
    wire: int
    """How messages travel: a number of `fedac.wire.WIRES`."""
    echoes: npt.NDArray[np.int64]
    """By vector that is kept, which one of the message it follows where that is rounded; or -1."""


class Kept(NamedTuple):
    """What clients keep between their rounds."""

    memory: npt.NDArray[Any]
    """By client, shape (N, d P V)."""
    started: npt.NDArray[np.bool_]
    """Who has a memory already."""


class Scratch(NamedTuple):
    """A task's own memory."""

    Y: npt.NDArray[Any]
    """A worker's state."""
    sums: npt.NDArray[Any]
    """Sums of some workers' moves."""
    drawn: npt.NDArray[np.uint64]
    """The rows that a worker draws in a round."""
    slopes: npt.NDArray[Any] | tuple[()]
    """The derivatives of the losses of a batch; without a place where batches are single rows."""


class Block(NamedTuple):
    """Some steps of some dense workers: arrays of shape (workers, steps, ...)."""

    P: npt.NDArray[Any]
    """Each row times the state before the block."""
    gram: npt.NDArray[Any]
    """The rows of a worker times each other."""
    y: npt.NDArray[Any]
    offsets: npt.NDArray[Any]


class Batch(NamedTuple):
    """The distinct rows of a minibatch, and how often each was drawn."""

    drawn: npt.NDArray[np.uint64]
    weights: Array
