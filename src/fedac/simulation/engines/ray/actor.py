"""The actor on a node, an engine that runs some strands of every round."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedac.simulation.engines.linear.client_rounds import ClientMemories, free_bytes
from fedac.simulation.engines.linear.engine import LinearEngine, one_blas_thread
from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.kernels.types import Draws, Tables
from fedac.simulation.engines.linear.rounds import RowCounts, make_workers
from fedac.simulation.engines.linear.workers import RemoteRound, StreamedWorkers, Threads, Widths
from fedac.simulation.problem import Problem

# The ids of some clients, and their memories.
MovedMemories = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]
Tuple = TypeVar("Tuple", bound=tuple[Any, ...])


class Actor:
    """Runs the strands that the driver asks for, with the threads of its node.

    It handles the driver's messages in order.
    """

    def __init__(self, threads: int) -> None:
        self._threads = Threads(threads)
        self._workers: dict[Widths, StreamedWorkers] = {}
        self._memories: dict[int, ClientMemories] = {}
        self._tables: dict[tuple[Any, ...], Tables] = {}
        self._draws: Draws | None = None

    def warm_up(self, pickled: bytes) -> int | None:
        """Prepare the data of a problem, compile, and return how many bytes are free here."""
        # Unpickled from bytes, arrays are writable: Numba would compile again for Ray's.
        self.problem: Problem = pickle.loads(pickled)
        self._spans = {span.t: span for span in self.problem.schedule}
        engine = LinearEngine(self.problem)
        self._blas_limit = one_blas_thread(engine.context.rows)
        engine.warm_up()
        self._context = replace(engine.context, threads=self._threads)
        self._counts = RowCounts(self._threads, self.problem.objective.n_samples)
        return free_bytes()

    def run(
        self, told: RemoteRound, first: int, last: int, *moved: MovedMemories
    ) -> npt.NDArray[np.float64]:
        """Run the workers of some strands and return what each adds to the sums of the round.

        `moved` holds memories that other actors kept until now.
        """
        if told.widths not in self._workers:
            self._workers[told.widths] = make_workers(self._context, told.widths)
        workers, draws, key = self._workers[told.widths], self._draws_at(told.t), told[1:3]
        if told.tables is not None:
            self._tables[key] = writable_copy(told.tables)
        clients = None
        if told.coefficients is None:
            workers.start[:] = told.start
        else:
            memories = self._memories_of(told).kept
            for ids, memory in moved:
                memories.memory[ids] = memory
                memories.started[ids] = True
            clients = (writable_copy(told.coefficients), memories)
        return workers.run_strands(draws, self._tables[key], len(told.lanes), first, last, clients)

    def hand_over(self, told: RemoteRound, clients: npt.NDArray[np.int64]) -> MovedMemories:
        """Return the memories of some clients, and leave them to another actor."""
        memory, started = self._memories_of(told).kept
        started[clients] = False
        return clients, memory[clients]

    def count(self, t: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in some strands of the round that starts at t."""
        return self._counts.count(self._draws_at(t), first, last)

    def _draws_at(self, t: int) -> Draws:
        if self._draws is None or self._draws.t != t:
            self._draws = self._context.draws(self._spans[t])
        return self._draws

    def _memories_of(self, told: RemoteRound) -> ClientMemories:
        """Return the memories of some lanes, without lanes that have diverged."""
        assert told.coefficients is not None
        indices, (_, V, T) = list(told.lanes), told.widths
        if told.memory not in self._memories:
            P = len(told.coefficients.constant) // V - T
            size, clients = self.problem.objective.dim * P, self.problem.federation.M
            dtype = self._context.rows.dtype
            self._memories[told.memory] = ClientMemories(
                indices, clients, size, V, dtype, sparse=True
            )
        memories = self._memories[told.memory]
        memories.keep(indices)
        return memories


def writable_copy(given: Tuple) -> Tuple:
    """Copy all arrays of a tuple: Ray's are read-only, and Numba would compile again for them."""

    def copy(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            mine = aligned(part.shape, part.dtype)
            mine[...] = part
            return mine
        return writable_copy(part) if isinstance(part, tuple) else part

    parts = map(copy, given)
    return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
