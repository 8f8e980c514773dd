"""Rounds of one step on all samples of the round: minibatch algorithms, and K = 1 of any other.

A batch of M*K draws with replacement is a histogram of rows: each distinct row is visited once,
with its count as weight, whatever M and K are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.arrays import Array
from fedac.simulation._fast import dense, kernels
from fedac.simulation._fast.pack import Pack
from fedac.simulation._fast.rows import Regularizer, Rows
from fedac.simulation._fast.simd import aligned, template
from fedac.simulation._fast.threads import Threads, sum_strands
from fedac.simulation.problem import Problem

# Lanes in one vector. Gradients are summed in double precision.
LANES = 16
STRANDS = 16
# Batches smaller than this share of the data are listed, not counted.
SPARSE_BATCH = 0.25


class BatchRounds:
    """Takes packs of lanes through rounds of one step."""

    def __init__(
        self, problem: Problem, rows: Rows, regularizer: Regularizer, threads: Threads
    ) -> None:
        self.problem = problem
        self.rows = rows
        self.regularizer = regularizer
        self.threads = threads
        self.counts = np.zeros((threads.count, len(rows.y)), dtype=np.int64)
        # As wide from first to last: shapes that change would mean compiling again.
        lanes = min(LANES, len(problem.lanes))
        self.like = template(np.float64, 1 << (lanes - 1).bit_length())
        kernels.count_rows(self.counts[0], 0, 0, np.uint64(0), 0, 1)  # compiles it

    def round(self, packs: list[Pack], t: int, gap: int) -> None:
        """Advance every lane of some packs by one step on the M*gap samples from step t on."""
        drawn, weights = self._draw(t, gap)
        points = [pack.query() for pack in packs]
        g = self._gradient(np.concatenate(points, axis=1), drawn, weights)
        g /= self.problem.M * gap
        first = 0
        for pack, w_md in zip(packs, points, strict=True):
            count = len(pack.lanes)
            pull = self.regularizer.l2 * (w_md - self.regularizer.center[:, None])
            pack.update(w_md, g[:, first : first + count] + pull)
            first += count
            self.problem.on_progress(self.problem.M * gap * count)

    def _draw(self, t: int, gap: int) -> tuple[npt.NDArray[np.uint64], Array]:
        """Return the distinct rows of a batch and how often each was drawn."""
        M, n, seed = self.problem.M, len(self.rows.y), np.uint64(self.problem.seed)
        if M * gap <= SPARSE_BATCH * n:
            drawn = np.empty(M * gap, np.uint64)
            kernels.list_rows(drawn, M, n, seed, t, gap)
            return drawn, np.ones(M * gap)
        self.counts[:] = 0
        slots = list(range(self.threads.count))

        def count(first: int, last: int) -> None:
            slot = slots.pop()
            kernels.count_rows(
                self.counts[slot], M * first // STRANDS, M * last // STRANDS, seed, t, gap
            )
            slots.append(slot)

        self.threads.run(count, strands=STRANDS, work=M * gap)
        counts = self.counts.sum(axis=0)
        distinct = np.flatnonzero(counts)
        return distinct.astype(np.uint64), counts[distinct].astype(np.float64)

    def _gradient(
        self, points: Array, drawn: npt.NDArray[np.uint64], weights: Array
    ) -> npt.NDArray[Any]:
        """Return the sum of the weighted rows' gradients at every point, without the l2 term."""
        d, count = points.shape
        gradients = np.empty_like(points)
        strands = STRANDS if len(drawn) >= 1024 else 1
        rows = self.rows
        like, V = self.like, len(self.like)
        for first in range(0, count, V):
            lanes = min(V, count - first)
            P = aligned((d, V), np.float64)
            P[:, :lanes] = points[:, first : first + lanes]
            total = aligned((strands, d * V), np.float64)

            def task(a: int, b: int, P: Array = P, total: Array = total) -> None:
                if rows.dense:
                    X = rows.data[0]
                    dense.sum_gradients(
                        like, X, rows.y, rows.loss, drawn, weights, a, b, P, total
                    )  # fmt: skip
                else:
                    kernels.sum_gradients(
                        like, rows.data, rows.y, rows.loss, drawn, weights,
                        a, b, P.reshape(-1), total,
                    )  # fmt: skip

            self.threads.run(task, strands=strands, work=len(drawn))
            summed = sum_strands(total).reshape(d, V)
            gradients[:, first : first + lanes] = summed[:, :lanes]
        return gradients
