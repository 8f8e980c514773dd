"""The fast engine: all lanes at once, workers streamed, O(nonzeros) per local step.

Lanes with equally many sequences are packed side by side. A round of several local steps runs
through streamed workers (`local.py`); a round of one step, and every round of a minibatch
algorithm, is one gradient over the histogram of drawn rows (`batch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedac.engine.affine import affine
from fedac.engine.batch import BatchRounds
from fedac.engine.local import LocalRounds
from fedac.engine.pack import make_packs
from fedac.engine.problem import Problem, Snapshot
from fedac.engine.rows import prepare, split
from fedac.engine.schedule import Schedule
from fedac.engine.threads import Threads


def check(problem: Problem) -> None:
    """Refuse what only the reference engine can do, with the reason."""
    split(problem.objective)
    for lane in problem.lanes:
        affine(lane)


def run(problem: Problem, *, dtype: npt.DTypeLike, threads: int) -> Iterator[list[Snapshot]]:
    """Run all lanes side by side, round by round."""
    model, regularizer = split(problem.objective)
    gaps = set(problem.schedule.gaps)
    minibatch = [lane.algorithm.minibatch for lane in problem.lanes]
    exact_rows = local_rows = None
    if 1 in gaps or any(minibatch):
        exact_rows = prepare(model, regularizer, np.float64)
    if gaps != {1} and not all(minibatch):
        local_rows = prepare(model, regularizer, dtype)

    def play(problem: Problem, team: Threads) -> Iterator[list[Snapshot]]:
        batch = local = None
        if exact_rows is not None:
            batch = BatchRounds(problem, exact_rows, regularizer, team)
        if local_rows is not None:
            local = LocalRounds(problem, local_rows, regularizer, np.dtype(dtype), team)
        yield from _play(problem, batch, local)

    with Threads(threads) as team, np.errstate(over="ignore", invalid="ignore"):
        # A rehearsal with one worker and a round of every length compiles the kernels before
        # the first snapshot, with which the clock starts.
        rehearsal = replace(
            problem, M=1, schedule=Schedule(tuple(gaps)), on_progress=lambda queries: None
        )
        for _ in play(rehearsal, team):
            pass
        yield from play(problem, team)


def _play(
    problem: Problem, batch: BatchRounds | None, local: LocalRounds | None
) -> Iterator[list[Snapshot]]:
    packs = make_packs(problem)
    yield [snapshot for pack in packs for snapshot in pack.snapshots(0)]
    for t, gap in problem.schedule:
        in_batch = [pack for pack in packs if pack.minibatch or gap == 1]
        if batch is not None and in_batch:
            batch.round(in_batch, t, gap)
        for pack in packs:
            if local is not None and pack not in in_batch:
                local.round(pack, t, gap)
        step = t + gap
        snapshots = [snapshot for pack in packs for snapshot in pack.drop_diverged(step)]
        packs = [pack for pack in packs if pack.lanes]
        if step in problem.records:
            snapshots += [snapshot for pack in packs for snapshot in pack.snapshots(step)]
        if snapshots:
            yield snapshots
