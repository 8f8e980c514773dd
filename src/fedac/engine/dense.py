"""The kernels' work on dense rows, by matrix products, which run near the processor's peak.

Within a block of steps a worker moves only along the rows it draws. Its margins need the start
point times those rows, and the rows times each other (their Gram matrix); what is left is a
recursion over numbers instead of one over long vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.engine import kernels
from fedac.engine.sampling import sample_index

# Steps in a block: longer ones spend more on Gram matrices, shorter ones more on updates.
BLOCK = 64
# Workers whose rows are gathered at a time: some megabytes for thousands of columns.
WORKERS_AT_ONCE = 8
ROWS_AT_ONCE = 512


def run_workers(
    like: tuple[Any, ...],
    wide: tuple[Any, ...],
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    offsets: npt.NDArray[Any],
    loss: tuple[int, ...],
    first_strand: int,
    last_strand: int,
    M: int,
    seed: int,
    t: int,
    gap: int,
    tables: tuple[npt.NDArray[Any], ...],
    start: npt.NDArray[Any],
    base: npt.NDArray[Any],
    total: npt.NDArray[np.float64],
) -> None:
    """Do what `kernels.run_workers` does, for dense rows."""
    q, r, e, fold_after, folds = tables
    W = len(wide)
    d = X.shape[1]
    origin = start.reshape(d, W)
    for strand in range(first_strand, last_strand):
        moved = total[strand].reshape(d, W)
        last = (strand + 1) * M // len(total)
        for m in range(strand * M // len(total), last, WORKERS_AT_ONCE):
            workers = np.arange(m, min(m + WORKERS_AT_ONCE, last))
            drawn = sample_index(seed, workers[:, None], t + np.arange(gap), len(y))
            Y = np.broadcast_to(origin, (len(workers), d, W))
            next_fold = 0
            for a, b in _blocks(fold_after):
                rows = drawn[:, a:b]
                B = b - a
                x = X[rows]
                C = np.empty((len(workers), B, W), dtype=X.dtype)
                # All workers still at the start share one product.
                P = x.reshape(-1, d) @ origin if a == 0 else x @ Y
                kernels.gram_steps(
                    like, wide, P.reshape(C.shape), x @ x.transpose(0, 2, 1), y[rows],
                    offsets[rows] if offsets.size else np.zeros((0, 0), X.dtype), loss,
                    q[a * W : b * W], r[a * W : b * W], e[a * len(like) : b * len(like)], C,
                )  # fmt: skip
                if fold_after[b - 1]:
                    Y = Y + x[:, :-1].transpose(0, 2, 1) @ C[:, :-1]
                    for worker in Y:
                        kernels.fold_all(
                            like, wide, folds[next_fold : next_fold + 1], worker.reshape(-1)
                        )
                    Y += x[:, -1, :, None] * C[:, -1, None, :]
                    next_fold += 1
                elif b < gap:
                    Y = Y + x.transpose(0, 2, 1) @ C
                else:
                    moved += x.reshape(-1, d).T @ C.reshape(-1, W)
            if len(folds) or gap > BLOCK:
                moved += (Y - base.reshape(d, W)).sum(axis=0)


def _blocks(fold_after: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Cut a round into blocks that are short and end where Y is folded."""
    first = 0
    for k, fold in enumerate(fold_after):
        if fold or k + 1 - first == BLOCK or k + 1 == len(fold_after):
            yield first, k + 1
            first = k + 1


def sum_gradients(
    like: tuple[Any, ...],
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    loss: tuple[int, ...],
    rows: npt.NDArray[np.uint64],
    weights: npt.NDArray[np.float64],
    first_strand: int,
    last_strand: int,
    P: npt.NDArray[np.float64],
    total: npt.NDArray[np.float64],
) -> None:
    """Do what `kernels.sum_gradients` does, for dense rows."""
    for strand in range(first_strand, last_strand):
        first = strand * len(rows) // len(total)
        last = (strand + 1) * len(rows) // len(total)
        G = total[strand].reshape(P.shape)
        for a in range(first, last, ROWS_AT_ONCE):
            chunk = slice(a, min(a + ROWS_AT_ONCE, last))
            x = X[rows[chunk]]
            Z = x @ P
            kernels.derivatives(like, loss, Z, y[rows[chunk]], weights[chunk])
            G += x.T @ Z
