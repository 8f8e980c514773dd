"""The reference engine: the algorithms as printed, dense, float64, all workers side by side.

Tests compare the fast engine with it, and benchmarks measure speed against it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from fedac.arrays import Array
from fedac.objectives.base import Objective
from fedac.sampling import sample_index
from fedac.simulation.problem import ArrayState, Lane, Problem, Snapshot

# Called with the step just taken and every worker's state, arrays of shape (M, d).
OnStep = Callable[[int, ArrayState], object]


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run every lane from start to end, one after the other."""
    for index, lane in enumerate(problem.lanes):
        state: ArrayState = lane.algorithm.start(problem.start)
        yield [Snapshot(index, 0, state)]
        for t, gap in problem.schedule:
            state = run_round(
                problem.objective, lane, state, t=t, gap=gap, M=problem.M, seed=problem.seed
            )
            problem.on_progress(problem.M * gap)
            step = t + gap
            if lane.diverged(state, step):
                yield [Snapshot(index, step, state, diverged=True)]
                break
            if step in problem.records:
                yield [Snapshot(index, step, state)]


def run_round(
    objective: Objective,
    lane: Lane,
    state: ArrayState,
    *,
    t: int,
    gap: int,
    M: int,
    seed: int,
    on_step: OnStep | None = None,
) -> ArrayState:
    """Broadcast `state` at step t, let M workers take `gap` steps, average (alg:fedac).

    Examples
    --------
    >>> from fedac.algorithms import FEDAVG
    >>> from fedac.objectives import NoisyQuadratic
    >>> lane = Lane(FEDAVG, FEDAVG.couple(eta=0.5, mu=1.0, K=2))
    >>> start = (np.array([8.0]),)
    >>> run_round(NoisyQuadratic([1.0]), lane, start, t=0, gap=2, M=3, seed=0)
    (array([2.]),)
    """
    # A diverging lane overflows on its way out; that is reported as its status.
    with np.errstate(over="ignore", invalid="ignore"):
        if lane.algorithm.minibatch:
            return _minibatch_step(objective, lane, state, t=t, gap=gap, M=M, seed=seed)
        algorithm, hp = lane.algorithm, lane.hp
        workers = np.arange(M)
        local = tuple(np.broadcast_to(sequence, (M, objective.dim)) for sequence in state)
        for step in range(t, t + gap):
            w_md = algorithm.query(local, hp)
            rows = sample_index(seed, workers, step, objective.n_samples)
            g = objective.stochastic_gradients(w_md, rows)
            local = algorithm.update(local, w_md, g, hp)
            if on_step is not None:
                on_step(step + 1, local)
        return tuple(sequence.mean(axis=0) for sequence in local)


def _minibatch_step(
    objective: Objective, lane: Lane, state: ArrayState, *, t: int, gap: int, M: int, seed: int
) -> ArrayState:
    """Take one step on the mean gradient of the M*gap samples of the round."""
    w_md = lane.algorithm.query(state, lane.hp)
    everywhere = np.broadcast_to(w_md, (M, objective.dim))
    workers = np.arange(M)
    g: Array = np.zeros(objective.dim)
    for step in range(t, t + gap):
        rows = sample_index(seed, workers, step, objective.n_samples)
        g += objective.stochastic_gradients(everywhere, rows).mean(axis=0)
    next_state: ArrayState = lane.algorithm.update(state, w_md, g / gap, lane.hp)
    return next_state
