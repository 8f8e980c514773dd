"""Rounds of local steps, and rounds of one step on all samples of the round."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.federation.schedule import Span
from fedac.simulation.engines.linear import dense
from fedac.simulation.engines.linear.coefficients import Affine, affine_form, round_tables
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.simd import Template, aligned, vector_width
from fedac.simulation.engines.linear.kernels.types import Closing, Draws, RowBatch, Tables
from fedac.simulation.engines.linear.lanes import LaneGroup
from fedac.simulation.engines.linear.workers import (
    STRANDS,
    Context,
    StreamedWorkers,
    Threads,
    Widths,
    sum_strands,
)
from fedac.validate import Array

# Lanes in one vector: with these a state of a9a's width fits the first-level cache.
LANES = {np.dtype(np.float32): 16, np.dtype(np.float64): 8}
# Lanes in one vector of a minibatch, whose gradients are summed in double precision.
BATCH_LANES = 16
BATCH_STRANDS = 16
# Smaller minibatches, relative to the rows of the data, are listed instead of counted.
SPARSE_BATCH = 0.25
# Draws that make counting on other nodes worth the round trip.
WORTH_SENDING = 2**22


def make_workers(context: Context, widths: Widths) -> StreamedWorkers:
    """Return workers for the kind of rows that the context has."""
    kind = dense.DenseWorkers if context.rows.dense else StreamedWorkers
    return kind(context, widths)


class LocalRounds:
    """Takes groups of lanes through rounds of local steps, by streamed workers."""

    def __init__(self, context: Context, groups: list[LaneGroup]) -> None:
        self.context = context
        self.workers = {group: make_workers(context, self.widths(group)) for group in groups}

    def widths(self, group: LaneGroup) -> Widths:
        """Return what the kernels of a group compute with.

        Widths stay when lanes diverge: others would have to be compiled.
        """
        S = group.state.shape[1]
        return Widths(S, self.padded_lanes(group), S)

    def round(self, group: LaneGroup, draws: Draws) -> None:
        """Advance every lane of a group by one round."""
        for first, last in self.chunks(group):
            self._advance(group, slice(first, last), draws)

    def chunks(self, group: LaneGroup) -> list[tuple[int, int]]:
        """Return which lanes share a vector: as few vectors as possible, evenly filled."""
        count = len(group.lanes)
        chunks = -(-count // LANES[self.context.rows.dtype])
        return list(pairwise(count * chunk // chunks for chunk in range(chunks + 1)))

    def padded_lanes(self, group: LaneGroup) -> int:
        """Return how many lanes a vector has, a power of two."""
        widest = max(last - first for first, last in self.chunks(group))
        return vector_width(widest)

    def forms(self, group: LaneGroup, where: slice, gap: int) -> list[Affine]:
        """Return the affine forms of some lanes of a group."""
        return list(map(affine_form, group.lanes[where]))

    def table(self, group: LaneGroup, where: slice, gap: int) -> tuple[Tables, Closing]:
        """Return the tables of a round, padded for the kernels."""
        known, key = self.context.tables, (tuple(group.indices[where]), gap)
        if group.decays or key not in known:  # a decaying step size needs new ones every round
            forms = self.forms(group, where, gap)
            dtype, V = self.context.rows.dtype, self.workers[group].widths.V
            tables, closing = round_tables(forms, self.context.regularizer.l2, gap, dtype)
            q, r, e = (padded(table, V, dtype).ravel() for table in (tables.q, tables.r, tables.e))
            folds = padded(tables.folds, V, dtype)
            folds = folds.reshape(len(folds), math.prod(folds.shape[1:]))
            known[key] = Tables(q, r, e, tables.fold_after, folds), closing
        return known[key]

    def _advance(self, group: LaneGroup, where: slice, draws: Draws) -> None:
        """Take some lanes of a group through a round."""
        state, workers, context = group.state[:, :, where], self.workers[group], self.context
        d, S, count = state.shape
        tables, closing = self.table(group, where, draws.gap)
        workers.start.reshape(d, S, -1)[:, :, :count] = state
        workers.run(draws, tables, group.indices[where])
        weight, center = draws.total_weight(len(context.rows.y)), context.regularizer.center
        # In strands of coordinates, which do not depend on each other.
        bounds = [d * strand // STRANDS for strand in range(STRANDS + 1)]
        context.threads.run(
            lambda first, last: steps.finish_round(
                workers.total, state, closing, center, weight, bounds[first], bounds[last]
            ),
            strands=STRANDS,
            work=d * S * count,
        )


def padded(array: Array, V: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array whose last axis is lanes with V of them."""
    wide = aligned((*array.shape[:-1], V), dtype)
    wide[..., : array.shape[-1]] = array
    return wide


