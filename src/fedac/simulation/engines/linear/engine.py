"""Runs a problem on the fast engine: first a warm-up that compiles, then the rounds.

The package's docstring (`__init__.py`) explains how the parts fit together.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import get_num_threads
from threadpoolctl import ThreadpoolController

from fedac.algorithms import RoundInfo
from fedac.algorithms.linear import boundary_form
from fedac.cluster import connect
from fedac.errors import InputError
from fedac.federation.schedule import Schedule
from fedac.simulation.engines.linear.client_rounds import BoundaryRounds, KnownCoefficients
from fedac.simulation.engines.linear.coefficients import affine_form
from fedac.simulation.engines.linear.draws import draws_of
from fedac.simulation.engines.linear.evaluate import Evaluator
from fedac.simulation.engines.linear.kernels.compiling import run_interruptibly
from fedac.simulation.engines.linear.kernels.types import Rows
from fedac.simulation.engines.linear.lanes import Pack, make_packs
from fedac.simulation.engines.linear.minibatch import BatchRounds
from fedac.simulation.engines.linear.rounds import KnownTables, LocalRounds
from fedac.simulation.engines.linear.rows import prepare, split
from fedac.simulation.engines.linear.threads import Threads
from fedac.simulation.problem import Problem, Snapshot

if TYPE_CHECKING:
    from fedac.simulation.engines.ray.driver import Crew


@cache  # finding the libraries takes milliseconds
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def refuse(problem: Problem) -> str | None:
    """Run linear models and algorithms that are linear in their state and the gradient."""
    try:
        split(problem.objective)
        for lane in problem.lanes:
            affine_form(lane)
            boundary_form(lane.algorithm, lane.hp, problem.schedule.K)
    except InputError as reason:
        return str(reason)
    return None


def one_blas_thread(rows: Rows) -> AbstractContextManager[object]:
    """Return a context in which a task's matrix products get one thread.

    More would compete with the other tasks, and sum in an order of their own. For a whole run:
    switching costs more than the products.
    """
    return _blas().limit(limits=1, user_api="blas") if rows.dense else nullcontext()


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run all lanes side by side, round by round, on this machine or on all nodes of a cluster."""
    if problem.on is None:
        yield from _run(problem, None)
        return
    from fedac.simulation.engines.ray import driver

    with connect(), driver.Crew(problem, problem.precision, driver.places()) as actors:
        yield from _run(problem, actors)


def _run(problem: Problem, crew: Crew | None) -> Generator[list[Snapshot]]:
    engine = Engine(problem, np.dtype(problem.precision), alone=crew is None)
    with one_blas_thread(engine.exact_rows):
        run_interruptibly(engine.warm_up, problem.on_compile)
        if crew:
            crew.wait_until_warm()
        with Threads(problem.threads or get_num_threads()) as team:
            yield from engine.snapshots(problem, team, crew)


