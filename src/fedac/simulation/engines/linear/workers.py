"""All workers of a round, streamed through the kernels: what is left is the sum of their moves.

Workers may draw the same rows many times in a round. Until Y is folded, a worker moves only along
the rows it draws. So the margin of a row is its margin at the start, which all workers share, plus
what the worker's own moves add. And the sum of all moves is known from how much of every row the
workers added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedac.federation.federation import Federation
from fedac.simulation.engines.linear.draws import rows_drawn
from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.simd import Template, aligned
from fedac.simulation.engines.linear.kernels.types import Draws, LocalRound, Rows, Shared, Tables
from fedac.simulation.engines.linear.threads import Task, Threads
from fedac.simulation.engines.ray.job import Job, Widths
from fedac.simulation.problem import Problem

if TYPE_CHECKING:
    from fedac.simulation.engines.ray.driver import Crew

# Workers are summed in this many fixed strands, fewer where their totals would fill the caches.
STRANDS = 64
TOTALS_BYTES = 4 * 2**20
FEWEST_STRANDS = 4
# The same for sums by row, with the memory that they may take.
SHARED_STRANDS = 16
SHARED_BYTES = 2**26


def worth_sharing(draws: int, n: int, W: int) -> bool:
    """Say whether there are far fewer rows than draws, and few enough to keep sums of each."""
    return draws >= 2 * n and 8 * SHARED_STRANDS * n * W <= SHARED_BYTES


@dataclass(eq=False)
class Workers(ABC):
    """Runs the workers of a problem on chunks of V lanes with S sequences, of which T travel.

    Attributes
    ----------
    full : Federation
        That of the real run, which decides the code path; the warm-up has one worker.
    lanes, sequences, sent : Template
        The vectors of V, S V and T V numbers that the kernels compute with.
    start : array, shape (d S V,)
        Where all workers start the next round.
    total : array, shape (strands, d T V)
        How far they moved in the last one, in strands to be added up.
    crew : Crew, optional
        Runs the strands on other nodes, in place of the threads here.
    """

    problem: Problem
    rows: Rows
    threads: Threads
    full: Federation
    S: InitVar[int]
    V: InitVar[int]
    T: InitVar[int | None] = None
    crew: Crew | None = None

    def __post_init__(self, S: int, V: int, T: int | None) -> None:
        dtype = self.rows.dtype
        self.widths = Widths(S, V, T or S)
        self.lanes = Template(dtype, V)
        self.sequences = Template(dtype, S * V)
        self.sent = Template(dtype, (T or S) * V)
        d = self.problem.objective.dim
        size = d * len(self.sent)
        strands = min(
            STRANDS,
            max(FEWEST_STRANDS, TOTALS_BYTES // (8 * size)),
            -(-self.problem.federation.taking_part // steps.WORKERS_PER_SUM),
        )
        self.start = aligned((d * len(self.sequences),), dtype)
        self.total = aligned((strands, size), np.float64)
        self.nothing_shared = self._make_shared(0)

    def run(self, draws: Draws, tables: Tables, lanes: Sequence[int]) -> None:
        """Run all workers of some lanes from `start` through a round and leave `total`."""
        share = self.shares(draws, tables)
        sums = self._shared.steps if share else self.total
        if self.crew is None:
            self.run_some(draws, tables, share, len(lanes), 0, len(sums))
        else:
            job = Job(draws.t, draws.gap, tuple(lanes), self.widths, tables, self.start)
            self.crew.run(job, sums, self.report(self.drawn(draws) * len(lanes), len(sums)))
        if share:
            self.threads.run(self.add_rows, strands=len(self.total), work=self._once)

    def run_some(
        self, draws: Draws, tables: Tables, share: bool, count: int, first: int, last: int
    ) -> npt.NDArray[np.float64]:
        """Run some strands of workers of `count` lanes, and return how far they moved.

        If workers share products with all rows, return how much of every row they added.
        """
        gap, base = draws.gap, self.start
        if len(tables.folds):
            # Folded by the same code as the workers, an idle one ends at `base` to the bit.
            base = base.copy()
            steps.fold_all(self.lanes, self.sequences, tables.folds, base)
        this_round = LocalRound(
            draws,
            tables,
            self.start,
            base,
            self._shared if share else self.nothing_shared,
            steps.BY_ROW if share else self.how_to_collect(gap, folded=len(tables.folds) > 0),
        )
        if share:
            self.threads.run(self.find_margins, strands=len(self.total), work=self._once)
        run = partial(self.run_strands, this_round=this_round)
        sums = self._shared.steps if share else self.total
        return self.share_strands(run, draws, count, sums, first, last)

    def shares(self, draws: Draws, tables: Tables) -> bool:
        """Say whether workers share products with all rows in a round."""
        return not len(tables.folds) and self.may_share(draws.gap)

    def drawn(self, draws: Draws) -> int:
        """Return how many rows all workers of a round draw together."""
        return rows_drawn(draws, len(self.rows.y))

    def may_share(self, gap: int) -> bool:
        """Say whether workers should share products with all rows in a round without folds."""
        draws = self.full.taking_part * self.rows_per_worker(gap)
        return worth_sharing(int(draws), len(self.rows.y), len(self.sequences))

    def rows_per_worker(self, gap: int) -> float:
        """Return how many rows a worker draws in a round, on average."""
        n, full = len(self.rows.y), self.full
        each = n if full.clients is None else n / full.M
        return gap * full.batch if full.batch else each * gap

    @abstractmethod
    def how_to_collect(self, gap: int, *, folded: bool) -> int:
        """Choose how workers' moves are collected where nothing is shared (see `steps.py`)."""

    @abstractmethod
    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""

    @abstractmethod
    def run_strands(self, first: int, last: int, this_round: LocalRound) -> None:
        """Run the workers of some strands, adding to their total or, if shared, their steps."""

    @abstractmethod
    def add_rows(self, first: int, last: int) -> None:
        """Set the total of some strands of rows to what all workers together added of them."""

    @cached_property
    def _shared(self) -> Shared:
        return self._make_shared(len(self.rows.y))

    def _make_shared(self, n: int) -> Shared:
        W = len(self.sequences)
        return Shared(np.zeros((n, W), self.rows.dtype), np.zeros((SHARED_STRANDS, n, W)))

    @property
    def _once(self) -> int:
        """How much work it is to go over all rows once."""
        return int(len(self.rows.y) * self.rows.nonzeros_per_row)

    def share_strands(
        self,
        run: Task,
        draws: Draws,
        count: int,
        sums: npt.NDArray[np.float64],
        first: int,
        last: int,
    ) -> npt.NDArray[np.float64]:
        """Let threads run some strands of a round of `count` lanes; return what they add up."""
        drawn = self.drawn(draws)

        def task(a: int, b: int) -> None:
            sums[a:b] = 0.0
            run(a, b)

        self.threads.run(
            task,
            first=first,
            strands=last - first,
            work=drawn * (last - first) // len(sums),
            on_done=self.report(drawn * count, len(sums)),
        )
        return sums[first:last]

    def report(self, queries: int, strands: int) -> Task:
        """Return what tells the progress of some strands of a round with so many queries."""

        def report(first: int, last: int) -> None:
            # Differences of whole numbers: the parts add up to the queries of the round.
            self.problem.on_progress(queries * last // strands - queries * first // strands)

        return report
