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
    algorithm, hp, steps, workers = lane.algorithm, lane.hp, range(t, t + gap), np.arange(M)

    def on_workers(vector: Array) -> Array:
        return np.broadcast_to(vector, (M, objective.dim))

    def gradients(w_md: Array, step: int) -> Array:
        rows = sample_index(seed, workers, step, objective.n_samples)
        return objective.stochastic_gradients(w_md, rows)

    # A diverging lane overflows on its way out; that is reported as its status.
    with np.errstate(over="ignore", invalid="ignore"):
        if algorithm.minibatch:  # one step on the mean gradient of all samples of the round
            w_md = algorithm.query(state, hp)
            g: Array = np.zeros(objective.dim)
            for step in steps:
                g += gradients(on_workers(w_md), step).mean(axis=0)
            next_state: ArrayState = algorithm.update(state, w_md, g / gap, hp)
            return next_state
        local = tuple(on_workers(sequence) for sequence in state)
        for step in steps:
            w_md = algorithm.query(local, hp)
            local = algorithm.update(local, w_md, gradients(w_md, step), hp)
            if on_step is not None:
                on_step(step + 1, local)
        return tuple(sequence.mean(axis=0) for sequence in local)
