# SPDX-License-Identifier: Apache-2.0
"""The fast engine: first a warm-up that compiles, then the rounds.

The package's docstring (`__init__.py`) explains how the parts fit together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial

import numpy as np
from numba import get_num_threads
from threadpoolctl import ThreadpoolController

from fedac.algorithms import RoundInfo
from fedac.cluster import connect
from fedac.errors import InputError
from fedac.federation.compression import FLOAT32
from fedac.federation.federation import Round, Update
from fedac.federation.schedule import Schedule
from fedac.simulation.engines.linear.client_rounds import ClientRounds
from fedac.simulation.engines.linear.coefficients import (
    affine_form,
    client_form,
    for_lengths,
)
from fedac.simulation.engines.linear.history import StaleRounds
from fedac.simulation.engines.linear.kernels.interface import Rows, compile_interruptibly
from fedac.simulation.engines.linear.model import (
    compile_losses,
    losses,
    prepare,
    records_at_once,
    split,
)
from fedac.simulation.engines.linear.rounds import (
    LaneGroup,
    LocalRounds,
    MinibatchRounds,
    make_groups,
)
from fedac.simulation.engines.linear.workers import Context, Threads
from fedac.simulation.problem import Problem, Snapshot


def refuse(problem: Problem) -> str | None:
    """Reject all but linear models and algorithms that are linear in state and gradient."""
    if problem.on and problem.timeline is not None:
        return f"on='{problem.on}' has no clock: omit mode, availability and oversample"
    try:
        split(problem.objective)
        for lane in problem.lanes:
            affine_form(lane)
            client_form(lane, problem.schedule.K)
            name, lengths = lane.algorithm.name, problem.lengths
            differ = lengths and not lane.algorithm.minibatch
            if differ and for_lengths(partial(client_form, lane), lengths) is None:
                return (
                    f"'{name}' leaves a round with coefficients that are not of the form A + B/K, "
                    "so clients cannot take different numbers of steps in the fast engine"
                )
            if "gradient" in lane.algorithm.asks and problem.wire != FLOAT32:
                return f"'{name}' with rounded messages needs the full gradient of each client"
    except InputError as reason:
        return str(reason)
    return None


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run all lanes together, on this machine or on all nodes of a Ray cluster."""
    with ExitStack() as stack:
        actors = None
        if problem.on is not None:
            from fedac.simulation.engines.ray import ActorPool, nodes_with_cores

            stack.enter_context(connect())
            actors = stack.enter_context(ActorPool(problem, nodes_with_cores()))
        context = make_context(problem)
        stack.enter_context(one_blas_thread(context.rows))
        compile_interruptibly(lambda: warm_up(context), problem.on_compile)
        if actors:
            actors.wait_until_warm()
        threads = stack.enter_context(Threads(problem.threads or get_num_threads()))
        context = replace(context, threads=threads, actors=actors)
        yield []  # compilation is over
        yield from _evaluated(context)


def _evaluated(context: Context) -> Generator[list[Snapshot]]:
    """Yield the records of all rounds with their losses, several records evaluated together."""
    waiting: list[list[Snapshot]] = []
    most = records_at_once(context)
    try:
        for snapshots in _rounds(context, _updates(context.problem)):
            waiting.append(snapshots)
            if len(waiting) == most:
                together, waiting = waiting, []
                yield from _with_losses(context, together)
    except KeyboardInterrupt:
        yield from _with_losses(context, waiting)
        raise
    yield from _with_losses(context, waiting)


def _with_losses(context: Context, records: list[list[Snapshot]]) -> list[list[Snapshot]]:
    """Return records with the losses of all lanes that have not diverged."""
    lanes = context.problem.lanes
    outputs = [
        lanes[s.lane].output(s.state, s.step) for each in records for s in each if not s.diverged
    ]
    with np.errstate(over="ignore", invalid="ignore"):
        found = iter(losses(context, np.stack(outputs)).tolist() if outputs else ())
    return [
        [s for s in each if s.diverged]
        + [Snapshot(s.lane, s.step, s.state, loss=next(found)) for s in each if not s.diverged]
        for each in records
    ]


