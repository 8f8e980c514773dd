"""The driver's side of a simulation over many nodes: actors that share the strands of a round.

Every actor holds the data and runs a range of strands, as many as its node has cores. It returns
the totals of its strands, and the driver adds up those of all as if its own threads had found
them: the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedac.cluster import Node, import_ray, nodes, pin, require_same_version
from fedac.errors import InputError, NodeLostError
from fedac.simulation.engines.linear.client_memory import ClientMemory, Home, require_space
from fedac.simulation.engines.linear.draws import STRANDS
from fedac.simulation.engines.linear.kernels.types import Draws, Tables
from fedac.simulation.engines.linear.threads import Task
from fedac.simulation.engines.ray.actor import Actor
from fedac.simulation.engines.ray.job import Job
from fedac.simulation.engines.ray.owners import Owners
from fedac.simulation.problem import Problem


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor works, and how many cores of the node are its own."""

    node: Node
    cpus: float


def places() -> list[Place]:
    """Return a place on every node that has cores."""
    found = [Place(node, node.cpus) for node in nodes() if node.cpus]
    if not found:
        raise InputError("no node of the Ray cluster has CPUs: start one with `ray start`")
    return found


def shares(strands: int, places: list[Place]) -> list[int]:
    """Return the bounds of ranges of strands, in proportion to the cores of places.

    >>> shares(64, [Place(Node("1", "one", 3), 3), Place(Node("2", "two", 1), 1)])
    [0, 48, 64]
    """
    cpus = list(accumulate((place.cpus for place in places), initial=0.0))
    return [round(strands * before / cpus[-1]) for before in cpus]


class Crew:
    """Actors that run the strands of a problem; they end with this context."""

    def __init__(self, problem: Problem, dtype: str, places: list[Place]) -> None:
        self.problem = problem
        self._dtype = dtype
        self._places = places
        self._rounds = {span.t: span.number for span in problem.schedule}
        self._free: list[int | None] = []
        # The tables that the actors have, by lanes and length of the round.
        self._sent: dict[tuple[tuple[int, ...], int], Tables] = {}
        self._owners: dict[ClientMemory, Owners] = {}

    def __enter__(self) -> Self:
        """Start the actors, which then warm up while the driver does."""
        self._ray = import_ray()
        require_same_version(list({place.node for place in self._places}))
        bare = replace(self.problem, on_progress=_ignore, on_compile=_ignore)
        pickled = self._ray.put(self._ray.cloudpickle.dumps(bare))
        self._actors = [
            self._ray.remote(Actor)
            .options(num_cpus=place.cpus, scheduling_strategy=pin(place.node))
            .remote(max(1, int(place.cpus)))
            for place in self._places
        ]
        self._warming = [actor.warm_up.remote(pickled, self._dtype) for actor in self._actors]
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def wait_until_warm(self) -> None:
        """Wait until all actors have compiled."""
        free = dict(self._answers(dict(enumerate(self._warming)), "before the first round"))
        self._free = [free[place] for place in range(len(self._places))]

    def require_space(self, sizes: dict[str, int], itemsize: int) -> None:
        """Refuse memories of clients of which an actor's share does not fit into its node."""
        cpus = sum(place.cpus for place in self._places)
        homes = [
            Home(place.cpus / cpus, free, f" on node {place.node.name}")
            for place, free in zip(self._places, self._free, strict=True)
        ]
        require_space(sizes, itemsize, homes)

    def run(self, job: Job, sums: npt.NDArray[np.float64], on_done: Task) -> None:
        """Let the actors run all strands of workers, and fill `sums` with what they return."""
        bounds = shares(len(sums), self._places)
        sent = self._ray.put(self._with_news(job))
        asked = {
            place: self._actors[place].run.remote(sent, first, last)
            for place, (first, last) in enumerate(pairwise(bounds))
            if first < last
        }
        self._fill(sums, asked, bounds, job.t, on_done)

    def visit(
        self,
        job: Job,
        memory: ClientMemory,
        draws: Draws,
        sums: npt.NDArray[np.float64],
        on_done: Task,
    ) -> None:
        """Let the actors run all strands of clients, and fill `sums` with what they return."""
        bounds = shares(len(sums), self._places)
        owners = self._owners.setdefault(memory, Owners(self.problem.federation.M))
        number = list(self._owners).index(memory)
        sent = self._ray.put(self._with_news(job._replace(memory=number)))
        gifts: list[list[Any]] = [[] for _ in self._places]
        if draws.members.size:  # else everybody takes part, always at the same place
            of_clients = [draws.taking_part * strand // len(sums) for strand in bounds]
            for giver, taker, clients in owners.assign(draws.members, of_clients):
                gifts[taker].append(self._actors[giver].give.remote(sent, clients))
        asked = {
            place: self._actors[place].visit.remote(sent, first, last, *gifts[place])
            for place, (first, last) in enumerate(pairwise(bounds))
            if first < last
        }
        self._fill(sums, asked, bounds, job.t, on_done)

    def count(self, t: int) -> npt.NDArray[np.int64]:
        """Return how often each row is drawn in the round that starts at step t."""
        bounds = shares(STRANDS, self._places)
        asked = {
            place: self._actors[place].count.remote(t, first, last)
            for place, (first, last) in enumerate(pairwise(bounds))
            if first < last
        }
        counts = (counts for _, counts in self._answers(asked, self._when(t)))
        total: npt.NDArray[np.int64] = sum(counts, start=np.zeros((), np.int64))
        return total

    def _with_news(self, job: Job) -> Job:
        """Leave out tables that the actors have already."""
        key = job.lanes, job.gap
        if self._sent.get(key) is job.tables:
            return job._replace(tables=None)
        assert job.tables is not None
        self._sent[key] = job.tables
        return job

    def _fill(
        self,
        sums: npt.NDArray[np.float64],
        asked: dict[int, Any],
        bounds: list[int],
        t: int,
        on_done: Task,
    ) -> None:
        for place, part in self._answers(asked, self._when(t)):
            first, last = bounds[place : place + 2]
            sums[first:last] = part
            on_done(first, last)

    def _answers(self, asked: dict[int, Any], when: str) -> Iterator[tuple[int, Any]]:
        """Yield places and what their actors answered, as the answers come."""
        ray = self._ray
        places = {answer: place for place, answer in asked.items()}
        while places:
            (answer, *_), _ = ray.wait(list(places))
            place = places.pop(answer)
            try:
                value = ray.get(answer)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ray.exceptions.RayError):  # of a gift that was lost
                    raise self._lost(place, when) from error
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise self._lost(place, when) from error
            yield place, value

    def _lost(self, place: int, when: str) -> NodeLostError:
        alive = {node.id for node in nodes()}
        dead = {p.node.name for p in self._places if p.node.id not in alive}
        names = ", ".join(sorted(dead)) or self._places[place].node.name
        return NodeLostError(
            f"lost node {names} {when}; a simulation keeps no checkpoint: run it again, on the "
            f"nodes that are left or when the node is back"
        )

    def _when(self, t: int) -> str:
        return f"in round {self._rounds[t] + 1} of {len(self._rounds)}"


def _ignore(*_: object) -> None:
    """Stand for the callbacks of the driver, which stay with it."""
