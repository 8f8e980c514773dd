"""The fast engine: all lanes at once, workers streamed, O(nonzeros) per local step.

Lanes with equally many sequences are packed side by side. A round of several local steps runs
through streamed workers (`local.py`); a round of one step, and every round of a minibatch
algorithm, is one gradient over the histogram of drawn rows (`batch.py`).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from fedac.simulation._fast.affine import affine_form
from fedac.simulation._fast.batch import BatchRounds
from fedac.simulation._fast.evaluate import Evaluator
from fedac.simulation._fast.local import KnownTables, LocalRounds
from fedac.simulation._fast.pack import Pack, make_packs
from fedac.simulation._fast.rows import prepare, split
from fedac.simulation._fast.threads import Threads
from fedac.simulation.problem import Problem, Snapshot
from fedac.simulation.schedule import Schedule


@cache  # finding the libraries takes milliseconds
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def check(problem: Problem) -> None:
    """Refuse what only the reference engine can do, with the reason."""
    split(problem.objective)
    for lane in problem.lanes:
        affine_form(lane)


def run(problem: Problem, *, dtype: npt.DTypeLike, threads: int) -> Generator[list[Snapshot]]:
    """Run all lanes side by side, round by round."""
    model, regularizer = split(problem.objective)
    gaps = set(problem.schedule.gaps)
    minibatch = [lane.algorithm.minibatch for lane in problem.lanes]
    exact_rows = prepare(model, regularizer, np.float64)
    local_rows = None
    if gaps != {1} and not all(minibatch):
        local_rows = prepare(model, regularizer, dtype)
    # The rehearsal must take the way that the play takes, and may as well leave it its tables.
    crowd = problem.M
    tables: KnownTables = {}

    def play(problem: Problem) -> Generator[list[Snapshot]]:
        packs = make_packs(problem)
        batch = BatchRounds(problem, exact_rows, regularizer, team)
        local = None
        if local_rows is not None:
            locals_ = [pack for pack in packs if not pack.minibatch]
            local = LocalRounds(
                problem, local_rows, regularizer, np.dtype(dtype), team, locals_, tables, crowd
            )
        evaluator = Evaluator(model, exact_rows, regularizer, team)
        for snapshots in _play(problem, packs, batch, local):
            yield _evaluated(problem, snapshots, evaluator)

    # A task's matrix products get one thread: more would compete with the other tasks, and sum
    # in an order of their own. For the whole run: switching costs more than the products.
    limit = exact_rows.dense
    one_each = _blas().limit(limits=1, user_api="blas") if limit else nullcontext()
    with Threads(threads) as team, one_each:
        # A rehearsal with one worker and a round of every length compiles the kernels before
        # the first snapshot, with which the clock starts.
        rehearsal = replace(
            problem, M=1, schedule=Schedule(tuple(gaps)), on_progress=lambda queries: None
        )
        for _ in play(rehearsal):
            pass
        yield from play(problem)


def _play(
    problem: Problem, packs: list[Pack], batch: BatchRounds, local: LocalRounds | None
) -> Generator[list[Snapshot]]:
    yield [snapshot for pack in packs for snapshot in pack.snapshots(0)]
    for t, gap in problem.schedule:
        # A diverging lane overflows on its way out; that is reported as its status.
        with np.errstate(over="ignore", invalid="ignore"):
            in_batch = [pack for pack in packs if pack.minibatch or gap == 1]
            if in_batch:
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


def _evaluated(problem: Problem, snapshots: list[Snapshot], evaluator: Evaluator) -> list[Snapshot]:
    """Return the snapshots with the losses of their lanes' outputs."""
    alive = [snapshot for snapshot in snapshots if not snapshot.diverged]
    if not alive:
        return snapshots
    W = np.stack([problem.lanes[s.lane].output(s.state, s.step) for s in alive])
    with np.errstate(over="ignore", invalid="ignore"):
        losses = evaluator.losses(W)
    dropped = [snapshot for snapshot in snapshots if snapshot.diverged]
    told = [replace(s, loss=float(loss)) for s, loss in zip(alive, losses, strict=True)]
    return dropped + told
