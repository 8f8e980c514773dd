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
from fedac.simulation.engines.linear.workers import (
    RemoteRound,
    RoundKey,
    StreamedWorkers,
    Threads,
    Widths,
)
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
        self._tables: dict[RoundKey, Tables] = {}
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

    def run(self, told: RemoteRound, first: int, last: int) -> npt.NDArray[np.float64]:
        """Run the workers of some strands and return what each adds to the sums of the round."""
        workers = self._workers_of(told)
        workers.start[:] = told.start
        draws, tables = self._draws_at(told.t), self._tables_of(told)
        return workers.run_strands(draws, tables, len(told.lanes), first, last)

    def run_clients(
        self, told: RemoteRound, first: int, last: int, *moved: MovedMemories
    ) -> npt.NDArray[np.float64]:
        """Run the clients of some strands and return the sums of their messages.

        `moved` holds memories that other actors kept until now.
        """
        assert told.coefficients is not None
        coefficients, memories = writable_copy(told.coefficients), self._memories_of(told).kept
        for clients, memory in moved:
            memories.memory[clients] = memory
            memories.started[clients] = True
        draws, tables = self._draws_at(told.t), self._tables_of(told)
        return self._workers_of(told).run_clients(
            draws, tables, coefficients, memories, len(told.lanes), first, last
        )

    def hand_over(self, told: RemoteRound, clients: npt.NDArray[np.int64]) -> MovedMemories:
        """Return the memories of some clients, and leave them to another actor."""
        memory, started = self._memories_of(told).kept
        started[clients] = False
        return clients, memory[clients]

    def count(self, t: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in some strands of the round that starts at t."""
        return self._counts.count(self._draws_at(t), first, last)

    def _workers_of(self, told: RemoteRound) -> StreamedWorkers:
        if told.widths not in self._workers:
            self._workers[told.widths] = make_workers(self._context, told.widths)
        return self._workers[told.widths]

    def _draws_at(self, t: int) -> Draws:
        if self._draws is None or self._draws.t != t:
            self._draws = self._context.draws(self._spans[t])
        return self._draws

    def _tables_of(self, told: RemoteRound) -> Tables:
        key = told.lanes, told.gap
        if told.tables is not None:
            self._tables[key] = writable_copy(told.tables)
        return self._tables[key]

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
    """Copy all arrays of a tuple: Ray's are read-only, and Numba would compile again for them.

    >>> frozen = np.arange(2.0)
    >>> frozen.flags.writeable = False
    >>> writable_copy((frozen, 7))
    (array([0., 1.]), 7)
    >>> writable_copy((frozen, 7))[0].flags.writeable
    True
    """

    def copy(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            mine = aligned(part.shape, part.dtype)
            mine[...] = part
            return mine
        return writable_copy(part) if isinstance(part, tuple) else part

    parts = map(copy, given)
    return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