class MinibatchRounds:
    """Rounds of one step on all samples: minibatch algorithms, and K = 1 of plain ones.

    A minibatch of M*K draws with replacement is a histogram of rows: each distinct row is visited
    once, with its count as weight. If clients have weights, a row is also weighted by its client.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.rows = context.exact_rows
        self.counts = RowCounts(context.threads, len(self.rows.y))
        # The same width from first to last: another one would have to be compiled.
        count = min(BATCH_LANES, len(context.problem.lanes))
        self.lanes = Template(np.float64, vector_width(count))
        size = (context.problem.objective.dim, len(self.lanes))
        self._points = aligned(size, np.float64)
        self._totals = aligned((BATCH_STRANDS, math.prod(size)), np.float64)
        self.counts.compile(context.draws(Span(0, 0, 1)))

    def round(self, groups: list[LaneGroup], draws: Draws) -> None:
        """Advance every lane of some groups by one step on all samples of a round."""
        points = [group.query() for group in groups]
        g = self._gradient(np.concatenate(points, axis=1), self._draw(draws))
        n, regularizer = len(self.rows.y), self.context.regularizer
        # The weights of a client's rows add up to the client's weight.
        g /= draws.total_weight(n) * (draws.gap * draws.batch or 1)
        queries = draws.rows_drawn(n)
        first = 0
        for group, w_md in zip(groups, points, strict=True):
            count = len(group.lanes)
            pull = regularizer.l2 * (w_md - regularizer.center[:, None])
            group.update(w_md, g[:, first : first + count] + pull)
            first += count
            self.context.problem.on_progress(queries * count)

    def _draw(self, draws: Draws) -> RowBatch:
        """Return the rows of a minibatch and how much each counts."""
        n, actors = len(self.rows.y), self.context.actors
        size = draws.rows_drawn(n)
        if draws.batch == 0:
            held = draws.rows_held(0, draws.taking_part, n)
            rows = np.arange(held.sum())
            if draws.bounds.size and draws.members.size:
                rows += np.repeat(draws.bounds[draws.members + 1] - np.cumsum(held), held)
            return RowBatch(rows.astype(np.uint64), np.repeat(self._weights(draws) / held, held))
        if size <= SPARSE_BATCH * n:
            drawn = np.empty(size, np.uint64)
            steps.list_rows(drawn, draws, n)
            return RowBatch(drawn, np.repeat(self._weights(draws), size // draws.taking_part))
        if actors and size >= WORTH_SENDING:
            counts = actors.count(draws.t)
        else:
            counts = self.counts.count(draws)
        distinct = np.flatnonzero(counts)
        weights = counts[distinct].astype(np.float64)
        if draws.weighted:
            holders = np.searchsorted(draws.bounds, distinct, side="right") - 1
            weights *= np.diff(draws.bounds)[holders]
        return RowBatch(distinct.astype(np.uint64), weights)

    def _weights(self, draws: Draws) -> Array:
        """Return how much each client of a round counts."""
        if not draws.weighted:
            return np.ones(draws.taking_part)
        return draws.rows_held(0, draws.taking_part, len(self.rows.y)).astype(np.float64)

    def _gradient(self, points: Array, batch: RowBatch) -> Array:
        """Return the sum of the weighted rows' gradients at every point, without the l2 term."""
        d, count = points.shape
        gradients = np.empty_like(points)
        strands = BATCH_STRANDS if len(batch.drawn) >= 1024 else 1
        V = len(self.lanes)
        sum_gradients = dense.sum_gradients if self.rows.dense else steps.sum_gradients
        for first in range(0, count, V):
            width = min(V, count - first)
            P, total = self._points, self._totals[:strands]
            P[:, :width] = points[:, first : first + width]
            P[:, width:] = 0.0
            total[:] = 0.0
            self.context.threads.run(
                partial(sum_gradients, self.lanes, self.rows, batch, P.reshape(-1), total),
                strands=strands,
                work=len(batch.drawn),
            )
            gradients[:, first : first + width] = sum_strands(total).reshape(d, V)[:, :width]
        return gradients


class RowCounts:
    """Counts how often each of n rows is drawn in a round, with memory for every thread."""

    def __init__(self, threads: Threads, n: int) -> None:
        self.threads = threads
        self._counts = np.zeros((threads.count, n), dtype=np.int64)

    def count(
        self, draws: Draws, first: int = 0, last: int = BATCH_STRANDS
    ) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn by the clients of some strands (default: all)."""
        self._counts[:] = 0
        slots = list(range(self.threads.count))

        def count(a: int, b: int) -> None:
            slot = slots.pop()
            places = (draws.taking_part * strand // BATCH_STRANDS for strand in (a, b))
            steps.count_rows(self._counts[slot], draws, *places)
            slots.append(slot)

        work = draws.rows_drawn(self._counts.shape[1])
        self.threads.run(count, first=first, strands=last - first, work=work)
        counts: npt.NDArray[np.int64] = self._counts.sum(axis=0)
        return counts

    def compile(self, draws: Draws) -> None:
        """Compile the kernel by counting nothing."""
        steps.count_rows(self._counts[0], draws, 0, 0)
