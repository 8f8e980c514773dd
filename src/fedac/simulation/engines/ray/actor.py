"""What runs on a node: an engine of its own, for some strands of every round."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.federation.federation import Federation
from fedac.simulation.engines.linear.client_memory import ClientMemory, free_bytes, reserved
from fedac.simulation.engines.linear.client_rounds import DenseClients, SparseClients, visit_some
from fedac.simulation.engines.linear.dense import DenseWorkers
from fedac.simulation.engines.linear.draws import RowCounts, draws_of
from fedac.simulation.engines.linear.engine import Engine, one_blas_thread
from fedac.simulation.engines.linear.kernels.types import Draws, Rows, Tables
from fedac.simulation.engines.linear.sparse import SparseWorkers
from fedac.simulation.engines.linear.threads import Threads
from fedac.simulation.engines.ray.job import Job, Widths, own_copy
from fedac.simulation.problem import Problem

# The numbers of some clients, and what they remember.
Gift = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]


class Actor:
    """Runs the strands that the driver asks for, with the threads of its node.

    The driver's messages are dealt with one after the other, in their order.
    """

    def __init__(self, threads: int) -> None:
        self._team = Threads(threads)
        self._workers: dict[Widths, SparseWorkers | DenseWorkers] = {}
        self._clients: dict[Widths, SparseClients | DenseClients] = {}
        self._memories: dict[int, ClientMemory] = {}
        self._tables: dict[tuple[tuple[int, ...], int], Tables] = {}

    def warm_up(self, pickled: bytes, dtype: str) -> int | None:
        """Arrange the data of a problem, compile, and return how many bytes are free here."""
        # Of bytes, all arrays are our own: Numba would compile anew for Ray's, which are read-only.
        self.problem: Problem = pickle.loads(pickled)
        self._spans = {span.t: span for span in self.problem.schedule}
        self._engine = Engine(self.problem, np.dtype(dtype), alone=False)
        self._limit = one_blas_thread(self._engine.exact_rows)
        self._draws: Draws | None = None
        self._engine.warm_up()
        self._counts = RowCounts(self._team, len(self._rows.y))
        return free_bytes()

    def run(self, job: Job, first: int, last: int) -> npt.NDArray[np.float64]:
        """Run the workers of some strands and return what each adds to the sums of the round."""
        if job.widths not in self._workers:
            make = DenseWorkers if self._rows.dense else SparseWorkers
            self._workers[job.widths] = make(*self._given, *job.widths)
        workers = self._workers[job.widths]
        workers.start[:] = job.start
        draws, tables = self._draw(job.t), self._table(job)
        share = workers.shares(draws, tables)
        return workers.run_some(draws, tables, share, len(job.lanes), first, last)

    def visit(self, job: Job, first: int, last: int, *gifts: Gift) -> npt.NDArray[np.float64]:
        """Take the clients of some strands through a round, and return the sums of messages.

        `gifts` are memories that other actors kept until now.
        """
        if job.widths not in self._clients:
            make = DenseClients if self._rows.dense else SparseClients
            self._clients[job.widths] = make(*self._given, *job.widths)
        assert job.boundary is not None
        boundary, kept = own_copy(job.boundary), self._memory(job).kept
        for numbers, remembered in gifts:
            kept.memory[numbers] = remembered
            kept.started[numbers] = True
        clients, draws, tables = self._clients[job.widths], self._draw(job.t), self._table(job)
        return visit_some(clients, draws, tables, boundary, kept, len(job.lanes), first, last)

    def give(self, job: Job, numbers: npt.NDArray[np.int64]) -> Gift:
        """Return what some clients remember, and leave it to another actor."""
        memory, started = self._memory(job).kept
        started[numbers] = False
        return numbers, memory[numbers]

    def count(self, t: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in some strands of a round."""
        return self._counts.count(self._draw(t), first, last)

    @property
    def _rows(self) -> Rows:
        return self._engine.local_rows or self._engine.exact_rows

    @property
    def _given(self) -> tuple[Problem, Rows, Threads, Federation]:
        return self.problem, self._rows, self._team, self.problem.federation

    def _draw(self, t: int) -> Draws:
        """Describe the draws of the round that starts at step t."""
        if self._draws is None or self._draws.t != t:
            self._draws = draws_of(self.problem.federation, self._spans[t])
        return self._draws

    def _table(self, job: Job) -> Tables:
        key = job.lanes, job.gap
        if job.tables is not None:
            self._tables[key] = own_copy(job.tables)
        return self._tables[key]

    def _memory(self, job: Job) -> ClientMemory:
        """Return the memory of some lanes, without those that have diverged since."""
        assert job.boundary is not None
        if job.memory not in self._memories:
            d, (_, V, T) = self.problem.objective.dim, job.widths
            shape = (d, len(job.boundary.constant) // V - T, V)
            self._memories[job.memory] = ClientMemory.make(
                list(job.lanes), self.problem.federation.M, shape, self._rows.dtype, reserved
            )
        memory = self._memories[job.memory]
        memory.keep(list(job.lanes), job.widths.V)
        return memory
