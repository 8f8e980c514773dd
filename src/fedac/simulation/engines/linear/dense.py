# SPDX-License-Identifier: Apache-2.0
"""Workers and minibatches on dense rows of many lanes, by matrix products near the peak speed.

Within a block of steps a worker moves only along the rows it draws. Its margins need the start
point times those rows, and the rows times each other (their Gram matrix). So the recursion is over
numbers instead of long vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.federation.compression import WIRES, keys_of, rounded
from fedac.federation.sampling import sample_index
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.client_rounds import first_place
from fedac.simulation.engines.linear.kernels.interface import (
    Combinations,
    DenseBlock,
    Draws,
    LocalRound,
    Rows,
    Tables,
)
from fedac.simulation.engines.linear.kernels.simd import Template
from fedac.simulation.engines.linear.workers import ClientData, StreamedWorkers, sum_strands
from fedac.validate import Array

Numbers = npt.NDArray[Any]  # of the workers' precision
Indices = npt.NDArray[np.intp]

# With at most 8 numbers per coordinate (sequences times lanes), single steps are faster.
FEW = 8
# Rows of classes with at most so many columns are multiplied by the kernel.
FEW_COLUMNS = 128
# Rows in a block of steps: longer ones spend more on Gram matrices, shorter ones more on updates.
BLOCK = 64
# Workers whose rows are gathered at a time: some megabytes for thousands of columns.
WORKERS_AT_ONCE = 8
ROWS_AT_ONCE = 512


class DenseWorkers(StreamedWorkers):
    """Runs workers by products of some workers' rows at a time."""

    def how_to_collect(self, tables: Tables) -> int:
        """Choose how the moves of workers are collected (see `steps.py`).

        By row only in rounds of one block: after a block, workers are at different points.
        """
        gap, batch = len(tables.fold_after), self.full.batch
        one_block = batch is not None and gap * batch <= BLOCK and not len(tables.folds)
        return steps.BY_ROW if one_block and self.rows_repeat(gap) else steps.SWEEP

    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""
        (X,) = self.rows.data
        for rows in _slices(len(X), len(self.total), first, last):
            np.matmul(X[rows], self._matrix(self.start), out=self._by_row[0][rows])

    def add_rows(self, first: int, last: int) -> None:
        """Set the totals of some strands of rows to the sum of all workers' moves along them."""
        (X,) = self.rows.data
        self.total[first:last] = 0.0
        for strand in range(first, last):
            moved = self._matrix(self.total[strand])
            for rows in _slices(len(X), len(self.total), strand, strand + 1):
                moved += X[rows].T @ sum_strands(self._by_row[1][:, rows]).astype(X.dtype)

    def kernel(
        self, first: int, last: int, this_round: LocalRound, clients: ClientData | None
    ) -> None:
        """Run the workers of some strands: add their moves or messages to the sums."""
        draws, dtype = this_round.draws, self.rows.dtype
        by_row = this_round.collect == steps.BY_ROW
        strands = len(this_round.row_steps if by_row else self.total)
        weights = draws.weights()
        if len(this_round.scales):
            weights *= this_round.scales
        weights = weights.astype(dtype)
        at_once = 1 if clients else WORKERS_AT_ONCE
        # The same memory for all rows: allocating large arrays is slow.
        in_block = min(draws.gap * draws.batch, max(BLOCK, draws.batch))
        memory = np.empty((at_once * in_block, self.rows.data[0].shape[1]), dtype)
        for strand in range(first, last):
            begin, end = map(partial(first_place, draws, strands=strands), (strand, strand + 1))
            for place in range(begin, end, at_once):
                until = min(place + at_once, end)
                some = weights[place:until, None, None]
                if clients:
                    message = self._run_client(this_round, place, clients)
                    if len(scales := clients[0].scales):
                        message[:, clients[0].moving] *= scales[place]
                    weight, total = float(weights[place]), self.total[strand]
                    total[: message.size] += (weight * message).ravel()
                    if (points := clients[0].points).size:  # the lengths stand behind the messages
                        V = message.shape[-1]
                        squared = (message[:, points] ** 2).sum(axis=(0, 1))
                        total[message.size : message.size + V] += weight * squared
                elif by_row:
                    drawn = self._draw(draws, place, until)
                    x, P = _gather(self.rows, drawn, memory), this_round.margins[drawn]
                    C = self._block(this_round.tables, 0, draws.batch, drawn, x, P) * some
                    steps.scatter(self.sequences, drawn, C, this_round.row_steps[strand])
                else:
                    moved = self._matrix(self.total[strand])
                    self._run_workers(this_round, place, until, some, memory, moved)

    def _run_workers(
        self, this_round: LocalRound, first: int, last: int, weights: Numbers, memory: Numbers,
        moved: Array,
    ) -> None:  # fmt: skip
        """Run some workers from the start of the round, and add up their moves."""
        draws = this_round.draws
        if draws.batch == 0:
            starts, bases = (
                each.reshape(-1, len(moved), moved.shape[1])
                for each in (this_round.start, this_round.base)
            )
            versions = this_round.versions[first:last]
            for k, m in enumerate(draws.client_ids(first, last)):
                version = versions[k] if len(versions) else 0
                left = self._steps_on_all_rows(this_round, int(m), draws.gap, starts[version])
                moved += weights[k, 0, 0] * (left - bases[version])
            return
        start, base = self._matrix(this_round.start), self._matrix(this_round.base)
        drawn = self._draw(draws, first, last)
        Y, x, C = self._steps_on_drawn_rows(this_round, drawn, start, memory)
        if C.size:
            moved += x.reshape(-1, len(start)).T @ (C * weights).reshape(-1, C.shape[-1])
        if len(this_round.tables.folds) or draws.gap > max(1, BLOCK // draws.batch):
            moved += (weights * (Y - base)).sum(axis=0)

    def _run_client(self, this_round: LocalRound, place: int, clients: ClientData) -> Numbers:
        """Run a client that starts from its own state and takes all its rows at every step.

        Change its memory, and return its message.
        """
        coefficients, (memories, started) = clients
        draws, (_, V, T, _) = this_round.draws, self.widths
        (m,), shape = draws.client_ids(place, place + 1), (self.dim, -1, V)
        version = coefficients.versions[place] if coefficients.versions.size else 0
        broadcast, reference = (
            each.reshape(-1, self.dim, T, V)[version]
            for each in (coefficients.broadcast, coefficients.reference)
        )
        memory = memories[m].reshape(shape)
        if not started[m]:
            started[m] = True
            memory[:] = _combine(coefficients.begin, broadcast)
        # The coefficients for the client's number of steps.
        kind = draws.kinds[place] if draws.kinds.size else 0
        gap = draws.lengths[kind] if draws.kinds.size else draws.gap
        outputs = T + len(coefficients.echoes)
        entering = slice(kind * self.widths.S, (kind + 1) * self.widths.S)
        leaving = slice(kind * outputs, (kind + 1) * outputs)
        Y = self._matrix(_combine(coefficients.enter, broadcast, memory, which=entering))
        Y = self._steps_on_all_rows(this_round, int(m), gap, Y)
        constants = coefficients.constant.reshape(-1, V)[leaving]
        constant = constants * coefficients.center[:, None, None]
        left = constant + _combine(
            coefficients.leave, Y.reshape(shape), broadcast, memory, which=leaving
        )
        moved: Numbers = left[:, :T] - reference
        memory[:] = left[:, T:]
        if not coefficients.wire:
            return moved
        number = int(draws.numbers[place]) if draws.numbers.size else draws.r
        keys = keys_of(int(draws.seed), int(m), number, coefficients.places.astype(np.int64))
        by_vector = moved.transpose(1, 2, 0)
        sent = rounded(WIRES[coefficients.wire], by_vector, keys[:, None]).transpose(2, 0, 1)
        for p, t in enumerate(coefficients.echoes):
            memory[:, p] += sent[:, t] - moved[:, t] if t >= 0 else 0
        return sent

    def _steps_on_drawn_rows(
        self, this_round: LocalRound, drawn: Indices, start: Numbers, memory: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Take workers from `start` through a round.

        Return their states, and the last rows with the multiples of them that are yet to be added.
        """
        tables, batch = this_round.tables, this_round.draws.batch
        d, W = start.shape
        Y = np.broadcast_to(start, (len(drawn), d, W))
        next_fold = 0
        for a, b in _blocks(tables.fold_after, max(1, BLOCK // batch)):
            rows = drawn[:, a * batch : b * batch]
            x = _gather(self.rows, rows, memory)
            # Workers at the same start need only one product.
            P = (x.reshape(-1, d) @ start).reshape(*rows.shape, W) if a == 0 else x @ Y
            C = self._block(tables, a, batch, rows, x, P)
            if tables.fold_after[b - 1]:
                # All but the rows of the last step are added before Y is folded.
                Y = Y + x[:, :-batch].transpose(0, 2, 1) @ C[:, :-batch]
                for worker in Y:
                    self._fold(tables, next_fold, worker)
                next_fold += 1
                x, C = x[:, -batch:], C[:, -batch:]
            elif b == len(tables.fold_after):
                return Y, x, C
            Y = Y + x.transpose(0, 2, 1) @ C
        return Y, x[:, :0], C[:, :0]

    def _steps_on_all_rows(
        self, this_round: LocalRound, m: int, gap: int, start: Numbers
    ) -> Numbers:
        """Return the last state of a worker that takes all its rows at each of `gap` steps."""
        (X,), bounds, tables = self.rows.data, this_round.draws.bounds, this_round.tables
        own = slice(bounds[m], bounds[m + 1]) if bounds.size else slice(0, len(X))
        x, rows, Y = X[own], np.arange(len(X))[None, own], start.copy()
        next_fold = 0
        for k, fold in enumerate(tables.fold_after[:gap]):
            (C,) = self._block(tables, k, len(x), rows, x[None], (x @ Y)[None])
            if fold:
                self._fold(tables, next_fold, Y)
                next_fold += 1
            Y += x.T @ C
        return Y

    def _block(
        self, tables: Tables, first: int, batch: int, rows: Indices, x: Numbers, P: Numbers
    ) -> Numbers:
        """Return the multiples of the rows that a block of steps adds to the workers' states."""
        _, y, offsets, loss = self.rows
        gathered = np.zeros((0, 0), x.dtype)
        if offsets.size:
            gathered = offsets.reshape(len(y), -1)[rows].reshape(len(rows), -1)
        # The rows of a single step do not need each other.
        several = rows.shape[1] > batch
        gram = x @ x.transpose(0, 2, 1) if several else np.zeros((len(x), 0, 0), x.dtype)
        block = DenseBlock(P, gram, y[rows], gathered)
        C = np.empty_like(P)
        take = steps.gram_steps if self.rows.outputs == 1 else steps.gram_steps_of_classes
        take(self.lanes, self.sequences, loss, tables, first, batch, block, C)
        return C

    def _fold(self, tables: Tables, number: int, Y: Numbers) -> None:
        columns = tables.folds[number : number + 1]
        steps.fold_all(self.lanes, self.sequences, columns, Y.reshape(-1))

    def _draw(self, draws: Draws, first: int, last: int) -> Indices:
        """Return the rows that some workers draw in a round, one line per worker."""
        m, bounds = draws.client_ids(first, last)[:, None], draws.bounds
        numbers = draws.t * draws.batch + np.arange(draws.gap * draws.batch)
        size = bounds[m + 1] - bounds[m] if bounds.size else np.full(m.shape, draws.n)
        drawn = sample_index(int(draws.seed), m, numbers, size)
        return drawn + bounds[m] if bounds.size else drawn

    def _matrix(self, flat: Numbers) -> Numbers:
        """Return a state as a matrix: columns of the data by classes, sequences and lanes."""
        return flat.reshape(-1, self.rows.outputs * len(self.sequences))


def _combine(given: Combinations, *sources: Numbers, which: slice = slice(None)) -> Numbers:
    """Return some linear combinations of vectors, by coordinate and lane."""
    vectors = np.concatenate(sources, axis=1)
    combined: Numbers = np.einsum("kiv,div->dkv", given.coefficients[which], vectors)
    return combined


def _gather(given: Rows, rows: Indices, memory: Numbers) -> Numbers:
    """Copy rows into the given memory."""
    (X,) = given.data
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


def multiplied_by_kernel(rows: Rows) -> bool:
    """Return whether the kernel's own products of dense rows of classes are the faster ones."""
    return rows.dense and rows.outputs > 1 and rows.data[0].shape[1] <= FEW_COLUMNS


def sum_gradients(
    lanes: Template, rows: Rows, drawn: npt.NDArray[np.uint64], weights: Array, P: Array,
    total: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Sum gradients like `steps.sum_gradients`, for dense rows."""
    (X,) = rows.data
    d = X.shape[1]
    for strand in range(first, last):
        G = total[strand].reshape(d, -1)
        for some in _slices(len(drawn), len(total), strand, strand + 1):
            x = X[drawn[some]]
            Z = x @ P.reshape(d, -1)
            steps.derivatives(lanes, rows.loss, Z, rows.y[drawn[some]], weights[some])
            G += x.T @ Z
