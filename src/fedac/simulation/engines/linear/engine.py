"""The fast engine: first a warm-up that compiles, then the rounds.

The package's docstring (`__init__.py`) explains how the parts fit together.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numba import get_num_threads
from threadpoolctl import ThreadpoolController

from fedac.algorithms import RoundInfo
from fedac.algorithms.linear import boundary_form
from fedac.cluster import connect
from fedac.errors import InputError
from fedac.federation.schedule import Schedule
from fedac.simulation.engines.linear.client_rounds import ClientRounds
from fedac.simulation.engines.linear.coefficients import affine_form
from fedac.simulation.engines.linear.kernels.compiling import compilation
from fedac.simulation.engines.linear.kernels.types import Rows
from fedac.simulation.engines.linear.lanes import LaneGroup, make_groups
from fedac.simulation.engines.linear.model import Evaluator, prepare, split
from fedac.simulation.engines.linear.rounds import LocalRounds, MinibatchRounds
from fedac.simulation.engines.linear.workers import Context, Threads
from fedac.simulation.problem import Problem, Snapshot

if TYPE_CHECKING:
    from fedac.simulation.engines.ray.driver import ActorPool


def refuse(problem: Problem) -> str | None:
    """Refuse all but linear models and algorithms that are linear in state and gradient."""
    try:
        split(problem.objective)
        for lane in problem.lanes:
            affine_form(lane)
            boundary_form(lane.algorithm, lane.hp, problem.schedule.K)
    except InputError as reason:
        return str(reason)
    return None


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run all lanes together, on this machine or on all nodes of a Ray cluster."""
    with ExitStack() as stack:
        actors = None
        if problem.on is not None:
            from fedac.simulation.engines.ray.driver import ActorPool, nodes_with_cores

            stack.enter_context(connect())
            actors = stack.enter_context(ActorPool(problem, nodes_with_cores()))
        engine = LinearEngine(problem)
        stack.enter_context(one_blas_thread(engine.context.rows))
        _run_interruptibly(engine.warm_up, problem.on_compile)
        if actors:
            actors.wait_until_warm()
        threads = stack.enter_context(Threads(problem.threads or get_num_threads()))
        yield from engine.snapshots(threads, actors)


@cache  # finding the libraries takes milliseconds
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread(rows: Rows) -> AbstractContextManager[object]:
    """Return a context in which a task's matrix products get one thread.

    More would compete with the other tasks, and change the order of sums. Use it for a whole run:
    switching costs more than the products.
    """
    return _blas().limit(limits=1, user_api="blas") if rows.dense else nullcontext()


class LinearEngine:
    """The data of a problem as the kernels need it, for the warm-up and the run."""

    def __init__(self, problem: Problem) -> None:
        self.model, regularizer = split(problem.objective)
        ordered, clients = self.model, problem.federation.clients
        if clients is not None:
            # A client's rows next to each other: near in memory, and known by their bounds.
            X, y = ordered.X[clients.rows], ordered.y[clients.rows]
            ordered = ordered.derived(X=X, y=y, weights=None)
        rows = exact_rows = prepare(ordered, regularizer, np.float64)
        local = any(takes_local_steps(group, problem) for group in make_groups(problem))
        if local and problem.precision != "float64":
            rows = prepare(ordered, regularizer, problem.precision)
        self.context = Context(
            problem, problem.federation, rows, exact_rows, regularizer, Threads(1)
        )

    def warm_up(self) -> None:
        """Compile the kernels before the clock starts: one worker takes a round of every length."""
        problem = self.context.problem
        small = replace(
            problem,
            federation=replace(problem.federation, count=1),
            schedule=Schedule(tuple(set(problem.schedule.gaps))),
            on_progress=lambda queries: None,
        )
        for _ in _rounds(replace(self.context, problem=small)):
            pass
        self._evaluator(self.context.threads).compile(len(problem.lanes))

    def snapshots(self, threads: Threads, actors: ActorPool | None) -> Generator[list[Snapshot]]:
        """Run the rounds of the problem, and evaluate their snapshots."""
        evaluator = self._evaluator(threads)
        lanes = self.context.problem.lanes
        for snapshots in _rounds(replace(self.context, threads=threads, actors=actors)):
            alive = [snapshot for snapshot in snapshots if not snapshot.diverged]
            if alive:
                W = np.stack([lanes[s.lane].output(s.state, s.step) for s in alive])
                with np.errstate(over="ignore", invalid="ignore"):
                    losses = evaluator.losses(W)
                alive = [replace(s, loss=float(F)) for s, F in zip(alive, losses, strict=True)]
            yield [snapshot for snapshot in snapshots if snapshot.diverged] + alive

    def _evaluator(self, threads: Threads) -> Evaluator:
        return Evaluator(self.model, self.context.exact_rows, self.context.regularizer, threads)


