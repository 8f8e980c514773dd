# SPDX-License-Identifier: Apache-2.0
"""The local steps of a round: workers streamed through the kernels, shared among threads.

Workers may draw the same rows many times in a round. Until Y is folded, a worker moves only along
the rows it draws. So the margin of a row is its margin at the start, which all workers share, plus
the contribution of the worker's moves. And the sum of all moves follows from the multiples of every
row that the workers added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count as counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedac.federation.federation import Federation, Round, Update
from fedac.objectives.linear_model import DataObjective
from fedac.simulation.engines.linear.kernels import client_rounds, steps
from fedac.simulation.engines.linear.kernels import interface as kernels
from fedac.simulation.engines.linear.kernels.interface import (
    Draws,
    LocalRound,
    Received,
    Scratch,
    Tables,
)
from fedac.simulation.engines.linear.kernels.simd import Template, aligned
from fedac.simulation.problem import Problem
from fedac.validate import Array

if TYPE_CHECKING:
    from fedac.simulation.engines.linear.client_rounds import ClientMemories
    from fedac.simulation.engines.linear.model import Regularizer
    from fedac.simulation.engines.ray import ActorPool

# Works on the strands from the first argument up to, but not including, the second.
Task = Callable[[int, int], object]
# Lanes of the problem, and the length of a round.
RoundKey = tuple[tuple[int, ...], int]
# Of clients that start a round from their own state.
ClientData = tuple[kernels.ClientCoefficients, kernels.Memories]

# Strands of workers; fewer where their totals would fill the caches.
STRANDS = 64
TOTALS_BYTES = 4 * 2**20
FEWEST_STRANDS = 4
# The same for sums by row, and the memory that they may take.
SHARED_STRANDS = 16
SHARED_BYTES = 2**26
# Work with fewer steps than this is done before another thread wakes up.
WORTH_A_THREAD = 8192
# Steps of the largest part: the progress bar moves, and interrupts are handled, between parts.
LARGEST_PART = 2**21


class Threads:
    """Runs tasks over ranges of strands, with other threads where that pays."""

    def __init__(self, count: int) -> None:
        self.count = count
        # The calling thread works too.
        self._helpers = ThreadPoolExecutor(max(1, count - 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._helpers.shutdown(cancel_futures=True)

    def run(
        self,
        task: Task,
        *,
        strands: int,
        work: int,
        first: int = 0,
        on_done: Task = lambda first, last: None,
    ) -> None:
        """Call ``task(first, last)`` for ranges that cover `strands` strands, from `first` on.

        `on_done` is called with every finished range, by the calling thread. Returns when all
        ranges are finished.
        """
        sharing = 1 if work < WORTH_A_THREAD else self.count
        largest = max(1, strands * LARGEST_PART // max(work, 1))
        if sharing == 1 and strands <= largest:
            task(first, first + strands)
            on_done(first, first + strands)
            return
        ranges = [(first + a, first + b) for a, b in _shrinking(strands, sharing, largest)]
        finished: deque[tuple[int, int]] = deque()
        part = counter()  # an idle thread takes the next part

        def help_out(report: Callable[[], object] = lambda: None) -> None:
            while (mine := next(part)) < len(ranges):
                task(*ranges[mine])
                finished.append(ranges[mine])
                report()

        def report() -> None:
            while finished:
                on_done(*finished.popleft())

        helpers = [self._helpers.submit(help_out) for _ in range(min(self.count, len(ranges)) - 1)]
        try:
            help_out(report)
        except BaseException:
            part = counter(len(ranges))  # no thread starts another one
            raise
        finally:
            for helper in helpers:
                helper.result()
        report()


def _shrinking(strands: int, sharing: int, largest: int) -> list[tuple[int, int]]:
    """Cut strands into ranges, large ones first, so that all threads end at about the same time.

    >>> _shrinking(16, sharing=2, largest=16)
    [(0, 4), (4, 7), (7, 9), (9, 10), (10, 11), (11, 12), (12, 13), (13, 14), (14, 15), (15, 16)]
    """
    bounds = [0]
    while (left := strands - bounds[-1]) > 0:
        share = left if sharing == 1 else left // (2 * sharing)
        bounds.append(bounds[-1] + max(1, min(share, largest)))
    return list(pairwise(bounds))


def sum_strands(total: Array) -> Array:
    """Add the totals of all strands in order.

    NumPy's own sum pairs them up where a strand is a single number: a lane alone would then
    differ in the last digit from the same lane among others.
    """
    summed: Array = total[0].copy()
    for strand in total[1:]:
        summed += strand
    return summed


@dataclass(eq=False)
class Context:
    """Everything that the rounds of a simulation share."""

    problem: Problem
    full: Federation  # of the real run; it selects the code path, as a warm-up has one worker
    model: DataObjective
    regularizer: Regularizer
    rows: kernels.Rows  # in the precision of local steps
    exact_rows: kernels.Rows
    threads: Threads
    actors: ActorPool | None = None  # runs the strands on other nodes instead of threads here
    tables: dict[RoundKey, tuple[Tables, kernels.Closing]] = field(default_factory=dict)
    coefficients: dict[RoundKey, tuple[kernels.ClientCoefficients, Array]] = field(
        default_factory=dict
    )

    def draws(self, update: Update | Round) -> Draws:
        """Return the participants of a round and their draws."""
        problem, federation = self.problem, self.problem.federation
        clients, everybody = federation.clients, np.zeros(0, np.int64)
        synchronous, everyone_present = problem.is_synchronous, update.taking_part == federation.M
        one_for_all = clients is None and federation.batch is None and synchronous
        if one_for_all:  # if all workers take all rows at every step, one represents all of them
            remember = any(lane.algorithm.memory for lane in problem.lanes)
            one_for_all = not self.lengths and (everyone_present or not remember)
        number, t, _ = update.draws
        own: dict[str, Any] = {}
        if federation.local_steps is not None or not isinstance(number, int):
            own["firsts"] = federation.first_steps(update.members, update.draws)
        if not isinstance(number, int):
            if not synchronous:
                own["numbers"] = number
            number, t = int(number[0]), int(t[0])
        if self.lengths:
            own["lengths"] = np.array(self.lengths)
            own["kinds"] = np.searchsorted(own["lengths"], update.steps)
        return Draws(
            seed=np.uint64(federation.seed),
            n=federation.n,
            r=number,
            t=t,
            gap=self.lengths[-1] if self.lengths else self._gap(update),
            batch=federation.batch or 0,
            taking_part=1 if one_for_all else update.taking_part,
            members=(
                everybody if one_for_all or (synchronous and everyone_present) else update.members
            ),
            bounds=everybody if clients is None else clients.bounds,
            weighted=not federation.equal_weights,
            queries=(
                federation.queries(update.span) if isinstance(update, Round)
                else federation.queries_of(update)
            ),
            epochs=federation.epochs or 0,
            **own,
        )  # fmt: skip

    def _gap(self, update: Update | Round) -> int:
        return update.span.gap if isinstance(update, Round) else int(update.steps[0])

    @property
    def lists_batches(self) -> bool:
        """Whether the batches of a round are not the same number of draws from every client."""
        return self.full.epochs is not None or bool(self.lengths)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of steps, ascending, if clients of a round differ; else empty."""
        return self.problem.lengths


