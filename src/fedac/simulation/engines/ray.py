# SPDX-License-Identifier: Apache-2.0
"""The linear engine on a Ray cluster: actors on all nodes share the strands of a round.

Every actor holds the data and runs a range of strands, in proportion to the cores of its node. It
returns their totals, and the driver adds up all totals in order, as if its own threads had computed
them. So the result is the same to the last bit.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from fedac.cluster import Node, import_ray, nodes, pin, require_same_version
from fedac.errors import InputError, NodeLostError
from fedac.simulation.engines.linear import rounds
from fedac.simulation.engines.linear.client_rounds import (
    ClientMemories,
    MemoryHost,
    free_bytes,
    require_space,
)
from fedac.simulation.engines.linear.engine import make_context, one_blas_thread, warm_up
from fedac.simulation.engines.linear.kernels.interface import Draws, Tables
from fedac.simulation.engines.linear.kernels.simd import aligned
from fedac.simulation.engines.linear.workers import (
    RemoteRound,
    RoundKey,
    StreamedWorkers,
    Task,
    Threads,
    Widths,
)
from fedac.simulation.problem import Problem

NO_ACTOR = -1
Ids = npt.NDArray[np.int64]
# The ids of some clients, and their memories.
MovedMemories = tuple[Ids, npt.NDArray[Any]]
Tuple = TypeVar("Tuple", bound=tuple[Any, ...])


def nodes_with_cores() -> list[Node]:
    """Return all nodes that have cores."""
    found = [node for node in nodes() if node.cpus]
    if not found:
        raise InputError("no node of the Ray cluster has CPUs: start one with `ray start`")
    return found


class ActorPool:
    """One actor on each of some nodes, to run the strands of a problem; they end with this context.

    The driver has the pool.
    """

    def __init__(self, problem: Problem, on: list[Node]) -> None:
        self.problem = problem
        self._nodes = on
        self._rounds = {span.t: span.number for span in problem.schedule}
        self._free: list[int | None] = []
        # The tables that the actors have already.
        self._sent: dict[RoundKey, Tables] = {}
        self._placements: dict[ClientMemories, MemoryPlacement] = {}

    def __enter__(self) -> Self:
        """Start the actors, which then warm up while the driver does."""
        self._ray = import_ray()
        require_same_version(list({node.id: node for node in self._nodes}.values()))
        bare = replace(self.problem, on_progress=_ignore, on_compile=_ignore)
        pickled = self._ray.put(self._ray.cloudpickle.dumps(bare))
        self._actors = [
            self._ray.remote(Actor)
            .options(num_cpus=node.cpus, scheduling_strategy=pin(node))
            .remote(max(1, int(node.cpus)))
            for node in self._nodes
        ]
        self._warming = [actor.warm_up.remote(pickled) for actor in self._actors]
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def wait_until_warm(self) -> None:
        """Wait until all actors have compiled."""
        free = dict(self._answers(dict(enumerate(self._warming)), "before the first round"))
        self._free = [free[i] for i in range(len(self._actors))]

    def require_space(self, sizes: dict[str, int], itemsize: int) -> None:
        """Raise InputError if an actor's share of the clients' memories does not fit its node."""
        cpus = sum(node.cpus for node in self._nodes)
        hosts = [
            MemoryHost(node.cpus / cpus, free, f" on node {node.name}")
            for node, free in zip(self._nodes, self._free, strict=True)
        ]
        require_space(sizes, itemsize, hosts)

    def run(
        self,
        told: RemoteRound,
        draws: Draws,
        sums: npt.NDArray[np.float64],
        on_done: Task,
        memories: ClientMemories | None = None,
    ) -> None:
        """Let the actors run all strands of a round, and fill `sums` with what they return.

        `memories` stands for the memories of the clients, which the actors keep.
        """
        ranges = self._ranges(len(sums))
        key = told.lanes, told.gap
        if self._sent.get(key) is told.tables:
            told = told._replace(tables=None)
        elif told.tables is not None:
            self._sent[key] = told.tables
        moved: dict[int, list[Any]] = {i: [] for i in ranges}
        if memories is None:
            sent = self._ray.put(told)
        else:
            clients = self.problem.federation.M
            placement = self._placements.setdefault(memories, MemoryPlacement(clients))
            number = list(self._placements).index(memories)
            sent = self._ray.put(told._replace(memory=number))
            if draws.members.size:  # otherwise all clients participate, always at the same place
                bounds = strand_bounds(len(sums), self._nodes)
                places = [draws.taking_part * strand // len(sums) for strand in bounds]
                for source, target, ids in placement.assign(draws.members, places):
                    moved[target].append(self._actors[source].hand_over.remote(sent, ids))
        asked = {i: self._actors[i].run.remote(sent, *ranges[i], *moved[i]) for i in ranges}
        for i, part in self._answers(asked, self._when(told.t)):
            first, last = ranges[i]
            sums[first:last] = part
            on_done(first, last)

    def count(self, t: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in the round that starts at step t."""
        ranges = self._ranges(rounds.BATCH_STRANDS)
        asked = {i: self._actors[i].count.remote(t, *ranges[i]) for i in ranges}
        counts = (counts for _, counts in self._answers(asked, self._when(t)))
        total: npt.NDArray[np.int64] = sum(counts, start=np.zeros((), np.int64))
        return total

    def _ranges(self, strands: int) -> dict[int, tuple[int, int]]:
        """Return the actors that get strands, each with its range."""
        ranges = enumerate(pairwise(strand_bounds(strands, self._nodes)))
        return {i: (first, last) for i, (first, last) in ranges if first < last}

    def _answers(self, asked: dict[int, Any], when: str) -> Iterator[tuple[int, Any]]:
        """Yield actors and their answers, as the answers come."""
        ray = self._ray
        waiting = {answer: i for i, answer in asked.items()}
        while waiting:
            (answer, *_), _ = ray.wait(list(waiting))
            i = waiting.pop(answer)
            try:
                value = ray.get(answer)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ray.exceptions.RayError):  # moved memories were lost
                    raise self._lost(i, when) from error
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise self._lost(i, when) from error
            yield i, value

    def _lost(self, i: int, when: str) -> NodeLostError:
        alive = {node.id for node in nodes()}
        dead = {node.name for node in self._nodes if node.id not in alive}
        names = ", ".join(sorted(dead)) or self._nodes[i].name
        return NodeLostError(
            f"lost node {names} {when}; a simulation keeps no checkpoint: run it again on the "
            f"remaining nodes, or when the node is back"
        )

    def _when(self, t: int) -> str:
        return f"in round {self._rounds[t] + 1} of {len(self._rounds)}"


