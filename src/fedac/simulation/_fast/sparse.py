"""Workers on sparse rows: a step costs as much as its row has numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.simulation._fast import kernels
from fedac.simulation._fast.simd import aligned, template
from fedac.simulation._fast.workers import Round, Workers

# What a task needs for itself: a worker's state, sums of some workers, the rows one draws.
Scratch = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint64]]


class SparseWorkers(Workers):
    """Runs workers through the compiled kernels."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._scratch: list[Scratch] = []
        self._blank: list[Scratch] = []  # its states are zeros before and after a round

    def may_share(self, gap: int) -> bool:
        """Say so for states too large for a near cache; in one, nothing is gained."""
        return self._sums_are_sparse(gap) and super().may_share(gap)

    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""
        kernels.find_margins(
            self.wide, self.rows.data, self.start, self._shared.margins,
            len(self.total), first, last,
        )  # fmt: skip

    def run_strands(self, first: int, last: int, this: Round) -> None:
        """Run the workers of some strands."""
        problem, rows = self.problem, self.rows
        pool = self._blank if this.shared else self._scratch
        Y, sums, drawn = self._borrow(pool)
        if len(drawn) < this.gap + kernels.ROWS_AHEAD:
            drawn = np.zeros(this.gap + kernels.ROWS_AHEAD, np.uint64)
        margins = this.shared.margins if this.shared else np.zeros((0, 0), self.dtype)
        steps = this.shared.steps if this.shared else np.zeros((0, 0, 0))
        kernels.run_workers(
            self.like, self.wide, rows.data, rows.y, rows.offsets, rows.loss,
            first, last, problem.M, np.uint64(problem.seed), this.t, this.gap,
            *this.tables, self.start, this.base, Y, sums, self.total, self._collect(this),
            drawn, margins, steps,
        )  # fmt: skip
        pool.append((Y, sums, drawn))

    def add_rows(self, first: int, last: int) -> None:
        """Set the total of some strands of rows to what all workers together added of them."""
        self.total[first:last] = 0.0
        exact = template(np.float64, len(self.wide))
        kernels.add_rows(exact, self.rows.data, self._shared.steps, self.total, first, last)

    def _collect(self, this: Round) -> int:
        """Choose how a worker's moves are collected."""
        if this.shared:
            return kernels.BY_ROW
        touched = this.gap * self.rows.nonzeros_per_row
        if len(this.tables.folds) or self.problem.objective.dim <= touched:
            return kernels.SWEEP
        return kernels.FAR if self._sums_are_sparse(this.gap) else kernels.TOUCHED

    def _sums_are_sparse(self, gap: int) -> bool:
        """Say whether even a sum of some workers' moves is mostly zeros."""
        touched = gap * self.rows.nonzeros_per_row
        return self.problem.objective.dim > kernels.WORKERS_PER_SUM * touched

    def _borrow(self, pool: list[Scratch]) -> Scratch:
        try:
            return pool.pop()
        except IndexError:
            size = self.start.shape
            return aligned(size, self.dtype), aligned(size, self.dtype), np.zeros(0, np.uint64)
