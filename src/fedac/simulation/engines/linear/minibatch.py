"""Rounds of one step on all samples of the round: minibatch algorithms, and K = 1 of any other.

A batch of M*K draws with replacement is a histogram of rows: each distinct row is visited once,
with its count as weight, whatever M and K are. Where clients differ, a row also counts as much as
the client that holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedac.federation.schedule import Span
from fedac.simulation.engines.linear import dense
from fedac.simulation.engines.linear.draws import (
    RowCounts,
    draws_of,
    rows_drawn,
    sizes,
    total_weight,
)
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.simd import Template, aligned
from fedac.simulation.engines.linear.kernels.types import Batch, Draws, Rows
from fedac.simulation.engines.linear.lanes import Pack
from fedac.simulation.engines.linear.rows import Regularizer
from fedac.simulation.engines.linear.threads import Threads, sum_strands
from fedac.simulation.problem import Problem
from fedac.validate import Array

if TYPE_CHECKING:
    from fedac.simulation.engines.ray.driver import Crew

# Lanes in one vector. Gradients are summed in double precision.
BATCH_LANES = 16
STRANDS = 16
# Batches smaller than this share of the data are listed, not counted.
SPARSE_BATCH = 0.25
# Draws that other nodes count sooner than we do, with the way there and back.
WORTH_SENDING = 2**22


@dataclass(eq=False)
class BatchRounds:
    """Takes packs of lanes through rounds of one step."""

    problem: Problem
    rows: Rows
    regularizer: Regularizer
    threads: Threads
    crew: Crew | None

    def __post_init__(self) -> None:
        self.counts = RowCounts(self.threads, len(self.rows.y))
        # The same width from first to last: another one would mean compiling again.
        count = min(BATCH_LANES, len(self.problem.lanes))
        self.lanes = Template(np.float64, 1 << (count - 1).bit_length())
        size = (self.problem.objective.dim, len(self.lanes))
        self._points = aligned(size, np.float64)
        self._totals = aligned((STRANDS, math.prod(size)), np.float64)
        self.counts.compile(draws_of(self.problem.federation, Span(0, 0, 1)))

    def round(self, packs: list[Pack], draws: Draws) -> None:
        """Advance every lane of some packs by one step on all samples of a round."""
        points = [pack.query() for pack in packs]
        batch = self._draw(draws)
        g = self._gradient(np.concatenate(points, axis=1), batch)
        n = len(self.rows.y)
        # A client's rows count as much as the client, all together.
        g /= total_weight(draws, n) * (draws.gap * draws.batch or 1)
        queries = rows_drawn(draws, n)
        first = 0
        for pack, w_md in zip(packs, points, strict=True):
            count = len(pack.lanes)
            pull = self.regularizer.l2 * (w_md - self.regularizer.center[:, None])
            pack.update(w_md, g[:, first : first + count] + pull)
            first += count
            self.problem.on_progress(queries * count)

    def _draw(self, draws: Draws) -> Batch:
        """Return the rows of a batch and how much each counts."""
        n = len(self.rows.y)
        if draws.batch == 0:
            return self._all_rows(draws)
        size = rows_drawn(draws, n)
        if size <= SPARSE_BATCH * n:
            drawn = np.empty(size, np.uint64)
            steps.list_rows(drawn, draws, n)
            return Batch(drawn, np.repeat(self._weights(draws), size // draws.taking_part))
        if self.crew and size >= WORTH_SENDING:
            counts = self.crew.count(draws.t)
        else:
            counts = self.counts.count(draws)
        distinct = np.flatnonzero(counts)
        weights = counts[distinct].astype(np.float64)
        if draws.weighted:
            owners = np.searchsorted(draws.bounds, distinct, side="right") - 1
            weights *= np.diff(draws.bounds)[owners]
        return Batch(distinct.astype(np.uint64), weights)

    def _all_rows(self, draws: Draws) -> Batch:
        """Return all rows of those who take part."""
        n = len(self.rows.y)
        held = sizes(draws, 0, draws.taking_part, n)
        rows = np.arange(held.sum())
        if draws.bounds.size and draws.members.size:
            rows += np.repeat(draws.bounds[draws.members + 1] - np.cumsum(held), held)
        return Batch(rows.astype(np.uint64), np.repeat(self._weights(draws) / held, held))

    def _weights(self, draws: Draws) -> Array:
        """Return how much each client counts."""
        if not draws.weighted:
            return np.ones(draws.taking_part)
        return sizes(draws, 0, draws.taking_part, len(self.rows.y)).astype(np.float64)

    def _gradient(self, points: Array, batch: Batch) -> Array:
        """Return the sum of the weighted rows' gradients at every point, without the l2 term."""
        d, count = points.shape
        gradients = np.empty_like(points)
        strands = STRANDS if len(batch.drawn) >= 1024 else 1
        V = len(self.lanes)
        sum_gradients = dense.sum_gradients if self.rows.dense else steps.sum_gradients
        for first in range(0, count, V):
            width = min(V, count - first)
            P, total = self._points, self._totals[:strands]
            P[:, :width] = points[:, first : first + width]
            P[:, width:] = 0.0
            total[:] = 0.0
            self.threads.run(
                partial(sum_gradients, self.lanes, self.rows, batch, P.reshape(-1), total),
                strands=strands,
                work=len(batch.drawn),
            )
            gradients[:, first : first + width] = sum_strands(total).reshape(d, V)[:, :width]
        return gradients
