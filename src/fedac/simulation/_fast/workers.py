"""All workers of a round, streamed through the kernels: what is left is the sum of their moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedac.simulation._fast import kernels
from fedac.simulation._fast.rows import Rows
from fedac.simulation._fast.shared import Shared, worth_sharing
from fedac.simulation._fast.simd import aligned, template
from fedac.simulation._fast.threads import Threads
from fedac.simulation.problem import Problem

# Workers are summed in this many fixed strands, fewer where their totals would fill the caches.
STRANDS = 64
TOTALS_BYTES = 4 * 2**20
FEWEST_STRANDS = 4


class Tables(NamedTuple):
    """The tables of a round (see `affine.py`), padded to the kernel's width."""

    q: npt.NDArray[Any]
    r: npt.NDArray[Any]
    e: npt.NDArray[Any]
    fold_after: npt.NDArray[np.bool_]
    folds: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Round:
    """One round as the kernels see it.

    Attributes
    ----------
    t, gap : int
        Its first step and its length.
    tables : Tables
        What it does to its lanes.
    base : array
        Where a worker that never moves would end.
    shared : Shared or None
        What the workers share, if they do; their moves are then summed by row.
    """

    t: int
    gap: int
    tables: Tables
    base: npt.NDArray[Any]
    shared: Shared | None


class Workers(ABC):
    """Runs the workers of a problem on chunks of V lanes with S sequences.

    It is laid out for a crowd of workers, which may be larger than the problem's (see `fast.py`).

    Attributes
    ----------
    start : array, shape (d S V,)
        Where all workers start the next round.
    total : array, shape (strands, d S V)
        How far they moved in the last one, in strands to be added up.
    """

    def __init__(
        self,
        problem: Problem,
        rows: Rows,
        dtype: np.dtype[Any],
        threads: Threads,
        crowd: int,
        S: int,
        V: int,
    ) -> None:
        self.problem = problem
        self.crowd = crowd
        self.rows = rows
        self.dtype = dtype
        self.threads = threads
        self.like = template(dtype, V)
        self.wide = template(dtype, S * V)
        size = problem.objective.dim * S * V
        strands = min(
            STRANDS,
            max(FEWEST_STRANDS, TOTALS_BYTES // (8 * size)),
            -(-problem.M // kernels.WORKERS_PER_SUM),
        )
        self.start = aligned((size,), dtype)
        self.total = aligned((strands, size), np.float64)

    def run(self, t: int, gap: int, tables: Tables, lanes: int) -> None:
        """Run all workers from `start` through steps t to t + gap and leave `total`."""
        base, shared = self.start, None
        if len(tables.folds):
            # Folded by the same code as the workers, an idle one ends at `base` to the bit.
            base = base.copy()
            kernels.fold_all(self.like, self.wide, tables.folds, base)
        elif self.may_share(gap):
            shared = self._shared
        this = Round(t, gap, tables, base, shared)
        if shared:
            self.threads.run(self.find_margins, strands=len(self.total), work=self._once)
        self._run_strands(this, self.problem.M * gap * lanes)
        if shared:
            self.threads.run(self.add_rows, strands=len(self.total), work=self._once)

    def may_share(self, gap: int) -> bool:
        """Say whether workers should share products with all rows in a round without folds."""
        return worth_sharing(self.crowd * gap, len(self.rows.y), len(self.wide))

    @abstractmethod
    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""

    @abstractmethod
    def run_strands(self, first: int, last: int, this: Round) -> None:
        """Run the workers of some strands, adding to their total or, if shared, their steps."""

    @abstractmethod
    def add_rows(self, first: int, last: int) -> None:
        """Set the total of some strands of rows to what all workers together added of them."""

    @cached_property
    def _shared(self) -> Shared:
        return Shared.room(len(self.rows.y), len(self.wide), self.dtype)

    @property
    def _once(self) -> int:
        """How much work it is to go over all rows once."""
        return int(len(self.rows.y) * self.rows.nonzeros_per_row)

    def _run_strands(self, this: Round, queries: int) -> None:
        sums = this.shared.steps if this.shared else self.total
        strands = len(sums)

        def task(first: int, last: int) -> None:
            sums[first:last] = 0.0
            self.run_strands(first, last, this)

        def report(first: int, last: int) -> None:
            # Differences of whole numbers: the parts add up to the queries of the round.
            self.problem.on_progress(queries * last // strands - queries * first // strands)

        work = self.problem.M * this.gap
        self.threads.run(task, strands=strands, work=work, on_done=report)
