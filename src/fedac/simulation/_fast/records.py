"""What the kernels get: named tuples, which Numba knows.

Kernels unpack them at their top: taken out of a record inside a loop, an array would be counted
as one more reference in every pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.arrays import Array


class Rows(NamedTuple):
    """A linear model's data, the same in every round.

    Attributes
    ----------
    data : tuple of arrays
        ``(indptr, indices)`` for rows of ones, ``(indptr, indices, values)`` or ``(X,)``.
    y : array
        Targets.
    offsets : array
        ``center . x_i`` by row, or nothing where the l2 term is centred at zero.
    loss : tuple
        One of the losses of `losses.py`.
    """

    data: tuple[npt.NDArray[Any], ...]
    y: npt.NDArray[np.floating[Any]]
    offsets: npt.NDArray[np.floating[Any]]
    loss: tuple[int, ...]

    @property
    def dense(self) -> bool:
        """Whether rows are dense."""
        return len(self.data) == 1

    @property
    def nonzeros_per_row(self) -> float:
        """How many numbers a row stores, on average."""
        return self.data[-1].size / len(self.y)


class Draws(NamedTuple):
    """The draws of one round: steps t to t + gap of the workers' streams (`fedac.sampling`)."""

    seed: np.uint64
    t: int
    gap: int


class Tables(NamedTuple):
    """The tables of a round (see `affine.py`), padded to the width of the kernel's vectors."""

    q: npt.NDArray[Any]
    r: npt.NDArray[Any]
    e: npt.NDArray[Any]
    fold_after: npt.NDArray[np.bool_]
    folds: npt.NDArray[Any]


class Closing(NamedTuple):
    """How the averaged Y of a round becomes the state after it, arrays over (sequence, lane).

    Attributes
    ----------
    to_base, to_state : array, shape (S, S, V)
        Matrices from the broadcast state to where an idle worker's Y ends, and from there to
        the state at the end of the round.
    constant : array, shape (S, V)
        The multiples of the centre of the l2 term that the state has gathered.
    """

    to_base: Array
    to_state: Array
    constant: Array


class Shared(NamedTuple):
    """Numbers by row of the data, for W sequences and lanes (see `shared.py`).

    Attributes
    ----------
    margins : array, shape (n, W)
        Every row times the start.
    steps : array, shape (strands, n, W)
        How much of every row the workers of a strand have added to their states.
    """

    margins: npt.NDArray[Any]
    steps: npt.NDArray[np.float64]


class LocalRound(NamedTuple):
    """One round of local steps.

    Attributes
    ----------
    M : int
        Workers.
    draws : Draws
        Its steps, and the rows drawn in them.
    tables : Tables
        What the steps do to the lanes.
    start, base : array, shape (d S V,)
        Where all workers start, and where a worker that never moves ends.
    shared : Shared
        What the workers share; without any rows if they share nothing.
    collect : int
        How their moves are collected (see `kernels.py`).
    """

    M: int
    draws: Draws
    tables: Tables
    start: npt.NDArray[Any]
    base: npt.NDArray[Any]
    shared: Shared
    collect: int


class Scratch(NamedTuple):
    """A task's own memory: a worker's state, sums of some workers' moves, the rows one draws."""

    Y: npt.NDArray[Any]
    sums: npt.NDArray[Any]
    drawn: npt.NDArray[np.uint64]


class Block(NamedTuple):
    """Some steps of some dense workers: arrays of shape (workers, steps, ...).

    Attributes
    ----------
    P : array
        Each row times the state before the block.
    gram : array
        The rows of a worker times each other.
    y, offsets : array
        The rows' targets and offsets.
    """

    P: npt.NDArray[Any]
    gram: npt.NDArray[Any]
    y: npt.NDArray[Any]
    offsets: npt.NDArray[Any]


class Batch(NamedTuple):
    """The distinct rows of a minibatch, and how often each was drawn."""

    drawn: npt.NDArray[np.uint64]
    weights: Array
