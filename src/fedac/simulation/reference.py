"""The reference engine: the algorithms as printed, dense, float64, all clients side by side.

Tests compare the fast engine with it, and benchmarks measure speed against it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from fedac.arrays import Array
from fedac.objectives.base import Objective
from fedac.simulation.federation import Federation
from fedac.simulation.problem import ArrayState, Lane, Problem, Snapshot
from fedac.simulation.schedule import Span

# Called with the step just taken and every worker's state, arrays of shape (M, d).
OnStep = Callable[[int, ArrayState], object]


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run every lane from start to end, one after the other."""
    federation = problem.federation
    for index, lane in enumerate(problem.lanes):
        state: ArrayState = lane.algorithm.start(problem.start)
        yield [Snapshot(index, 0, state)]
        for this_round in problem.schedule:
            now = lane.at(this_round.number)
            state = run_round(problem.objective, now, state, federation, this_round)
            problem.on_progress(federation.queries(this_round))
            step = this_round.t + this_round.gap
            if now.diverged(state, step):
                yield [Snapshot(index, step, state, diverged=True)]
                break
            if step in problem.records:
                yield [Snapshot(index, step, state)]


def run_round(
    objective: Objective,
    lane: Lane,
    state: ArrayState,
    federation: Federation,
    this_round: Span,
    on_step: OnStep | None = None,
) -> ArrayState:
    """Broadcast `state`, let the members of the round take its steps, average (alg:fedac).

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> from fedac.objectives import NoisyQuadratic
    >>> lane = Lane(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=2))
    >>> F, start = NoisyQuadratic([1.0]), (np.array([8.0]),)
    >>> run_round(F, lane, start, Federation(M=3, n=F.n_samples, seed=0), Span(0, t=0, gap=2))
    (array([2.]),)
    """
    algorithm, hp = lane.algorithm, lane.hp
    members = federation.members(this_round.number)
    steps = range(this_round.t, this_round.t + this_round.gap)

    def on_workers(vector: Array) -> Array:
        return np.broadcast_to(vector, (len(members), objective.dim))

    # A diverging lane overflows on its way out; that is reported as its status.
    with np.errstate(over="ignore", invalid="ignore"):
        if algorithm.minibatch:  # one step on the mean gradient of all samples of the round
            w_md = algorithm.query(state, hp)
            g: Array = np.zeros(objective.dim)
            for step in steps:
                found = federation.gradients(objective, on_workers(w_md), members, step)
                g += federation.mean(found, members)
            next_state: ArrayState = algorithm.update(state, w_md, g / len(steps), hp)
            return next_state
        local = tuple(on_workers(sequence) for sequence in state)
        for step in steps:
            w_md = algorithm.query(local, hp)
            found = federation.gradients(objective, w_md, members, step)
            local = algorithm.update(local, w_md, found, hp)
            if on_step is not None:
                on_step(step + 1, local)
        return tuple(federation.mean(sequence, members) for sequence in local)
