# SPDX-License-Identifier: Apache-2.0
"""The input of an engine, its output, and the checks of options that commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import couple
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.cluster import import_ray
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32
from fedac.federation.federation import Federation, Update
from fedac.federation.schedule import Decay, Schedule, Span
from fedac.federation.timeline import Timeline, Work
from fedac.objectives.base import Objective
from fedac.validate import Array, as_numbers, require_count, unknown_name

# Beyond this size an iterate will overflow, in single and in double precision.
DIVERGED = 1e10

ArrayState = tuple[Array, ...]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Lane:
    """One run among several on the same draws: an algorithm with its hyperparameters.

    If the step size decays, `hp` belongs to one round, and `at` returns the lane of another round.
    """

    algorithm: Algorithm
    hp: Hyperparameters
    eta: Decay | None = None  # a decaying step size, with the mu and K to couple it with
    mu: float = 0.0
    K: int = 1

    def at(self, r: int) -> Lane:
        """Return the lane of round r, counted from 0."""
        if self.eta is None:
            return self
        hp = couple(self.algorithm, eta=self.eta.at(r), mu=self.mu, K=self.K)
        return replace(self, hp=hp)

    def output(self, state: ArrayState, t: int) -> Array:
        """Return the output after t steps."""
        w: Array = self.algorithm.output(state, self.hp, t)
        return w

    def diverged(self, state: ArrayState, t: int) -> bool:
        """Return whether the query point or the output is out of bounds."""
        algorithm = self.algorithm
        with np.errstate(over="ignore", invalid="ignore"):
            sequences, _ = algorithm.split(state)
            local = algorithm.enter(sequences, algorithm.begin_memory(sequences), self.hp)
            points = (algorithm.query(local, self.hp), self.output(state, t))
        return not all(np.abs(point).max() <= DIVERGED for point in points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A validated simulation."""

    objective: Objective
    lanes: tuple[Lane, ...]
    federation: Federation
    schedule: Schedule
    start: Array
    records: frozenset[int]
    on_progress: Callable[[int], object]
    on_compile: Callable[[], object]
    wire: str = FLOAT32
    precision: str = "float32"  # of the fast engine's local states
    threads: int | None = None
    mu: float = 0.0  # that the lanes were coupled with
    on: str | None = None  # the kind of cluster to run on
    live: bool = False  # whether callbacks need every record immediately
    # Of the network engine: how it runs, and on what.
    backend: str | None = None
    compile: bool = False
    device: str | None = None
    checkpoint: Path | None = None  # a file from which the same simulation continues
    work: Work | None = None  # what durations follow from; None: they do not matter
    timeline: Timeline | None = None  # None: rounds of all participants, as the federation says

    @property
    def queries(self) -> int:
        """The number of single-row gradients of the local steps of one lane."""
        if self.timeline is None:
            return sum(map(self.federation.queries, self.schedule))
        return sum(map(self.federation.queries_of, self.updates()))

    @property
    def is_synchronous(self) -> bool:
        """Whether all clients of a server step started from its last version."""
        return self.timeline is None or self.timeline.is_synchronous

    @property
    def most_members(self) -> int:
        """The largest number of clients of a server step."""
        return self.federation.taking_part if self.timeline is None else self.timeline.most_members

    @property
    def gaps(self) -> tuple[int, ...]:
        """The lengths of rounds, each once."""
        if self.timeline is None or not len(self.timeline.lengths):
            return tuple({*self.schedule.gaps})
        return tuple(self.timeline.lengths.tolist())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of local steps, ascending, if clients of a round differ; else empty."""
        federation, timeline = self.federation, self.timeline
        if not federation.equal_steps:
            steps = federation.steps(np.arange(federation.M), Span(0, 0, 1))
            return tuple(np.unique(steps).tolist())
        if timeline is not None and not timeline.equal_steps:
            return tuple(timeline.lengths.tolist())
        return ()

    def updates(self) -> Iterator[Update]:
        """Yield the steps of the server."""
        if self.timeline is not None:
            return self.timeline.updates()
        return map(self.federation.update, self.schedule)

    def keep_versions(self, history: Mapping[int, V], now: int) -> dict[int, V]:
        """Return what later server steps need of the versions before `now`."""
        if self.timeline is None:
            return {}
        last = self.timeline.last_uses
        return {version: each for version, each in history.items() if last[version] >= now}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Server state of one lane after a round; the last one if the lane diverged.

    An engine that evaluates lanes itself also sets `loss`, F of the lane's output, and `metrics`.
    """

    lane: int
    step: int
    state: ArrayState
    diverged: bool = False
    loss: float | None = None
    metrics: Mapping[str, float] | None = None  # if the engine evaluates them
    buffers: Array | None = None  # of a network, where they change in training
    seen: bool = False  # from a checkpoint: callbacks had it, and `state` is that of the last one


# Somewhat more threads than cores are fine; thousands are a typo.
THREADS_PER_CORE = 16
CLUSTERS = ("ray",)
PRECISIONS = ("float32", "float64", "bfloat16")


def start_point(objective: Objective, start: npt.ArrayLike | None, seed: int = 1) -> Array:
    """Return w_0 (default: the objective's own)."""
    if start is None:
        return objective.start(seed)
    w_0 = as_numbers("start", start).copy()
    if w_0.shape != (objective.dim,) or np.abs(w_0).max(initial=0) > DIVERGED:
        raise InputError(
            f"start must be {objective.dim} numbers of size at most {DIVERGED:g}, got shape "
            f"{np.shape(start)} with sizes up to {np.abs(w_0).max(initial=0):g}"
        )
    return w_0


def require_seed(seed: int) -> int:
    """Return a valid seed; raises InputError otherwise."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < 2**64:
        raise InputError(f"seed must be a whole number from 0 to 2^64 - 1, got {seed!r}")
    return int(seed)


def require_threads(threads: int | None) -> None:
    """Raise InputError if `threads`, or else ``NUMBA_NUM_THREADS``, is no plausible number."""
    name, asked = "threads", threads
    if asked is None:
        # Numba ignores text that is not a number, and fails with a traceback below 1.
        name, text = "NUMBA_NUM_THREADS", os.environ.get("NUMBA_NUM_THREADS", "")
        try:
            asked = int(text)
        except ValueError:
            return
    require_count(name, asked)
    cores = os.cpu_count() or 1
    if asked > THREADS_PER_CORE * cores:
        raise InputError(
            f"{name} must be at most {THREADS_PER_CORE * cores}: this machine has {cores} "
            f"core{'s' if cores > 1 else ''}, got {asked}"
        )


def require_cluster(on: str | None, engine: str | None) -> None:
    """Raise InputError for an unknown cluster, if Ray is missing, or for the reference engine."""
    if on is None:
        return
    if on not in CLUSTERS:
        raise unknown_name("cluster", str(on), CLUSTERS)
    if engine == "reference":
        raise InputError(f"on='{on}' needs the fast engine, not engine='reference'")
    import_ray()
