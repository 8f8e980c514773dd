"""The recorder: turns the snapshots of an engine into runs, and calls the callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedac.errors import InputError
from fedac.federation.compression import bytes_down, bytes_up
from fedac.federation.costs import megabytes_sent
from fedac.objectives import HeldOut
from fedac.simulation.problem import ArrayState, Problem, Snapshot
from fedac.simulation.result import Run
from fedac.validate import Array


@dataclass(frozen=True, slots=True)
class Record:
    """The argument of a callback: one run at one recorded step."""

    run: int  # index in the runs of the result
    algorithm: str
    eta: float
    sequences: tuple[str, ...]  # names of the vectors in `state`
    step: int  # steps taken so far
    loss: float  # F of the output
    w: Array  # the output
    state: ArrayState  # sequences and server state


class Recorder:
    """Collects the traces of all lanes of a problem."""

    def __init__(
        self,
        problem: Problem,
        callbacks: Sequence[Callable[[Record], object]],
        test: HeldOut | None = None,
    ) -> None:
        self.problem = problem
        self.callbacks = callbacks
        self.test = test
        self._traces = [_Trace() for _ in problem.lanes]

    def add(self, snapshots: list[Snapshot]) -> None:
        """Record the snapshots of one synchronization."""
        for snapshot in snapshots:
            self._traces[snapshot.lane].diverged = snapshot.diverged
        for snapshot in snapshots:
            if not snapshot.diverged:
                self._add(snapshot)

    def _add(self, snapshot: Snapshot) -> None:
        lane, trace = self.problem.lanes[snapshot.lane], self._traces[snapshot.lane]
        w, loss = lane.output(snapshot.state, snapshot.step), snapshot.loss
        if loss is None:
            with np.errstate(over="ignore", invalid="ignore"):
                loss = self.problem.objective.value(w)
        if not np.isfinite(loss):
            if snapshot.step == 0:
                raise InputError(
                    "the loss at the start point is not finite; use a smaller start or l2"
                )
            trace.diverged = True
            return
        if self.test is not None:
            test_loss, test_accuracy = self.test.evaluate(w)
            trace.test_loss.append(test_loss)
            trace.test_accuracy.append(test_accuracy)
        # The loss comes last: an interrupt may leave a step without a loss, never the reverse.
        trace.steps.append(snapshot.step)
        trace.state = snapshot.state
        trace.losses.append(loss)
        record = Record(
            run=snapshot.lane,
            algorithm=lane.algorithm.name,
            eta=lane.hp.eta,
            sequences=lane.algorithm.state_names,
            step=snapshot.step,
            loss=loss,
            w=w,
            state=snapshot.state,
        )
        for callback in self.callbacks:
            callback(record)

    def runs(self) -> tuple[Run, ...]:
        """Return a run for every lane that has a record."""
        return tuple(self._run(i) for i, trace in enumerate(self._traces) if trace.steps)

    def _run(self, index: int) -> Run:
        lane, trace = self.problem.lanes[index], self._traces[index]
        algorithm, records = lane.algorithm, len(trace.losses)
        federation, dim = self.problem.federation, self.problem.objective.dim
        up = bytes_up(algorithm, dim, self.problem.wire)
        rounds, present = self.problem.schedule.rounds, federation.taking_part
        return Run(
            algorithm=algorithm.name,
            label=algorithm.label,
            hyperparameters=lane.hp,
            decay=lane.eta.by if lane.eta else None,
            status="diverged" if trace.diverged else "ok",
            steps=np.array(trace.steps[:records]),
            loss=np.array(trace.losses),
            test_loss=np.array(trace.test_loss[:records]),
            test_accuracy=np.array(trace.test_accuracy[:records]),
            state=dict(zip(algorithm.state_names, trace.state, strict=True)),
            w=lane.output(trace.state, trace.steps[-1]),
            megabytes_per_worker=megabytes_sent(up, rounds, present=present, M=federation.M),
            bytes_up=up,
            bytes_down=bytes_down(algorithm, dim),
            minibatch=algorithm.minibatch,
        )


@dataclass
class _Trace:
    """The records of one lane so far."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    state: ArrayState = ()
    diverged: bool = False
