"""Losses of many lanes at once, read off the data in one pass."""

from __future__ import annotations

import numpy as np

from fedac.engine import kernels, losses
from fedac.engine.rows import Regularizer, Rows
from fedac.engine.simd import aligned, template
from fedac.engine.threads import Threads, sum_strands
from fedac.objectives import Objective
from fedac.objectives.base import Array

LANES = 16
STRANDS = 16


class Evaluator:
    """Evaluates an objective at the outputs of all lanes.

    Sparse data with a built-in loss go through a kernel; for dense data the objective's own
    matrix product is as fast, and a user's loss has no other form than the objective's.
    """

    def __init__(
        self, objective: Objective, rows: Rows, regularizer: Regularizer, threads: Threads
    ) -> None:
        self.objective = objective
        self.rows = rows
        self.regularizer = regularizer
        self.threads = threads
        self.compiled = not rows.dense and not isinstance(rows.loss, losses.Custom)

    def losses(self, W: Array) -> Array:
        """Return F(W[k]) for every k."""
        if not self.compiled:
            return self.objective.values(W)
        n, d = len(self.rows.y), W.shape[1]
        means = np.empty(len(W))
        for first in range(0, len(W), LANES):
            chunk = W[first : first + LANES]
            V = 1 << (len(chunk) - 1).bit_length()
            P = aligned((d, V), np.float64)
            P[:, : len(chunk)] = chunk.T
            total = aligned((STRANDS, V), np.float64)
            self._sum(V, P.reshape(-1), total)
            means[first : first + LANES] = sum_strands(total)[: len(chunk)] / n
        return means + self.regularizer.values(W)

    def _sum(self, V: int, P: Array, total: Array) -> None:
        rows, like = self.rows, template(np.float64, V)
        self.threads.run(
            lambda first, last: kernels.sum_losses(
                like, rows.data, rows.y, rows.loss, P, total, first, last
            ),
            strands=STRANDS,
            work=len(rows.y),
        )
