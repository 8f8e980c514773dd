"""Losses of many lanes in one pass over the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedac.objectives import LinearModel
from fedac.simulation.engines.linear.kernels import losses, steps
from fedac.simulation.engines.linear.kernels.simd import Template, aligned
from fedac.simulation.engines.linear.kernels.types import Rows
from fedac.simulation.engines.linear.rows import Regularizer
from fedac.simulation.engines.linear.threads import Threads, sum_strands
from fedac.validate import Array

LANES = 16
STRANDS = 16


@dataclass(eq=False)
class Evaluator:
    """Evaluates an objective, split into a model and an l2 term, at the outputs of lanes.

    Sparse data with a built-in loss use a kernel. For dense data matrix products are as fast; a
    user's own loss, and rows that do not count the same, are only known to the model.
    """

    model: LinearModel
    rows: Rows
    regularizer: Regularizer
    threads: Threads

    def losses(self, W: Array) -> Array:
        """Return F(W[k]) for every k."""
        means = self._by_kernel(W) if self._has_kernel else self._by_products(W)
        return means + self.regularizer.values(W)

    def compile(self, count: int) -> None:
        """Compile what evaluates `count` lanes, by running it on no rows."""
        if self._has_kernel:
            d = self.model.dim
            for V in {_width(min(LANES, count - first)) for first in range(0, count, LANES)}:
                P, total = aligned((d * V,), np.float64), aligned((STRANDS, V), np.float64)
                steps.sum_losses(Template(np.float64, V), self.rows, P, total, 0, 0)

    @property
    def _has_kernel(self) -> bool:
        own = isinstance(self.rows.loss, losses.Custom) or self.model.weights is not None
        return not (self.rows.dense or own)

    def _by_kernel(self, W: Array) -> Array:
        n, d = len(self.rows.y), W.shape[1]
        means = np.empty(len(W))
        for first in range(0, len(W), LANES):
            chunk = W[first : first + LANES]
            V = _width(len(chunk))
            P = aligned((d, V), np.float64)
            P[:, : len(chunk)] = chunk.T
            total = aligned((STRANDS, V), np.float64)
            lanes = Template(np.float64, V)
            self.threads.run(
                partial(steps.sum_losses, lanes, self.rows, P.reshape(-1), total),
                strands=STRANDS,
                work=n,
            )
            means[first : first + LANES] = sum_strands(total)[: len(chunk)] / n
        return means

    def _by_products(self, W: Array) -> Array:
        model, P = self.model, np.ascontiguousarray(W.T)
        n = model.n_samples
        Z, means = np.empty((n, len(W))), np.empty(len(W))

        def multiply(first: int, last: int) -> None:
            for strand in range(first, last):
                rows = slice(n * strand // STRANDS, n * (strand + 1) // STRANDS)
                Z[rows] = model.X[rows] @ P

        def average(first: int, last: int) -> None:
            for lane in range(first, last):
                means[lane] = model.mean_loss(np.ascontiguousarray(Z[:, lane]), model.y)

        self.threads.run(multiply, strands=STRANDS, work=n * len(W))
        self.threads.run(average, strands=len(W), work=n * len(W))
        return means


def _width(lanes: int) -> int:
    """Return the size of the smallest vector that takes so many lanes."""
    return 1 << (lanes - 1).bit_length()
