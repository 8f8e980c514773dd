"""Rounds of several local steps, by streamed workers."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedac.federation.federation import Federation
from fedac.simulation.engines.linear.coefficients import Affine, affine_form, round_tables
from fedac.simulation.engines.linear.dense import DenseWorkers
from fedac.simulation.engines.linear.draws import total_weight
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.kernels.types import Closing, Draws, Rows, Tables
from fedac.simulation.engines.linear.lanes import Pack
from fedac.simulation.engines.linear.rows import Regularizer
from fedac.simulation.engines.linear.sparse import SparseWorkers
from fedac.simulation.engines.linear.threads import Threads
from fedac.simulation.engines.linear.workers import STRANDS, Workers
from fedac.simulation.problem import Problem
from fedac.validate import Array

if TYPE_CHECKING:
    from fedac.simulation.engines.ray.driver import Crew

# Lanes in one vector: with these a state of a9a's width fits the first-level cache.
LANES = {np.dtype(np.float32): 16, np.dtype(np.float64): 8}

# The padded tables of a round by its lanes and length.
KnownTables = dict[tuple[tuple[int, ...], int], tuple[Tables, Closing]]


@dataclass(eq=False)
class LocalRounds:
    """Takes packs of lanes through rounds of local steps."""

    problem: Problem
    rows: Rows
    regularizer: Regularizer
    threads: Threads
    packs: InitVar[list[Pack]]
    tables: KnownTables
    full: Federation
    crew: Crew | None

    def __post_init__(self, packs: list[Pack]) -> None:
        # The same width from first to last: when lanes diverge the others keep their shape, since
        # another one would have to be compiled.
        self._workers: dict[int, Workers] = {}
        make = DenseWorkers if self.rows.dense else SparseWorkers
        for pack in packs:
            widest = max(last - first for first, last in self.chunks(pack))
            S, V = pack.state.shape[1], 1 << (widest - 1).bit_length()
            given = (self.problem, self.rows, self.threads, self.full)
            self._workers[S] = make(*given, S, V, S, self.crew)

    def round(self, pack: Pack, draws: Draws) -> None:
        """Advance every lane of a pack by one round."""
        for first, last in self.chunks(pack):
            self._advance(pack, slice(first, last), draws)

    def chunks(self, pack: Pack) -> list[tuple[int, int]]:
        """Return which lanes share a vector: as few vectors as possible, evenly filled."""
        count = len(pack.lanes)
        chunks = -(-count // LANES[self.rows.dtype])
        return list(pairwise(count * chunk // chunks for chunk in range(chunks + 1)))

    def _advance(self, pack: Pack, where: slice, draws: Draws) -> None:
        """Take some lanes of a pack through a round."""
        state = pack.state[:, :, where]
        d, S, count = state.shape
        workers = self._workers[S]
        tables, closing = self.table(pack, where, draws.gap, len(workers.lanes))
        workers.start.reshape(d, S, -1)[:, :, :count] = state
        workers.run(draws, tables, pack.indices[where])
        weight = total_weight(draws, len(self.rows.y))
        # In strands of coordinates, which do not depend on each other.
        bounds = [d * strand // STRANDS for strand in range(STRANDS + 1)]
        self.threads.run(
            lambda first, last: steps.finish_round(
                workers.total, state, closing, self.regularizer.center, weight,
                bounds[first], bounds[last],
            ),
            strands=STRANDS,
            work=d * S * count,
        )  # fmt: skip

    def table(self, pack: Pack, where: slice, gap: int, V: int) -> tuple[Tables, Closing]:
        """Return the tables of a round, padded to V lanes for the kernel."""
        if pack.falling:  # a step size that falls needs new tables in every round
            return self._make_table(pack, where, gap, V)
        key = tuple(pack.indices[where]), gap
        if key not in self.tables:
            self.tables[key] = self._make_table(pack, where, gap, V)
        return self.tables[key]

    def forms(self, pack: Pack, where: slice, gap: int) -> list[Affine]:
        """Return the affine forms of some lanes of a pack."""
        return list(map(affine_form, pack.lanes[where]))

    def _make_table(self, pack: Pack, where: slice, gap: int, V: int) -> tuple[Tables, Closing]:
        dtype = self.rows.dtype
        forms = self.forms(pack, where, gap)
        tables, closing = round_tables(forms, self.regularizer.l2, gap, dtype)

        def padded(table: Array) -> npt.NDArray[Any]:
            array = aligned((*table.shape[:-1], V), dtype)
            array[..., : table.shape[-1]] = table
            return array.reshape(len(table), math.prod(array.shape[1:]))

        q, r, e = (padded(table).ravel() for table in (tables.q, tables.r, tables.e))
        return Tables(q, r, e, tables.fold_after, padded(tables.folds)), closing
