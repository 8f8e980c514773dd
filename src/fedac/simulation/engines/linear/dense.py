"""Workers and minibatches on dense rows, by matrix products that run near the processor's peak.

Within a block of steps a worker moves only along the rows it draws. Its margins need the start
point times those rows, and the rows times each other (their Gram matrix). So the recursion is over
numbers instead of long vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.federation.compression import WIRES, keys_of, rounded
from fedac.federation.sampling import sample_index
from fedac.simulation.engines.linear.coefficients import to_dense
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.simd import Template
from fedac.simulation.engines.linear.kernels.types import (
    ClientCoefficients,
    DenseBlock,
    Draws,
    LocalRound,
    Memories,
    RowBatch,
    Rows,
    Tables,
)
from fedac.simulation.engines.linear.workers import ClientData, StreamedWorkers, sum_strands
from fedac.validate import Array

Numbers = npt.NDArray[Any]  # of the workers' precision
Indices = npt.NDArray[np.intp]

# Rows in a block of steps: longer ones spend more on Gram matrices, shorter ones more on updates.
BLOCK = 64
# Workers whose rows are gathered at a time: some megabytes for thousands of columns.
WORKERS_AT_ONCE = 8
ROWS_AT_ONCE = 512


class DenseWorkers(StreamedWorkers):
    """Runs workers by products of some workers' rows at a time."""

    def how_to_collect(self, gap: int, *, folded: bool) -> int:
        """Choose how the moves of workers are collected (see `steps.py`).

        By row in rounds of one block only: after it, workers are at different points.
        """
        batch = self.full.batch
        one_block = batch is not None and gap * batch <= BLOCK
        return steps.BY_ROW if one_block and not folded and self.rows_repeat(gap) else steps.SWEEP

    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""
        (X,) = self.rows.data
        for rows in _slices(len(X), len(self.total), first, last):
            np.matmul(X[rows], self._matrix(self.start), out=self._shared.margins[rows])

    def add_rows(self, first: int, last: int) -> None:
        """Set the totals of some strands of rows to the sum of all workers' moves along them."""
        (X,) = self.rows.data
        self.total[first:last] = 0.0
        for strand in range(first, last):
            moved = self._matrix(self.total[strand])
            for rows in _slices(len(X), len(self.total), strand, strand + 1):
                moved += X[rows].T @ sum_strands(self._shared.steps[:, rows]).astype(X.dtype)

    def kernel(
        self, first: int, last: int, this_round: LocalRound, clients: ClientData | None
    ) -> None:
        """Run the workers of some strands: add their moves or messages to the sums."""
        if clients is not None:
            self._run_clients(first, last, this_round, *clients)
            return
        (X,) = self.rows.data
        draws = this_round.draws
        shared = this_round.collect == steps.BY_ROW
        strands = len(this_round.shared.steps if shared else self.total)
        # The same memory for all rows: allocating large arrays is slow.
        in_block = min(draws.gap * draws.batch, max(BLOCK, draws.batch))
        memory = np.empty((WORKERS_AT_ONCE * in_block, X.shape[1]), X.dtype)
        for strand in range(first, last):
            end = (strand + 1) * draws.taking_part // strands
            for place in range(strand * draws.taking_part // strands, end, WORKERS_AT_ONCE):
                until = min(place + WORKERS_AT_ONCE, end)
                weights = self._weights(draws, place, until)
                if draws.batch == 0:
                    moved = self._matrix(self.total[strand])
                    for m, weight in zip(draws.client_ids(place, until), weights, strict=True):
                        start = self._matrix(this_round.start).copy()
                        Y = self._steps_on_all_rows(this_round, int(m), start)
                        moved += weight * (Y - self._matrix(this_round.base))
                    continue
                drawn = self._draw(draws, place, until)
                if shared:
                    x, P = _gather(X, drawn, memory), this_round.shared.margins[drawn]
                    C = self._block(this_round.tables, 0, draws.batch, drawn, x, P)
                    C *= weights[:, None, None]
                    steps.scatter(self.sequences, drawn, C, this_round.shared.steps[strand])
                else:
                    moved = self._matrix(self.total[strand])
                    self._run_workers(this_round, drawn, weights, memory, moved)

    def _run_clients(
        self,
        first: int,
        last: int,
        this_round: LocalRound,
        coefficients: ClientCoefficients,
        memories: Memories,
    ) -> None:
        draws, (S, V, T) = this_round.draws, self.widths
        shape = (self.dim, -1, V)
        P = coefficients.constant.size // V - T
        broadcast = coefficients.broadcast.reshape(shape)
        reference = coefficients.reference.reshape(shape)
        begin = to_dense(coefficients.begin, (T,), V)
        enter = to_dense(coefficients.enter, (T, P), V)
        leave = to_dense(coefficients.leave, (S, T, P), V)
        constant = coefficients.constant.reshape(-1, V) * coefficients.center[:, None, None]
        for strand in range(first, last):
            summed = self.total[strand].reshape(shape)
            start, end = (draws.taking_part * s // len(self.total) for s in (strand, strand + 1))
            weights = self._weights(draws, start, end)
            for place, m in enumerate(draws.client_ids(start, end), start=start):
                memory = memories.memory[m].reshape(shape)
                if not memories.started[m]:
                    memories.started[m] = True
                    memory[:] = _combine(begin, broadcast)
                Y = _combine(enter, broadcast, memory)
                after = self._steps_of_client(this_round, place, Y.reshape(len(Y), -1))
                left = constant + _combine(leave, after.reshape(shape), broadcast, memory)
                moved = left[:, :T] - reference
                memory[:] = left[:, T:]
                if coefficients.wire:
                    sent = _on_wire(moved, coefficients.wire, draws, int(m))
                    for p, t in enumerate(coefficients.echoes):
                        memory[:, p] += sent[:, t] - moved[:, t] if t >= 0 else 0
                    moved = sent
                summed += float(weights[place - start]) * moved

    def _steps_of_client(self, this_round: LocalRound, place: int, Y: Numbers) -> Numbers:
        """Return the last Y of the client at a place, from its first."""
        (X,) = self.rows.data
        draws, tables = this_round.draws, this_round.tables
        if draws.batch == 0:
            (m,) = draws.client_ids(place, place + 1)
            return self._steps_on_all_rows(this_round, int(m), Y)
        (drawn,) = self._draw(draws, place, place + 1)
        batch, next_fold = draws.batch, 0
        for a, b in _blocks(tables.fold_after, max(1, BLOCK // batch)):
            rows = drawn[a * batch : b * batch]
            x = X[rows]
            (C,) = self._block(tables, a, batch, rows[None], x[None], (x @ Y)[None])
            if tables.fold_after[b - 1]:
                # All but the rows of the last step are added before Y is folded.
                Y = Y + x[:-batch].T @ C[:-batch]
                self._fold(tables, next_fold, Y)
                Y += x[-batch:].T @ C[-batch:]
                next_fold += 1
            else:
                Y = Y + x.T @ C
        return Y

    def _steps_on_all_rows(self, this_round: LocalRound, m: int, Y: Numbers) -> Numbers:
        """Move the Y of a worker that takes all its rows at every step in place, and return it."""
        (X,), bounds, tables = self.rows.data, this_round.draws.bounds, this_round.tables
        own = slice(bounds[m], bounds[m + 1]) if bounds.size else slice(0, len(X))
        x, rows = X[own], np.arange(len(X))[None, own]
        next_fold = 0
        for k, fold in enumerate(tables.fold_after):
            (C,) = self._block(tables, k, len(x), rows, x[None], (x @ Y)[None])
            if fold:
                self._fold(tables, next_fold, Y)
                next_fold += 1
            Y += x.T @ C
        return Y

    def _run_workers(
        self,
        this_round: LocalRound,
        drawn: Indices,
        weights: Numbers,
        memory: Numbers,
        moved: Array,
    ) -> None:
        """Run the workers that draw some rows, and add up their moves."""
        (X,) = self.rows.data
        tables, gap, batch = this_round.tables, this_round.draws.gap, this_round.draws.batch
        origin = self._matrix(self.start)
        d, W = origin.shape
        Y = np.broadcast_to(origin, (len(drawn), d, W))
        next_fold = 0
        steps_in_block = max(1, BLOCK // batch)
        for a, b in _blocks(tables.fold_after, steps_in_block):
            rows = drawn[:, a * batch : b * batch]
            x = _gather(X, rows, memory)
            # Workers at the same start need only one product.
            P = (x.reshape(-1, d) @ origin).reshape(*rows.shape, W) if a == 0 else x @ Y
            C = self._block(tables, a, batch, rows, x, P)
            if tables.fold_after[b - 1]:
                # All but the rows of the last step are added before Y is folded.
                Y = Y + x[:, :-batch].transpose(0, 2, 1) @ C[:, :-batch]
                for worker in Y:
                    self._fold(tables, next_fold, worker)
                Y += x[:, -batch:].transpose(0, 2, 1) @ C[:, -batch:]
                next_fold += 1
            elif b < gap:
                Y = Y + x.transpose(0, 2, 1) @ C
            else:
                C *= weights[:, None, None]
                moved += x.reshape(-1, d).T @ C.reshape(-1, W)
        if len(tables.folds) or gap > steps_in_block:
            moved += (weights[:, None, None] * (Y - self._matrix(this_round.base))).sum(axis=0)

    def _block(
        self, tables: Tables, first: int, batch: int, rows: Indices, x: Numbers, P: Numbers
    ) -> Numbers:
        """Return the multiples of the rows that a block of steps adds to the workers' states."""
        _, y, offsets, loss = self.rows
        gathered = offsets[rows] if offsets.size else np.zeros((0, 0), x.dtype)
        # The rows of a single step do not need each other.
        several = rows.shape[1] > batch
        gram = x @ x.transpose(0, 2, 1) if several else np.zeros((len(x), 0, 0), x.dtype)
        block = DenseBlock(P, gram, y[rows], gathered)
        C = np.empty_like(P)
        steps.gram_steps(self.lanes, self.sequences, loss, tables, first, batch, block, C)
        return C

    def _fold(self, tables: Tables, number: int, Y: Numbers) -> None:
        columns = tables.folds[number : number + 1]
        steps.fold_all(self.lanes, self.sequences, columns, Y.reshape(-1))

    def _draw(self, draws: Draws, first: int, last: int) -> Indices:
        """Return the rows that some workers draw in a round, one line per worker."""
        m, n = draws.client_ids(first, last)[:, None], len(self.rows.y)
        size = draws.rows_held(first, last, n)[:, None]
        numbers = draws.t * draws.batch + np.arange(draws.gap * draws.batch)
        drawn = sample_index(int(draws.seed), m, numbers, size)
        return drawn + draws.bounds[m] if draws.bounds.size else drawn

    def _weights(self, draws: Draws, first: int, last: int) -> Numbers:
        if not draws.weighted:
            return np.ones(last - first, self.rows.dtype)
        return draws.rows_held(first, last, len(self.rows.y)).astype(self.rows.dtype)

    def _matrix(self, flat: Numbers) -> Numbers:
        """Return a flat state as a matrix: its coordinates by its sequences and lanes."""
        return flat.reshape(-1, len(self.sequences))


def _combine(coefficients: Numbers, *sources: Numbers) -> Numbers:
    """Return linear combinations of vectors, by coordinate and lane."""
    combined: Numbers = np.einsum("kiv,div->dkv", coefficients, np.concatenate(sources, axis=1))
    return combined


def _on_wire(moved: Numbers, wire: int, draws: Draws, m: int) -> npt.NDArray[np.float64]:
    """Return a client's vectors as they arrive, shape (coordinates, vectors, lanes)."""
    keys = keys_of(int(draws.seed), m, draws.r, np.arange(moved.shape[1]))
    return rounded(WIRES[wire], moved.transpose(1, 2, 0), keys[:, None]).transpose(2, 0, 1)


def _gather(X: Numbers, rows: Indices, memory: Numbers) -> Numbers:
    """Copy rows into the given memory."""
    out = memory[: rows.size].reshape(*rows.shape, X.shape[1])
    # With `clip`, as opposed to `raise`, NumPy needs no buffer.
    return np.take(X, rows, axis=0, out=out, mode="clip")


def _blocks(fold_after: npt.NDArray[np.bool_], longest: int) -> Iterator[tuple[int, int]]:
    """Cut a round into blocks that are short and end where Y is folded."""
    first = 0
    for k, fold in enumerate(fold_after):
        if fold or k + 1 - first == longest or k + 1 == len(fold_after):
            yield first, k + 1
            first = k + 1


def _slices(n: int, strands: int, first: int, last: int) -> Iterator[slice]:
    """Cut the rows of some strands into slices that do not depend on the number of threads."""
    for strand in range(first, last):
        end = (strand + 1) * n // strands
        for a in range(strand * n // strands, end, ROWS_AT_ONCE):
            yield slice(a, min(a + ROWS_AT_ONCE, end))


def sum_gradients(
    lanes: Template, rows: Rows, batch: RowBatch, P: Array, total: Array, first: int, last: int
) -> None:
    """Sum gradients like `steps.sum_gradients`, for dense rows."""
    (X,) = rows.data
    d, V = X.shape[1], len(lanes)
    for strand in range(first, last):
        G = total[strand].reshape(d, V)
        for some in _slices(len(batch.drawn), len(total), strand, strand + 1):
            drawn = batch.drawn[some]
            x = X[drawn]
            Z = x @ P.reshape(d, V)
            steps.derivatives(lanes, rows.loss, Z, rows.y[drawn], batch.weights[some])
            G += x.T @ Z