class Widths(NamedTuple):
    """The sequences, lanes and travelling vectors that the kernels of some workers compute with."""

    S: int
    V: int
    T: int
    moves: bool = False  # whether squared lengths of moves are summed


class RemoteRound(NamedTuple):
    """A round as sent to an actor on another node, which computes the draws itself."""

    t: int  # its first step
    gap: int
    lanes: tuple[int, ...]  # of the problem
    widths: Widths
    tables: Tables | None  # None: as in the last round with these lanes and this length
    start: npt.NDArray[Any]
    coefficients: kernels.ClientCoefficients | None  # of clients that start from their own state
    memory: int = 0  # which of the memories of clients these lanes use


class StreamedWorkers:
    """Runs the workers of a round on chunks of V lanes with S sequences, of which T travel.

    Here rows are sparse: a step costs as much as its row has nonzeros. Dense rows have a subclass.
    All workers start a round at `start`, of shape (d S V,). It ends with the sums of their moves by
    strand in `total`, of shape (strands, d T V).
    """

    def __init__(self, context: Context, widths: Widths) -> None:
        self.context = context
        self.widths = widths
        self.rows, self.threads, self.full = context.rows, context.threads, context.full
        S, V, T, _ = widths
        dtype = self.dtype = self.rows.dtype
        self.lanes, self.sequences = Template(dtype, V), Template(dtype, S * V)
        self.sent = Template(dtype, T * V)
        self.dim = context.problem.objective.dim
        # Behind the messages, the squared lengths of moves, one for each lane.
        size = (self.dim + widths.moves) * T * V
        strands = min(
            STRANDS,
            max(FEWEST_STRANDS, TOTALS_BYTES // (8 * size)),
            max(1, -(-context.problem.most_members // steps.WORKERS_PER_SUM)),
        )
        self.start = aligned((self.dim * S * V,), dtype)
        self.total = aligned((strands, size), np.float64)
        self._nothing_by_row = self._numbers_by_row(0)
        self._all_rows = int(len(self.rows.y) * self.rows.touched_per_row)  # work of one pass
        self._scratch: list[Scratch] = []
        self._blank: list[Scratch] = []  # with states that are zero before and after a round

    def run(
        self,
        draws: Draws,
        tables: Tables,
        lanes: Sequence[int],
        coefficients: kernels.ClientCoefficients | None = None,
        memories: ClientMemories | None = None,
        received: Received | None = None,
    ) -> None:
        """Run all workers of some lanes through a round, and leave `total`.

        They begin at `start`, or at what they have received, or, with coefficients and memories,
        each from its own state.
        """
        together = coefficients is None and received is None
        by_row = together and self.how_to_collect(tables) == steps.BY_ROW
        sums = self._by_row[1] if by_row else self.total
        if self.context.actors is None:
            clients = (coefficients, memories.kept) if coefficients and memories else None
            self.run_strands(draws, tables, len(lanes), 0, len(sums), clients, received)
        else:
            start = self.start if coefficients is None else np.zeros(0)
            told = RemoteRound(
                draws.t, draws.gap, tuple(lanes), self.widths, tables, start, coefficients
            )
            on_done = self._report(draws, len(lanes), len(sums))
            self.context.actors.run(told, draws, sums, on_done, memories)
        if by_row:
            self.threads.run(self.add_rows, strands=len(self.total), work=self._all_rows)

    def run_strands(
        self,
        draws: Draws,
        tables: Tables,
        count: int,
        first: int,
        last: int,
        clients: ClientData | None = None,
        received: Received | None = None,
    ) -> npt.NDArray[np.float64]:
        """Run some strands of workers of `count` lanes, and return the sum of their moves.

        If moves are collected by row, return how much of every row the workers added. With
        `clients`, each starts from its own state; return the sum of their messages.
        """
        sums, by_row, collect = self.total, self._nothing_by_row, steps.SWEEP
        start, versions, scales = received or Received(self.start)
        base = start
        if clients is None:
            collect = self.how_to_collect(tables) if received is None else steps.SWEEP
            if len(tables.folds):
                # Folded by the same code as the workers, an idle one ends at `base` to the bit.
                base = base.copy()
                steps.fold_all(self.lanes, self.sequences, tables.folds, base)
        if collect == steps.BY_ROW:
            by_row, sums = self._by_row, self._by_row[1]
            self.threads.run(self.find_margins, strands=len(self.total), work=self._all_rows)
        this_round = LocalRound(draws, tables, start, base, *by_row, collect, versions, scales)

        def task(a: int, b: int) -> None:
            sums[a:b] = 0.0
            self.kernel(a, b, this_round, clients)

        self.threads.run(
            task,
            first=first,
            strands=last - first,
            work=draws.queries * self.rows.outputs * (last - first) // len(sums),
            on_done=self._report(draws, count, len(sums)),
        )
        return sums[first:last]

    def kernel(
        self, first: int, last: int, this_round: LocalRound, clients: ClientData | None
    ) -> None:
        """Run the workers of some strands: add their moves or messages to the sums."""
        pool = self._blank if this_round.collect == steps.BY_ROW else self._scratch
        scratch = self._borrow(pool, this_round.draws)
        if clients is None:
            steps.run_workers(
                self.lanes, self.sequences, self.rows, this_round, scratch, self.total, first, last
            )
        else:
            client_rounds.run_clients(
                self.lanes, self.sequences, self.sent, self.rows, this_round, *clients,
                scratch, self.total, first, last,
            )  # fmt: skip
        pool.append(scratch)

    def _report(self, draws: Draws, count: int, strands: int) -> Task:
        """Return a function that reports the progress of some strands of a round."""
        queries = draws.queries * count

        def report(first: int, last: int) -> None:
            # Differences of whole numbers: the parts add up to the queries of the round.
            made = queries * last // strands - queries * first // strands
            self.context.problem.on_progress(made)

        return report

    def how_to_collect(self, tables: Tables) -> int:
        """Choose how the moves of workers are collected (see `steps.py`)."""
        gap = len(tables.fold_after)
        # A row counts whenever it is drawn; with batch="full", a client takes the same rows at
        # every step.
        drawn = self._rows_per_worker(gap if self.full.batch else 1)
        touched = drawn * self.rows.touched_per_row
        if len(tables.folds) or self.dim <= touched:
            return steps.SWEEP
        # A large state: even the sum of some workers' moves is sparse.
        if self.dim > steps.WORKERS_PER_SUM * touched:
            return steps.BY_ROW if self.rows_repeat(gap) else steps.FAR
        return steps.TOUCHED

    def rows_repeat(self, gap: int) -> bool:
        """Return whether rows are drawn many times, and few enough for a sum of each."""
        n, W = len(self.rows.y), self.rows.outputs * len(self.sequences)
        draws = int(self.full.taking_part * self._rows_per_worker(gap))
        return draws >= 2 * n and 8 * SHARED_STRANDS * n * W <= SHARED_BYTES

    def _rows_per_worker(self, gap: int) -> float:
        """Return how many rows a worker draws in a round on average."""
        n, full = len(self.rows.y), self.full
        each = n if full.clients is None else n / full.M
        return gap * full.batch if full.batch else each * gap

    @cached_property
    def _by_row(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        return self._numbers_by_row(len(self.rows.y))

    def _numbers_by_row(self, n: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Make the margins and steps of a `LocalRound` for n rows."""
        W = self.rows.outputs * len(self.sequences)
        return np.zeros((n, W), self.rows.dtype), np.zeros((SHARED_STRANDS, n, W))

    def find_margins(self, first: int, last: int) -> None:
        """Multiply the rows of some strands by the start."""
        margins, strands = self._by_row[0], len(self.total)
        data, _, _, loss = self.rows
        steps.find_margins(self.sequences, loss, data, self.start, margins, strands, first, last)

    def add_rows(self, first: int, last: int) -> None:
        """Set the totals of some strands of rows to the sum of all workers' moves along them."""
        self.total[first:last] = 0.0
        exact = Template(np.float64, len(self.sequences))
        data, _, _, loss = self.rows
        steps.add_rows(exact, loss, data, self._by_row[1], self.total, first, last)

    def _borrow(self, pool: list[Scratch], draws: Draws) -> Scratch:
        """Take working memory from a pool, with space for the rows drawn."""
        rows_a_step = draws.batch or self.full.largest
        listed = draws.epochs * self.full.largest if draws.batch and draws.epochs else (
            draws.gap * draws.batch or rows_a_step
        )  # fmt: skip
        listed += steps.ROWS_AHEAD
        try:
            scratch = pool.pop()
        except IndexError:
            dtype, in_step = self.start.dtype, rows_a_step * self.rows.outputs
            one = draws.batch == 1 and self.rows.outputs == 1
            slopes = () if one else aligned((in_step * len(self.lanes),), dtype)
            Y, sums = aligned(self.start.shape, dtype), aligned(self.total.shape[1:], dtype)
            scratch = Scratch(Y, sums, np.zeros(0, np.uint64), slopes)
        if len(scratch.drawn) < listed:
            return scratch._replace(drawn=np.zeros(listed, np.uint64))
        return scratch