def takes_local_steps(group: LaneGroup, problem: Problem) -> bool:
    """Return whether workers run any round of a group, not only minibatches."""
    return not group.minibatch and (problem.schedule.K > 1 or not group.is_plain)


def _rounds(context: Context) -> Generator[list[Snapshot]]:
    """Take all lanes through the rounds of the schedule, and yield their states."""
    problem, federation = context.problem, context.problem.federation
    groups = make_groups(problem)
    local = [group for group in groups if takes_local_steps(group, problem)]
    rounds: dict[LaneGroup, LocalRounds] = {}
    for kind, plain in ((LocalRounds, True), (ClientRounds, False)):
        if some := [group for group in local if group.is_plain == plain]:
            rounds |= dict.fromkeys(some, kind(context, some))
    minibatch = None
    if any(
        group not in rounds or (1 in problem.schedule.gaps and group.is_plain) for group in groups
    ):
        minibatch = MinibatchRounds(context)
    yield [snapshot for group in groups for snapshot in group.snapshots(0)]
    for this_round in problem.schedule:
        r, t, gap = this_round
        draws = context.draws(this_round)
        for group in groups:
            group.enter_round(r)
        # A diverging lane overflows on its way out; that is reported as its status.
        with np.errstate(over="ignore", invalid="ignore"):
            broadcast = {group: group.state.copy() for group in groups if group.serves}
            in_batch = [g for g in groups if g.minibatch or (gap == 1 and g.is_plain)]
            if in_batch and minibatch:
                minibatch.round(in_batch, draws)
            for group in groups:
                if group not in in_batch:
                    rounds[group].round(group, draws)
            this = RoundInfo(number=r, share=federation.share(r) if broadcast else 1.0)
            for group, sequences in broadcast.items():
                group.serve(sequences, this)
            step = t + gap
            snapshots = [snapshot for group in groups for snapshot in group.drop_diverged(step)]
        groups = [group for group in groups if group.lanes]
        if step in problem.records:
            snapshots += [snapshot for group in groups for snapshot in group.snapshots(step)]
        if snapshots:
            yield snapshots


def _run_interruptibly(work: Callable[[], object], on_compile: Callable[[], object]) -> None:
    """Run work that may compile, in another thread, and wait for it.

    Compiling spends seconds inside LLVM, where no Python signal handler runs. The calling thread
    only waits, so Ctrl-C ends this call at once; the other thread finishes what it compiles.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with compilation(on_compile):
                work()
        except BaseException as error:
            errors.append(error)

    compiler = threading.Thread(target=run, daemon=True, name="fedac-compiler")
    compiler.start()
    try:
        compiler.join()
    except KeyboardInterrupt:
        atexit.register(_exit_at_once, compiler)
        raise
    if errors:
        raise errors[0]


def _exit_at_once(compiler: threading.Thread) -> None:
    """End the process if the interrupted compiler is still inside LLVM.

    An ordinary exit would destroy LLVM's data while it is in use, and crash.
    """
    if compiler.is_alive():
        atexit.unregister(_exit_at_once)
        atexit._run_exitfuncs()  # of other modules
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed
                stream.flush()
        os._exit(130)