@cache  # finding the libraries takes milliseconds
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread(rows: Rows) -> AbstractContextManager[object]:
    """Return a context in which a task's matrix products get one thread.

    More would compete with the other tasks, and change the order of sums. Use it for a whole run:
    switching costs more than the products.
    """
    return _blas().limit(limits=1, user_api="blas") if rows.dense else nullcontext()


def make_context(problem: Problem) -> Context:
    """Arrange the data of a problem as the kernels need it."""
    model, regularizer = split(problem.objective)
    ordered, federation = model, problem.federation
    if federation.clients is not None:
        # A client's rows next to each other: near in memory, and known by their bounds.
        order = federation.clients.rows
        ordered = model.derived(X=model.X[order], y=model.y[order], weights=None)
    rows = exact_rows = prepare(ordered, regularizer, np.float64)
    local = any(_takes_local_steps(group, problem) for group in make_groups(problem))
    if local and problem.precision != "float64":
        rows = prepare(ordered, regularizer, problem.precision)
    return Context(problem, federation, model, regularizer, rows, exact_rows, Threads(1))


def warm_up(context: Context) -> None:
    """Compile the kernels before the clock starts: one worker takes a round of every length."""
    problem = context.problem
    small = replace(
        problem,
        federation=replace(problem.federation, count=1),
        on_progress=lambda queries: None,
    )
    updates = map(small.federation.update, Schedule(problem.gaps))
    for _ in _rounds(replace(context, problem=small), updates):
        pass
    compile_losses(context)


def _takes_local_steps(group: LaneGroup, problem: Problem) -> bool:
    """Return whether workers run any round of a group, not only minibatches."""
    return not group.minibatch and (max(problem.gaps) > 1 or not group.is_plain)


def _kind_of_rounds(group: LaneGroup) -> type[LocalRounds]:
    """Return what takes a group through rounds of local steps."""
    if not group.sums_moves:
        return ClientRounds
    return LocalRounds if group.is_plain else StaleRounds


def _updates(problem: Problem) -> Iterable[Update | Round]:
    """Return the steps of the server."""
    if problem.timeline is not None:
        return problem.timeline.updates()
    return (Round(problem.federation, span) for span in problem.schedule)


def _rounds(context: Context, updates: Iterable[Update | Round]) -> Generator[list[Snapshot]]:
    """Take all lanes through steps of the server, and yield their states."""
    problem, federation = context.problem, context.problem.federation
    groups = make_groups(problem)
    local = {
        group: _kind_of_rounds(group)(context, group)
        for group in groups
        if _takes_local_steps(group, problem)
    }
    minibatch = None
    if any(
        group not in local or (1 in problem.gaps and group.is_plain) or group.asks_gradient
        for group in groups
    ):
        minibatch = MinibatchRounds(context)
    yield [snapshot for group in groups for snapshot in group.snapshots(0)]
    for update in updates:
        r, t, gap = update.span
        step = t + gap
        for group in groups:
            group.enter_round(r)
        # A diverging lane overflows on its way out; that is reported as its status.
        with np.errstate(over="ignore", invalid="ignore"):
            if update.taking_part:
                draws = context.draws(update)
                broadcast = {group: group.state.copy() for group in groups if group.serves}
                in_batch = [g for g in groups if g.minibatch or (draws.gap == 1 and g.is_plain)]
                if in_batch and minibatch:
                    minibatch.round(in_batch, draws)
                for group in groups:
                    if group not in in_batch:
                        local[group].round(draws, update, minibatch)
                this = RoundInfo(number=r)
                if broadcast:
                    members = update.members
                    steps = federation.weights(members) @ update.steps
                    this = replace(this, share=federation.share(members), steps=float(steps))
                for group, sequences in broadcast.items():
                    group.serve(sequences, this)
            snapshots = [snapshot for group in groups for snapshot in group.drop_diverged(step)]
        groups = [group for group in groups if group.lanes]
        if step in problem.records:
            snapshots += [snapshot for group in groups for snapshot in group.snapshots(step)]
        if snapshots:
            yield snapshots
