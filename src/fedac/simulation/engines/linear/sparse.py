"""Workers on sparse rows: a step costs as much as its row has numbers."""

from __future__ import annotations

import numpy as np

from fedac.simulation.engines.linear.kernels import steps
from fedac.simulation.engines.linear.kernels.simd import Template, aligned
from fedac.simulation.engines.linear.kernels.types import Draws, LocalRound, Scratch
from fedac.simulation.engines.linear.workers import Workers


class SparseWorkers(Workers):
    """Runs workers through the compiled kernels."""

    def __post_init__(self, S: int, V: int, T: int | None) -> None:
        super().__post_init__(S, V, T)
        self.scratch: list[Scratch] = []
        self._blank: list[Scratch] = []  # its states are zeros before and after a round

    def may_share(self, gap: int) -> bool:
        """Say so for large states only: in a small one, nothing is gained."""
        return self._sums_are_sparse(gap) and super().may_share(gap)

    def how_to_collect(self, gap: int, *, folded: bool) -> int:
        """Collect over all coordinates where a worker touches most of them."""
        if folded or self.problem.objective.dim <= self._touched(gap):
            return steps.SWEEP
        return steps.FAR if self._sums_are_sparse(gap) else steps.TOUCHED

    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""
        steps.find_margins(
            self.sequences, self.rows.data, self.start, self._shared.margins,
            len(self.total), first, last,
        )  # fmt: skip

    def run_strands(self, first: int, last: int, this_round: LocalRound) -> None:
        """Run the workers of some strands."""
        pool = self._blank if this_round.collect == steps.BY_ROW else self.scratch
        scratch = self.borrow(pool, this_round.draws)
        steps.run_workers(
            self.lanes, self.sequences, self.rows, this_round, scratch, self.total, first, last
        )
        pool.append(scratch)

    def add_rows(self, first: int, last: int) -> None:
        """Set the total of some strands of rows to what all workers together added of them."""
        self.total[first:last] = 0.0
        exact = Template(np.float64, len(self.sequences))
        steps.add_rows(exact, self.rows.data, self._shared.steps, self.total, first, last)

    def _sums_are_sparse(self, gap: int) -> bool:
        """Say whether even a sum of some workers' moves is mostly zeros."""
        return self.problem.objective.dim > steps.WORKERS_PER_SUM * self._touched(gap)

    def _touched(self, gap: int) -> float:
        """Return how many numbers the rows of a worker have, those that it draws again included."""
        federation = self.full
        # A client that takes all its rows at every step takes the same ones.
        rows = self.rows_per_worker(gap if federation.batch else 1)
        return rows * self.rows.nonzeros_per_row

    def borrow(self, pool: list[Scratch], draws: Draws) -> Scratch:
        """Take memory out of a pool that other tasks share, with space for the rows drawn."""
        largest = self.full.largest
        rows_a_step = draws.batch or largest
        listed = steps.ROWS_AHEAD + (draws.gap * draws.batch or largest)
        try:
            scratch = pool.pop()
        except IndexError:
            size, dtype = self.total.shape[1], self.start.dtype
            Y, sums = aligned(self.start.shape, dtype), aligned((size,), dtype)
            single = draws.batch == 1
            slopes = () if single else aligned((rows_a_step * len(self.lanes),), Y.dtype)
            scratch = Scratch(Y, sums, np.zeros(0, np.uint64), slopes)
        if len(scratch.drawn) < listed:
            return scratch._replace(drawn=np.zeros(listed, np.uint64))
        return scratch