class Engine:
    """The data of a problem as the kernels need them, for the warm-up and the run."""

    def __init__(self, problem: Problem, dtype: np.dtype[Any], *, alone: bool) -> None:
        self.problem = problem
        self.alone = alone  # else what clients remember is spread over many machines
        self.model, self.regularizer = split(problem.objective)
        clients = problem.federation.clients
        # A client's rows next to each other: near in memory, and known by their bounds.
        ordered = self.model
        if clients is not None:
            X, y = ordered.X[clients.rows], ordered.y[clients.rows]
            ordered = ordered.derived(X=X, y=y, weights=None)
        self.exact_rows = prepare(ordered, self.regularizer, np.float64)
        self.tables: KnownTables = {}
        self.coefficients: KnownCoefficients = {}
        self.local_rows = None
        one_step = set(problem.schedule.gaps) == {1}
        algorithms = [lane.algorithm for lane in problem.lanes]
        own_messages = any(not a.is_plain or not (one_step or a.minibatch) for a in algorithms)
        if own_messages or problem.rounds_messages:
            self.local_rows = prepare(ordered, self.regularizer, dtype)

    def warm_up(self) -> None:
        """Compile the kernels, by one worker and a round of every length.

        This ends before the first snapshot, with which the clock starts.
        """
        rounds = Schedule(tuple(set(self.problem.schedule.gaps)))
        one = replace(self.problem.federation, count=1)
        small = replace(
            self.problem, federation=one, schedule=rounds, on_progress=lambda queries: None
        )
        with Threads(1) as alone:
            for _ in self._states(small, alone, None):
                pass
            self._evaluator(alone).compile(len(small.lanes))

    def snapshots(
        self, problem: Problem, team: Threads, crew: Crew | None
    ) -> Generator[list[Snapshot]]:
        """Run the rounds of the problem, and evaluate where they lead."""
        evaluator = self._evaluator(team)
        for snapshots in self._states(problem, team, crew):
            yield _evaluated(problem, snapshots, evaluator)

    def _evaluator(self, team: Threads) -> Evaluator:
        return Evaluator(self.model, self.exact_rows, self.regularizer, team)

    def _states(
        self, problem: Problem, team: Threads, crew: Crew | None
    ) -> Generator[list[Snapshot]]:
        """Run the rounds of the problem, or of a smaller one that takes the same code path."""
        packs = make_packs(problem)
        batch = BatchRounds(problem, self.exact_rows, self.regularizer, team, crew)
        local: dict[Pack, LocalRounds] = {}
        if self.local_rows is not None:
            in_steps = [pack for pack in packs if pack.is_plain and not pack.minibatch]
            others = [pack for pack in packs if not pack.is_plain]
            given = (problem, self.local_rows, self.regularizer, team)
            full = self.problem.federation
            plain = LocalRounds(*given, in_steps, self.tables, full, crew)
            own = BoundaryRounds(
                *given, others, self.tables, full, crew, self.coefficients, self.alone
            )
            local = dict.fromkeys(in_steps, plain) | dict.fromkeys(others, own)
        yield from _rounds(problem, packs, batch, local)


def _rounds(
    problem: Problem, packs: list[Pack], batch: BatchRounds, local: dict[Pack, LocalRounds]
) -> Generator[list[Snapshot]]:
    """Take all packs through the rounds of the schedule, and yield their states."""
    federation = problem.federation
    yield [snapshot for pack in packs for snapshot in pack.snapshots(0)]
    for this_round in problem.schedule:
        r, t, gap = this_round
        draws = draws_of(federation, this_round)
        for pack in packs:
            pack.enter_round(r)
        # A diverging lane overflows on its way out; that is reported as its status.
        with np.errstate(over="ignore", invalid="ignore"):
            before = {pack: pack.state.copy() for pack in packs if pack.serves}
            in_batch = [pack for pack in packs if pack.minibatch or (gap == 1 and pack.is_plain)]
            if in_batch:
                batch.round(in_batch, draws)
            for pack in packs:
                if pack not in in_batch:
                    local[pack].round(pack, draws)
            this = RoundInfo(number=r, share=federation.share(r) if before else 1.0)
            for pack, sequences in before.items():
                pack.serve(sequences, this)
            step = t + gap
            snapshots = [snapshot for pack in packs for snapshot in pack.drop_diverged(step)]
        packs = [pack for pack in packs if pack.lanes]
        if step in problem.records:
            snapshots += [snapshot for pack in packs for snapshot in pack.snapshots(step)]
        if snapshots:
            yield snapshots


def _evaluated(problem: Problem, snapshots: list[Snapshot], evaluator: Evaluator) -> list[Snapshot]:
    """Return the snapshots with the losses of their lanes' outputs."""
    alive = [snapshot for snapshot in snapshots if not snapshot.diverged]
    if not alive:
        return snapshots
    W = np.stack([problem.lanes[s.lane].output(s.state, s.step) for s in alive])
    with np.errstate(over="ignore", invalid="ignore"):
        losses = evaluator.losses(W)
    dropped = [snapshot for snapshot in snapshots if snapshot.diverged]
    return dropped + [replace(s, loss=float(loss)) for s, loss in zip(alive, losses, strict=True)]
