"""The driver of a simulation over many nodes: a pool of actors that share the strands of a round.

Every actor holds the data and runs a range of strands, in proportion to the cores of its node. It
returns their totals, and the driver adds up all totals in order, as if its own threads had computed
them. So the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedac.cluster import Node, import_ray, nodes, pin, require_same_version
from fedac.errors import InputError, NodeLostError
from fedac.simulation.engines.linear.client_rounds import ClientMemories, MemoryHost, require_space
from fedac.simulation.engines.linear.kernels.types import Draws, Tables
from fedac.simulation.engines.linear.rounds import BATCH_STRANDS
from fedac.simulation.engines.linear.workers import RemoteRound, RoundKey, Task
from fedac.simulation.engines.ray.actor import Actor
from fedac.simulation.problem import Problem

NO_ACTOR = -1


class NodeShare(NamedTuple):
    """The node of an actor, and how many of its cores the actor has."""

    node: Node
    cpus: float


def nodes_with_cores() -> list[NodeShare]:
    """Return all nodes that have cores."""
    found = [NodeShare(node, node.cpus) for node in nodes() if node.cpus]
    if not found:
        raise InputError("no node of the Ray cluster has CPUs: start one with `ray start`")
    return found


def strand_bounds(strands: int, shares: list[NodeShare]) -> list[int]:
    """Return the bounds of ranges of strands, in proportion to the cores of actors.

    >>> strand_bounds(64, [NodeShare(Node("1", "one", 3), 3), NodeShare(Node("2", "two", 1), 1)])
    [0, 48, 64]
    """
    cpus = list(accumulate((share.cpus for share in shares), initial=0.0))
    return [round(strands * before / cpus[-1]) for before in cpus]


class ActorPool:
    """Actors that run the strands of a problem; they end with this context."""

    def __init__(self, problem: Problem, shares: list[NodeShare]) -> None:
        self.problem = problem
        self._shares = shares
        self._rounds = {span.t: span.number for span in problem.schedule}
        self._free: list[int | None] = []
        # The tables that the actors have already.
        self._sent: dict[RoundKey, Tables] = {}
        self._placements: dict[ClientMemories, MemoryPlacement] = {}

    def __enter__(self) -> Self:
        """Start the actors, which then warm up while the driver does."""
        self._ray = import_ray()
        require_same_version(list({share.node for share in self._shares}))
        bare = replace(self.problem, on_progress=_ignore, on_compile=_ignore)
        pickled = self._ray.put(self._ray.cloudpickle.dumps(bare))
        self._actors = [
            self._ray.remote(Actor)
            .options(num_cpus=share.cpus, scheduling_strategy=pin(share.node))
            .remote(max(1, int(share.cpus)))
            for share in self._shares
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
        cpus = sum(share.cpus for share in self._shares)
        hosts = [
            MemoryHost(share.cpus / cpus, free, f" on node {share.node.name}")
            for share, free in zip(self._shares, self._free, strict=True)
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
        bounds = strand_bounds(len(sums), self._shares)
        key = told.lanes, told.gap
        if self._sent.get(key) is told.tables:
            told = told._replace(tables=None)
        elif told.tables is not None:
            self._sent[key] = told.tables
        moved: list[list[Any]] = [[] for _ in self._actors]
        if memories is None:
            sent = self._ray.put(told)
        else:
            clients = self.problem.federation.M
            placement = self._placements.setdefault(memories, MemoryPlacement(clients))
            number = list(self._placements).index(memories)
            sent = self._ray.put(told._replace(memory=number))
            if draws.members.size:  # otherwise all clients participate, always at the same place
                places = [draws.taking_part * strand // len(sums) for strand in bounds]
                for source, target, ids in placement.assign(draws.members, places):
                    moved[target].append(self._actors[source].hand_over.remote(sent, ids))
        asked = {
            i: self._actors[i].run.remote(sent, first, last, *moved[i])
            for i, first, last in self._ranges(len(sums))
        }
        for i, part in self._answers(asked, self._when(told.t)):
            first, last = bounds[i : i + 2]
            sums[first:last] = part
            on_done(first, last)

    def count(self, t: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in the round that starts at step t."""
        asked = {
            i: self._actors[i].count.remote(t, first, last)
            for i, first, last in self._ranges(BATCH_STRANDS)
        }
        counts = (counts for _, counts in self._answers(asked, self._when(t)))
        total: npt.NDArray[np.int64] = sum(counts, start=np.zeros((), np.int64))
        return total

    def _ranges(self, strands: int) -> list[tuple[int, int, int]]:
        """Return the actors that get strands, each with its range."""
        ranges = enumerate(pairwise(strand_bounds(strands, self._shares)))
        return [(i, first, last) for i, (first, last) in ranges if first < last]

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
        dead = {share.node.name for share in self._shares if share.node.id not in alive}
        names = ", ".join(sorted(dead)) or self._shares[i].node.name
        return NodeLostError(
            f"lost node {names} {when}; a simulation keeps no checkpoint: run it again on the "
            f"remaining nodes, or when the node is back"
        )

    def _when(self, t: int) -> str:
        return f"in round {self._rounds[t] + 1} of {len(self._rounds)}"


def _ignore(*_: object) -> None:
    """Replace the callbacks of the driver, which stay with it."""


class MemoryMove(NamedTuple):
    """The memories of some clients go from one actor to another."""

    source: int
    target: int
    clients: npt.NDArray[np.int64]


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
    [MemoryMove(source=0, target=1, clients=array([2]))]
    """

    def __init__(self, clients: int) -> None:
        self._actor = np.full(clients, NO_ACTOR, np.int16)

    def assign(self, members: npt.NDArray[np.int64], bounds: list[int]) -> Iterator[MemoryMove]:
        """Give actor i the members from bounds[i] to bounds[i + 1]; yield what has to move."""
        for target, (first, last) in enumerate(pairwise(bounds)):
            clients = members[first:last]
            before = self._actor[clients]
            for source in set(np.unique(before).tolist()) - {NO_ACTOR, target}:
                yield MemoryMove(source, target, clients[before == source])
            self._actor[clients] = target
