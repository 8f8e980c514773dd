"""The reference engine: the algorithms as printed, dense, float64, all clients side by side.

Tests compare the fast engine with it, and benchmarks measure speed against it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np

from fedac.algorithms import Algorithm, ClientWork, RoundInfo
from fedac.federation.compression import FLOAT32, keys_of, rounded
from fedac.federation.federation import Federation
from fedac.federation.round import compress, leave, serve, squared_moves
from fedac.federation.schedule import Span
from fedac.objectives.base import Objective, RowNumbers
from fedac.simulation.problem import ArrayState, Lane, Problem, Snapshot
from fedac.validate import Array

# Called with the step just taken and every worker's state, arrays of shape (M, d).
OnStep = Callable[[int, ArrayState], object]


def refuse(problem: Problem) -> str | None:
    """Run everything, on this machine."""
    return f"on='{problem.on}' needs the fast engine" if problem.on else None


def run(problem: Problem) -> Generator[list[Snapshot]]:
    """Run every lane from start to end, lane by lane."""
    federation = problem.federation
    for index, lane in enumerate(problem.lanes):
        state: ArrayState = lane.algorithm.start(problem.start)
        memory = Memory(lane.algorithm, federation.M, problem.objective.dim)
        yield [Snapshot(index, 0, state)]
        for this_round in problem.schedule:
            now = lane.at(this_round.number)
            state = run_round(
                problem.objective, now, state, federation, this_round, memory, wire=problem.wire
            )
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
    memory: Memory | None = None,
    on_step: OnStep | None = None,
    wire: str = FLOAT32,
) -> ArrayState:
    """Broadcast the sequences of `state`, let the members of the round take its steps, serve.

    This is a round as in `fedac.federation.round`; in the paper, an iteration of the outer loop of
    alg:fedac. An algorithm with memory needs `memory`.

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
    steps = federation.steps(members, this_round)
    work = federation.work(objective, members, this_round)

    def on_workers(vector: Array) -> Array:
        return np.broadcast_to(vector, (len(members), objective.dim))

    # A diverging lane overflows on its way out; that is reported as its status.
    with np.errstate(over="ignore", invalid="ignore"):
        if algorithm.minibatch:  # one step on the mean gradient of all samples of the round
            w_md = algorithm.query(state, hp)
            g: Array = np.zeros((len(members), objective.dim))
            for k in range(steps.max()):
                active = np.flatnonzero(steps > k)
                g[active] += work.gradients(on_workers(w_md)[active], active, k)
            mean_gradient = federation.mean(g / steps[:, None], members)
            next_state: ArrayState = algorithm.update(state, w_md, mean_gradient, hp)
            return next_state
        sequences, server = algorithm.split(state)
        sent = tuple(on_workers(sequence) for sequence in sequences)
        kept = () if memory is None else memory.load(members, sent)
        local = algorithm.enter(sent, kept, hp)
        if not federation.equal_steps:  # clients that are done keep their rows
            local = tuple(map(np.array, local))
        full = work.full_gradients(sent[0]) if "gradient" in algorithm.asks else None
        for k in range(steps.max()):
            active = np.flatnonzero(steps > k)
            if len(active) == len(members):
                w_md = algorithm.query(local, hp)
                local = algorithm.update(local, w_md, work.gradients(w_md, active, k), hp)
            else:
                some = tuple(vector[active] for vector in local)
                w_md = algorithm.query(some, hp)
                some = algorithm.update(some, w_md, work.gradients(w_md, active, k), hp)
                for vector, new in zip(local, some, strict=True):
                    vector[active] = new
            if on_step is not None:
                on_step(this_round.t + k + 1, local)
        taken = steps[0] if federation.equal_steps else steps[:, None]
        done = ClientWork(steps=taken, gradient=full)
        message, kept = leave(algorithm, local, sent, kept, hp, done)
        if wire != FLOAT32:

            def quantize(differences: Array, t: int) -> Array:
                keys = keys_of(federation.seed, members, this_round.number, t)
                return rounded(wire, differences, keys)

            message, kept = compress(algorithm, message, sent, kept, quantize)
        if memory is not None:
            memory.store(members, kept)
        mean = tuple(federation.mean(vector, members) for vector in message)
        this = RoundInfo(number=this_round.number, share=federation.share(this_round.number))
        if "steps" in algorithm.asks:
            this = replace(this, steps=float(federation.weights(members) @ steps))
        if "moves" in algorithm.asks:
            spread = federation.weights(members) @ squared_moves(algorithm, message, sent)
            moved = squared_moves(algorithm, mean, sequences)
            this = replace(this, spread=float(spread), moved=float(moved))
        sequences, server = serve(algorithm, mean, sequences, server, hp, this)
        return (*sequences, *server)


class Memory:
    """What every client keeps between its rounds."""

    def __init__(self, algorithm: Algorithm, M: int, dim: int) -> None:
        self._algorithm = algorithm
        self._kept = tuple(np.zeros((M, dim)) for _ in algorithm.memory)
        self._started = np.zeros(M, dtype=bool)

    def load(self, members: RowNumbers, sequences: ArrayState) -> ArrayState:
        """Return the memories of some clients; those without one yet begin it."""
        if self._kept:
            firsts = self._algorithm.begin_memory(sequences)
            new = ~self._started[members]
            for kept, first in zip(self._kept, firsts, strict=True):
                kept[members[new]] = first[new]
            self._started[members] = True
        return tuple(kept[members] for kept in self._kept)

    def store(self, members: RowNumbers, kept: ArrayState) -> None:
        """Replace the memories of some clients."""
        for mine, new in zip(self._kept, kept, strict=True):
            mine[members] = new