def _ignore(*_: object) -> None:
    """Replace the callbacks of the driver, which stay with it."""


def strand_bounds(strands: int, on: list[Node]) -> list[int]:
    """Return the bounds of ranges of strands, in proportion to the cores of nodes.

    >>> strand_bounds(64, [Node("1", "one", 3), Node("2", "two", 1)])
    [0, 48, 64]
    """
    cpus = list(accumulate((node.cpus for node in on), initial=0.0))
    return [round(strands * before / cpus[-1]) for before in cpus]


class MemoryPlacement:
    """Which actor keeps the memory of which client.

    The members of a round are in ascending order, and every actor runs a range of them. So only
    clients near the border of a range move to another actor.

    Examples
    --------
    >>> placement = MemoryPlacement(6)
    >>> list(placement.assign(np.array([0, 2, 3, 4]), [0, 2, 4]))
    []
    >>> list(placement.assign(np.array([0, 1, 2, 5]), [0, 2, 4]))
    [(0, 1, array([2]))]
    """

    def __init__(self, clients: int) -> None:
        self._actor = np.full(clients, NO_ACTOR, np.int16)

    def assign(self, members: Ids, bounds: list[int]) -> Iterator[tuple[int, int, Ids]]:
        """Give actor i the members from bounds[i] to bounds[i + 1].

        Yield what has to move: the actors that give and take, and the clients.
        """
        for target, (first, last) in enumerate(pairwise(bounds)):
            clients = members[first:last]
            before = self._actor[clients]
            for source in set(np.unique(before).tolist()) - {NO_ACTOR, target}:
                yield source, target, clients[before == source]
            self._actor[clients] = target


class Actor:
    """Runs the strands that the driver asks for, with the threads of its node.

    It handles the driver's messages in order.
    """

    def __init__(self, threads: int) -> None:
        self._threads = Threads(threads)
        self._workers: dict[tuple[Widths, bool], StreamedWorkers] = {}
        self._memories: dict[int, ClientMemories] = {}
        self._tables: dict[tuple[Any, ...], Tables] = {}
        self._draws: Draws | None = None

    def warm_up(self, pickled: bytes) -> int | None:
        """Prepare the data of a problem, compile, and return how many bytes are free here."""
        # Unpickled from bytes, arrays are writable: Numba would compile again for Ray's.
        self.problem: Problem = pickle.loads(pickled)
        self._spans = {span.t: span for span in self.problem.schedule}
        context = make_context(self.problem)
        self._blas_limit = one_blas_thread(context.rows)
        warm_up(context)
        self._context = replace(context, threads=self._threads)
        size = (self._threads.count, self.problem.objective.n_samples)
        self._counts = np.zeros(size, np.int64)
        return free_bytes()

    def run(
        self, told: RemoteRound, first: int, last: int, *moved: MovedMemories
    ) -> npt.NDArray[np.float64]:
        """Run the workers of some strands and return what each adds to the sums of the round.

        `moved` holds memories that other actors kept until now.
        """
        kind = told.widths, told.coefficients is not None
        if kind not in self._workers:
            self._workers[kind] = rounds.make_workers(self._context, kind[0], own_start=kind[1])
        workers, draws, key = self._workers[kind], self._draws_at(told.t), told[1:3]
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

    def hand_over(self, told: RemoteRound, clients: Ids) -> MovedMemories:
        """Return the memories of some clients, and leave them to another actor."""
        memory, started = self._memories_of(told).kept
        started[clients] = False
        return clients, memory[clients]

    def count(self, t: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in some strands of the round that starts at t."""
        return rounds.count_rows(self._threads, self._draws_at(t), self._counts, first, last)

    def _draws_at(self, t: int) -> Draws:
        if self._draws is None or self._draws.t != t:
            self._draws = self._context.draws(self.problem.federation.update(self._spans[t]))
        return self._draws

    def _memories_of(self, told: RemoteRound) -> ClientMemories:
        """Return the memories of some lanes, without lanes that have diverged."""
        assert told.coefficients is not None
        indices, V = list(told.lanes), told.widths.V
        if told.memory not in self._memories:
            P = len(told.coefficients.echoes)
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
