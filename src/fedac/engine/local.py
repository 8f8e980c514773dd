"""Rounds of several local steps, by streamed workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.engine import dense, kernels
from fedac.engine.affine import RoundTables, affine, round_tables
from fedac.engine.pack import Pack
from fedac.engine.problem import Problem
from fedac.engine.rows import Regularizer, Rows
from fedac.engine.simd import aligned, template
from fedac.engine.threads import Threads
from fedac.objectives.base import Array

# Lanes in one vector: as many as make a state of a9a's width fit the first-level cache.
LANES = {np.dtype(np.float32): 16, np.dtype(np.float64): 8}

# Workers are summed in this many fixed strands, fewer where their totals would fill the caches.
STRANDS = 64
TOTALS_BYTES = 4 * 2**20
FEWEST_STRANDS = 4


@dataclass(frozen=True, slots=True)
class _Width:
    """The shape of one chunk of lanes in the kernel: S sequences of V lanes, and its buffers."""

    like: tuple[Any, ...]
    wide: tuple[Any, ...]
    start: npt.NDArray[Any]
    base: npt.NDArray[Any]
    total: Array
    scratch: list[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint64]]]


class LocalRounds:
    """Takes packs of lanes through rounds of local steps."""

    def __init__(
        self,
        problem: Problem,
        rows: Rows,
        regularizer: Regularizer,
        dtype: np.dtype[Any],
        threads: Threads,
        packs: list[Pack],
    ) -> None:
        self.problem = problem
        self.rows = rows
        self.regularizer = regularizer
        self.dtype = dtype
        self.threads = threads
        self._tables: dict[tuple[tuple[int, ...], int], tuple[RoundTables, tuple[Any, ...]]] = {}
        # As wide from first to last: when lanes diverge the others keep their shape, since another
        # one would have to be compiled.
        self._widths: dict[int, _Width] = {}
        for pack in packs:
            widest = max(last - first for first, last in self._chunks(pack))
            S = pack.state.shape[1]
            self._widths[S] = self._width(S, 1 << (widest - 1).bit_length())

    def round(self, pack: Pack, t: int, gap: int) -> None:
        """Advance every lane of a pack by one round of `gap` steps from step t."""
        for first, last in self._chunks(pack):
            lanes = tuple(pack.indices[first:last])
            self._advance(lanes, pack.state[:, :, first:last], t, gap)

    def _chunks(self, pack: Pack) -> list[tuple[int, int]]:
        """Return which lanes share a vector: as few vectors as hold them all, evenly filled."""
        count = len(pack.lanes)
        chunks = -(-count // LANES[self.dtype])
        return list(pairwise(count * chunk // chunks for chunk in range(chunks + 1)))

    def _advance(self, lanes: tuple[int, ...], state: Array, t: int, gap: int) -> None:
        """Take the state of some lanes, given by number, through a round."""
        problem, rows = self.problem, self.rows
        d, S, count = state.shape
        width = self._widths[S]
        tables, arrays = self._table(lanes, gap, len(width.like))
        folds = arrays[-1]

        width.start.reshape(d, S, -1)[:, :, :count] = state
        base = width.start
        if len(folds):
            # Folded by the same code as the workers, an idle one ends at `base` to the bit.
            base = width.base
            base[:] = width.start
            kernels.fold_all(width.like, width.wide, folds, base)
        touched = gap * rows.nonzeros_per_row
        if len(folds) or d <= touched:
            collect = kernels.SWEEP
        elif d <= kernels.WORKERS_PER_SUM * touched:
            collect = kernels.TOUCHED
        else:
            collect = kernels.FAR

        def dense_task(first: int, last: int) -> None:
            width.total[first:last] = 0.0
            dense.run_workers(
                width.like, width.wide, rows.data[0], rows.y, rows.offsets, rows.loss,
                first, last, problem.M, problem.seed, t, gap,
                arrays, width.start, base, width.total,
            )  # fmt: skip

        def sparse_task(first: int, last: int) -> None:
            width.total[first:last] = 0.0
            Y, sums, drawn = width.scratch.pop()
            if len(drawn) < gap + kernels.ROWS_AHEAD:
                drawn = np.zeros(gap + kernels.ROWS_AHEAD, np.uint64)
            kernels.run_workers(
                width.like, width.wide, rows.data, rows.y, rows.offsets, rows.loss,
                first, last, problem.M, np.uint64(problem.seed), t, gap,
                *arrays, width.start, base, Y, sums, width.total, collect, drawn,
            )  # fmt: skip
            width.scratch.append((Y, sums, drawn))

        queries, strands = problem.M * gap * count, len(width.total)
        self.threads.run(
            dense_task if rows.dense else sparse_task,
            strands=strands,
            work=problem.M * gap,
            on_done=lambda first, last: problem.on_progress(
                # Differences of whole numbers: the parts add up to the queries of the round.
                queries * last // strands - queries * first // strands
            ),
        )
        # In strands of coordinates, which do not depend on each other.
        bounds = [d * strand // STRANDS for strand in range(STRANDS + 1)]
        self.threads.run(
            lambda first, last: kernels.finish_round(
                width.total, state, tables.to_base, tables.closing, tables.constant,
                self.regularizer.center, problem.M, bounds[first], bounds[last],
            ),
            strands=STRANDS,
            work=d * S * count,
        )  # fmt: skip

    def _table(
        self, lanes: tuple[int, ...], gap: int, V: int
    ) -> tuple[RoundTables, tuple[Any, ...]]:
        """Return the tables of a round, and their arrays padded to V lanes for the kernel."""
        if (lanes, gap) not in self._tables:
            forms = [affine(self.problem.lanes[lane]) for lane in lanes]
            tables = round_tables(forms, self.regularizer.l2, gap, self.dtype)

            def padded(table: Array) -> npt.NDArray[Any]:
                array = aligned((*table.shape[:-1], V), self.dtype)
                array[..., : table.shape[-1]] = table
                return array.reshape(len(table), math.prod(array.shape[1:]))

            q, r, e = (padded(table).ravel() for table in (tables.q, tables.r, tables.e))
            arrays = (q, r, e, tables.fold_after, padded(tables.folds))
            self._tables[lanes, gap] = (tables, arrays)
        return self._tables[lanes, gap]

    def _width(self, S: int, V: int) -> _Width:
        size = self.problem.objective.dim * S * V
        strands = min(
            STRANDS,
            max(FEWEST_STRANDS, TOTALS_BYTES // (8 * size)),
            -(-self.problem.M // kernels.WORKERS_PER_SUM),
        )
        scratch = [
            (aligned((size,), self.dtype), aligned((size,), self.dtype), np.zeros(0, np.uint64))
            for _ in range(self.threads.count)
        ]
        return _Width(
            like=template(self.dtype, V),
            wide=template(self.dtype, S * V),
            start=aligned((size,), self.dtype),
            base=aligned((size,), self.dtype),
            total=aligned((strands, size), np.float64),
            scratch=scratch,
        )
