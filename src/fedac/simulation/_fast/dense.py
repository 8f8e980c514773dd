"""Work on dense rows by matrix products, which run near the processor's peak.

Within a block of steps a worker moves only along the rows it draws. Its margins need the start
point times those rows, and the rows times each other (their Gram matrix); what is left is a
recursion over numbers instead of one over long vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.arrays import Array
from fedac.sampling import sample_index
from fedac.simulation._fast import kernels
from fedac.simulation._fast.records import Batch, Block, LocalRound, Rows, Tables
from fedac.simulation._fast.simd import Template
from fedac.simulation._fast.threads import sum_strands
from fedac.simulation._fast.workers import Workers

Numbers = npt.NDArray[Any]  # of the workers' precision
Indices = npt.NDArray[np.intp]

# Steps in a block: longer ones spend more on Gram matrices, shorter ones more on updates.
BLOCK = 64
# Workers whose rows are gathered at a time: some megabytes for thousands of columns.
WORKERS_AT_ONCE = 8
ROWS_AT_ONCE = 512


class DenseWorkers(Workers):
    """Runs workers by products of some workers' rows at a time."""

    def may_share(self, gap: int) -> bool:
        """Say so for rounds of one block: after it, workers are at different points."""
        return gap <= BLOCK and super().may_share(gap)

    def how_to_collect(self, gap: int, *, folded: bool) -> int:
        """Collect over all coordinates: a dense row touches every one."""
        return kernels.SWEEP

    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""
        (X,) = self.rows.data
        for rows in _pieces(len(X), len(self.total), first, last):
            np.matmul(X[rows], self._matrix(self.start), out=self._shared.margins[rows])

    def add_rows(self, first: int, last: int) -> None:
        """Set the total of some strands of rows to what all workers together added of them."""
        (X,) = self.rows.data
        self.total[first:last] = 0.0
        for strand in range(first, last):
            moved = self._matrix(self.total[strand])
            for rows in _pieces(len(X), len(self.total), strand, strand + 1):
                moved += X[rows].T @ sum_strands(self._shared.steps[:, rows]).astype(X.dtype)

    def run_strands(self, first: int, last: int, this_round: LocalRound) -> None:
        """Run the workers of some strands."""
        (X,) = self.rows.data
        M, (_, t, gap) = self.problem.federation.taking_part, this_round.draws
        shared = this_round.collect == kernels.BY_ROW
        strands = len(this_round.shared.steps if shared else self.total)
        # The same memory for all rows: allocating large arrays is slow.
        memory = np.empty((WORKERS_AT_ONCE * min(BLOCK, gap), X.shape[1]), X.dtype)
        for strand in range(first, last):
            end = (strand + 1) * M // strands
            for m in range(strand * M // strands, end, WORKERS_AT_ONCE):
                workers = np.arange(m, min(m + WORKERS_AT_ONCE, end))[:, None]
                drawn = sample_index(
                    self.problem.federation.seed, workers, t + np.arange(gap), len(X)
                )
                if shared:
                    x, P = _gather(X, drawn, memory), this_round.shared.margins[drawn]
                    C = self._steps(this_round.tables, 0, drawn, x, P)
                    kernels.scatter(self.sequences, drawn, C, this_round.shared.steps[strand])
                else:
                    self._run_workers(this_round, drawn, memory, self._matrix(self.total[strand]))

    def _run_workers(
        self, this_round: LocalRound, drawn: Indices, memory: Numbers, moved: Array
    ) -> None:
        """Run the workers that draw some rows and add up how far they moved."""
        (X,) = self.rows.data
        tables, gap = this_round.tables, this_round.draws.gap
        origin = self._matrix(self.start)
        d, W = origin.shape
        Y = np.broadcast_to(origin, (len(drawn), d, W))
        next_fold = 0
        for a, b in _blocks(tables.fold_after):
            rows = drawn[:, a:b]
            x = _gather(X, rows, memory)
            # Workers at the same start need only one product.
            P = (x.reshape(-1, d) @ origin).reshape(*rows.shape, W) if a == 0 else x @ Y
            C = self._steps(tables, a, rows, x, P)
            if tables.fold_after[b - 1]:
                Y = Y + x[:, :-1].transpose(0, 2, 1) @ C[:, :-1]
                fold = tables.folds[next_fold : next_fold + 1]
                for worker in Y:
                    kernels.fold_all(self.lanes, self.sequences, fold, worker.reshape(-1))
                Y += x[:, -1, :, None] * C[:, -1, None, :]
                next_fold += 1
            elif b < gap:
                Y = Y + x.transpose(0, 2, 1) @ C
            else:
                moved += x.reshape(-1, d).T @ C.reshape(-1, W)
        if len(tables.folds) or gap > BLOCK:
            moved += (Y - self._matrix(this_round.base)).sum(axis=0)

    def _steps(self, tables: Tables, first: int, rows: Indices, x: Numbers, P: Numbers) -> Numbers:
        """Return what steps on some rows add to the workers' states, in multiples of the rows."""
        _, y, offsets, loss = self.rows
        gathered = offsets[rows] if offsets.size else np.zeros((0, 0), x.dtype)
        block = Block(P, x @ x.transpose(0, 2, 1), y[rows], gathered)
        C = np.empty_like(P)
        kernels.gram_steps(self.lanes, self.sequences, loss, tables, first, block, C)
        return C

    def _matrix(self, flat: Numbers) -> Numbers:
        """Return a flat state as a matrix: its coordinates by its sequences and lanes."""
        return flat.reshape(-1, len(self.sequences))


def _gather(X: Numbers, rows: Indices, memory: Numbers) -> Numbers:
    """Copy rows into the given memory."""
    out = memory[: rows.size].reshape(*rows.shape, X.shape[1])
    # With `clip`, as opposed to `raise`, NumPy needs no buffer of its own.
    return np.take(X, rows, axis=0, out=out, mode="clip")


def _blocks(fold_after: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Cut a round into blocks that are short and end where Y is folded."""
    first = 0
    for k, fold in enumerate(fold_after):
        if fold or k + 1 - first == BLOCK or k + 1 == len(fold_after):
            yield first, k + 1
            first = k + 1


def _pieces(n: int, strands: int, first: int, last: int) -> Iterator[slice]:
    """Cut the rows of some strands into pieces that do not depend on the number of threads."""
    for strand in range(first, last):
        end = (strand + 1) * n // strands
        for a in range(strand * n // strands, end, ROWS_AT_ONCE):
            yield slice(a, min(a + ROWS_AT_ONCE, end))


def sum_gradients(
    lanes: Template, rows: Rows, batch: Batch, P: Array, total: Array, first: int, last: int
) -> None:
    """Do what `kernels.sum_gradients` does, for dense rows."""
    (X,) = rows.data
    d, V = X.shape[1], len(lanes)
    for strand in range(first, last):
        G = total[strand].reshape(d, V)
        for piece in _pieces(len(batch.drawn), len(total), strand, strand + 1):
            drawn = batch.drawn[piece]
            x = X[drawn]
            Z = x @ P.reshape(d, V)
            kernels.derivatives(lanes, rows.loss, Z, rows.y[drawn], batch.weights[piece])
            G += x.T @ Z
