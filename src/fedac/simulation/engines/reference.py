# SPDX-License-Identifier: Apache-2.0
"""The reference engine: the algorithms as printed, dense, float64, all clients side by side.

Tests compare the fast engine with it, and benchmarks measure speed against it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

import numpy as np

from fedac.algorithms import Algorithm, ClientWork, RoundInfo
from fedac.federation.compression import FLOAT32, keys_of, rounded
from fedac.federation.federation import Federation, Update
from fedac.federation.round import (
    arrive,
    compress,
    leave,
    serve,
    squared_moves,
    staleness_scale,
)
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
        history = {0: lane.algorithm.split(state)[0]}
        yield [Snapshot(index, 0, state)]
        for update in problem.updates():
            this_round = update.span
            now = lane.at(this_round.number)
            if len(update.members):
                state = run_update(
                    problem.objective, now, state, federation, update, memory,
                    wire=problem.wire, history=history, lane_of=lane.at,
                )  # fmt: skip
            problem.on_progress(federation.queries_of(update))
            step = this_round.t + this_round.gap
            if now.diverged(state, step):
                yield [Snapshot(index, step, state, diverged=True)]
                break
            history = problem.keep_versions(history, this_round.number + 1)
            history[this_round.number + 1] = lane.algorithm.split(state)[0]
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
    update = federation.update(this_round)
    return run_update(objective, lane, state, federation, update, memory, on_step, wire)


def run_update(
    objective: Objective,
    lane: Lane,
    state: ArrayState,
    federation: Federation,
    update: Update,
    memory: Memory | None = None,
    on_step: OnStep | None = None,
    wire: str = FLOAT32,
    *,
    history: Mapping[int, ArrayState] | None = None,
    lane_of: Callable[[int], Lane] | None = None,
) -> ArrayState:
    """Take a step of the server with the messages of clients that started from any version.

    `history` has the sequences of these versions, `lane_of` the lanes of their rounds.
    """
    algorithm, hp, members = lane.algorithm, lane.hp, update.members
    stale = update.staleness

    # A diverging lane overflows on its way out; that is reported as its status.
    with np.errstate(over="ignore", invalid="ignore"):
        if algorithm.minibatch:  # one step on the mean gradient of all samples of the round
            work, steps = federation.work(objective, update), update.steps
            w_md = algorithm.query(state, hp)
            W = np.broadcast_to(w_md, (len(members), objective.dim))
            g: Array = np.zeros((len(members), objective.dim))
            for k in range(steps.max()):
                active = np.flatnonzero(steps > k)
                g[active] += work.gradients(W[active], active, k)
            mean_gradient = federation.mean(g / steps[:, None], members)
            next_state: ArrayState = algorithm.update(state, w_md, mean_gradient, hp)
            return next_state
        sequences, server = algorithm.split(state)
        versions = history if history is not None else {update.span.number: sequences}
        sent = tuple(
            np.stack([versions[v][s] for v in update.versions.tolist()])
            for s in range(len(sequences))
        )
        message = tuple(np.empty_like(sent[0]) for _ in algorithm.sent)
        decays = lane.eta is not None and bool(stale.any())
        for some in update.passes(by_version=decays):
            version = int(update.versions[some[0]])
            then = lane_of(version) if decays and lane_of is not None else lane
            own = tuple(each[some] for each in sent)
            part = _messages(
                objective, then, own, federation, update.part(some), memory, on_step, wire
            )
            for whole, vector in zip(message, part, strict=True):
                whole[some] = vector
        if stale.any():
            scale = staleness_scale(stale[:, None].astype(np.float64))
            message = arrive(algorithm, message, sent, sequences, scale)
            sent = tuple(np.broadcast_to(each, sent[0].shape) for each in sequences)
        mean = tuple(federation.mean(vector, members) for vector in message)
        this = RoundInfo(number=update.span.number, share=federation.share(members))
        weights = federation.weights(members)
        if "steps" in algorithm.asks:
            this = replace(this, steps=float(weights @ update.steps))
        if "moves" in algorithm.asks:
            spread = weights @ squared_moves(algorithm, message, sent)
            moved = squared_moves(algorithm, mean, sequences)
            this = replace(this, spread=float(spread), moved=float(moved))
        sequences, server = serve(algorithm, mean, sequences, server, hp, this)
        return (*sequences, *server)


def _messages(
    objective: Objective,
    lane: Lane,
    sent: ArrayState,
    federation: Federation,
    update: Update,
    memory: Memory | None,
    on_step: OnStep | None,
    wire: str,
) -> ArrayState:
    """Return the messages of some clients, a row each, that received `sent`."""
    algorithm, hp, members, steps = lane.algorithm, lane.hp, update.members, update.steps
    work = federation.work(objective, update)
    kept = () if memory is None else memory.load(members, sent)
    local = algorithm.enter(sent, kept, hp)
    if not update.equal_steps:  # clients that are done keep their rows
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
            on_step(update.span.t + k + 1, local)
    taken = steps[0] if update.equal_steps else steps[:, None]
    done = ClientWork(steps=taken, gradient=full)
    message, kept = leave(algorithm, local, sent, kept, hp, done)
    if wire != FLOAT32:

        def quantize(differences: Array, t: int) -> Array:
            keys = keys_of(federation.seed, members, update.draws.number, t)
            return rounded(wire, differences, keys)

        message, kept = compress(algorithm, message, sent, kept, quantize)
    if memory is not None:
        memory.store(members, kept)
    return message


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
