"""`simulate`, the public call: many workers, one or many algorithms and step sizes."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms import Algorithm
from fedac.algorithms import get as get_algorithm
from fedac.engine import reference
from fedac.engine.problem import DIVERGED, ArrayState, Lane, Problem, Snapshot
from fedac.engine.result import BYTES_PER_NUMBER, Result, Run
from fedac.engine.schedule import Schedule
from fedac.errors import InputError, StepSizeWarning, unknown_name
from fedac.objectives import Objective, Optimum, optimum
from fedac.objectives.base import Array, as_numbers
from fedac.require import require_count, require_positive
from fedac.theory.potentials import phi, psi

# Some more than there are cores do no harm; each costs memory, and thousands are a typing error.
THREADS_PER_CORE = 16


@dataclass(frozen=True, slots=True)
class Record:
    """What a callback is told at every record."""

    algorithm: str
    eta: float
    step: int
    loss: float
    state: ArrayState


class Interrupted(KeyboardInterrupt):
    """The user stopped a simulation; `result` holds the runs recorded until then."""

    def __init__(self, result: Result) -> None:
        super().__init__("simulation interrupted")
        self.result = result


def simulate(
    objective: Objective,
    algorithm: str | Algorithm | Sequence[str | Algorithm],
    *,
    M: int,
    K: int | Schedule,
    T: int | None = None,
    eta: float | Sequence[float],
    mu: float | None = None,
    start: npt.ArrayLike | None = None,
    seed: int = 0,
    record_every: int | None = None,
    noise: bool = False,
    potentials: bool = False,
    callbacks: Sequence[Callable[[Record], object]] = (),
    engine: str | None = None,
    precision: str = "float32",
    threads: int | None = None,
    on_progress: Callable[[int], object] = lambda queries: None,
) -> Result:
    """Simulate M workers that synchronize every K steps, for T steps.

    Every algorithm is run with every step size, all on the same draws.

    Parameters
    ----------
    objective : Objective
        What is minimized.
    algorithm : str, Algorithm, or several
        Names as in ``fedac.algorithms.ALGORITHMS``, or records of your own.
    M : int
        Workers.
    K : int or Schedule
        Local steps per round; a `Schedule` gives irregular rounds and T.
    T : int
        Steps per worker; K must divide it.
    eta : float or several
        Step sizes. Beyond 1/L, which the theory does not cover, one warning is given.
    mu : float, optional
        Strong-convexity estimate for the coupling; the objective's own unless given.
    start : array, optional
        w_0; ``RandomState(1).randn(d)``, that of the published runs, unless given.
    seed : int
        Of the draws.
    record_every : int, optional
        Record the loss at the first synchronization after every so many steps, and always at
        0 and T. By default about eight times along the run.
    noise : bool
        Also record sigma^2 at the output.
    potentials : bool
        Also record Psi and Phi (two-sequence algorithms).
    callbacks : sequence of callables
        Each is called with a `Record` at every record.
    engine : "fast" or "reference", optional
        The fast engine unless the objective or an algorithm needs the reference engine.
    precision : "float32" or "float64"
        Of the workers' local states in the fast engine; averages are always float64.
    threads : int, optional
        Of the fast engine, at most 16 per core; ``NUMBA_NUM_THREADS`` or all cores unless given.
        Results do not depend on it.
    on_progress : callable
        Called with the number of gradient queries just made.

    Returns
    -------
    Result
        With a `Run` per algorithm and step size, in the order given.

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> F = NoisyQuadratic([1.0, 0.1], sigma=0.1)
    >>> result = simulate(F, ["fedac-i", "fedavg"], M=16, K=8, T=64, eta=[0.1, 0.5], seed=1)
    >>> result.best.algorithm, result.best.eta
    ('fedac-i', 0.5)
    """
    schedule = _schedule(K, T)
    lanes = _lanes(objective, algorithm, eta, mu, schedule.K)
    if record_every is None:
        record_every = max(1, schedule.T // 8)
    before = 0.0
    queries = 0

    def count(made: int) -> None:
        nonlocal queries
        queries += made
        on_progress(made)

    problem = Problem(
        objective=objective,
        lanes=lanes,
        M=require_count("M (workers)", M),
        schedule=schedule,
        start=start_point(objective, start),
        seed=require_seed(seed),
        records=schedule.records(record_every),
        on_progress=count,
    )
    snapshots = _start_engine(problem, engine, precision, threads)
    recorders = [_Recorder(problem, lane, noise, potentials, mu, callbacks) for lane in lanes]

    def result(queries: int) -> Result:
        return Result(
            objective=objective,
            schedule=schedule,
            M=problem.M,
            seed=problem.seed,
            runs=tuple(recorder.run() for recorder in recorders if recorder.steps),
            gradient_queries=queries,
            seconds=time.perf_counter() - before if before else 0.0,
        )

    try:
        # Closed whatever happens, so that the engine's threads end with this call.
        with closing(snapshots):
            for together in snapshots:
                # Compilation is over when the first snapshot comes.
                before = before or time.perf_counter()
                _record(problem, together, recorders)
    except KeyboardInterrupt:
        raise Interrupted(result(queries)) from None
    return result(problem.M * schedule.T * len(lanes))


def _record(problem: Problem, together: list[Snapshot], recorders: list[_Recorder]) -> None:
    """Hand snapshots to the recorders of their lanes."""
    for snapshot in together:
        recorders[snapshot.lane].diverged = snapshot.diverged
    for snapshot in together:
        if snapshot.diverged:
            continue
        w = problem.lanes[snapshot.lane].output(snapshot.state, snapshot.step)
        loss = snapshot.loss
        if loss is None:
            with np.errstate(over="ignore", invalid="ignore"):
                loss = problem.objective.value(w)
        recorder = recorders[snapshot.lane]
        if np.isfinite(loss):
            recorder.add(snapshot, w, loss)
        elif snapshot.step == 0:
            raise InputError("the loss at the start point is not finite; use a smaller start or l2")
        else:
            recorder.diverged = True


@dataclass
class _Recorder:
    """Turns the snapshots of one lane into a `Run`."""

    problem: Problem
    lane: Lane
    with_noise: bool
    with_potentials: bool
    mu: float | None
    callbacks: Sequence[Callable[[Record], object]]
    steps: list[int] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=lambda: {"loss": []})
    state: ArrayState = ()
    diverged: bool = False

    def __post_init__(self) -> None:
        if self.with_noise:
            self.columns["noise"] = []
        if self.with_potentials and "w_ag" in self.lane.algorithm.sequences:
            self.columns |= {"psi": [], "phi": []}

    @cached_property
    def _optimum(self) -> Optimum:
        return optimum(self.problem.objective)

    def add(self, snapshot: Snapshot, w: Array, loss: float) -> None:
        """Record a snapshot with its output and loss."""
        objective = self.problem.objective
        row = {"loss": loss}
        if "noise" in self.columns:
            row["noise"] = objective.noise(w)
        if "psi" in self.columns:
            best = self._optimum
            named = dict(zip(self.lane.algorithm.sequences, snapshot.state, strict=True))
            mu = objective.strong_convexity if self.mu is None else self.mu
            for name, potential in (("psi", psi), ("phi", phi)):
                row[name] = potential(
                    suboptimality=loss - best.value, w=named["w"], w_star=best.w, mu=mu
                )
        # All or nothing: an interrupt must not leave columns of different lengths.
        self.steps.append(snapshot.step)
        self.state = snapshot.state
        for name, value in row.items():
            self.columns[name].append(value)
        record = Record(
            self.lane.algorithm.name, self.lane.hp.eta, snapshot.step, loss, snapshot.state
        )
        for callback in self.callbacks:
            callback(record)

    def run(self) -> Run:
        algorithm = self.lane.algorithm
        numbers = algorithm.vectors_per_round * self.problem.objective.dim
        return Run(
            algorithm=algorithm.name,
            label=algorithm.label,
            hyperparameters=self.lane.hp,
            status="diverged" if self.diverged else "ok",
            steps=np.array(self.steps),
            state=dict(zip(algorithm.sequences, self.state, strict=True)),
            w=self.lane.output(self.state, self.steps[-1]),
            megabytes_per_worker=numbers * BYTES_PER_NUMBER * self.problem.schedule.rounds / 1e6,
            **{name: np.array(column) for name, column in self.columns.items()},
        )


def _start_engine(
    problem: Problem, engine: str | None, precision: str, threads: int | None
) -> Generator[list[Snapshot]]:
    if engine not in (None, "fast", "reference"):
        raise unknown_name("engine", str(engine), ["fast", "reference"])
    if precision not in ("float32", "float64"):
        raise unknown_name("precision", str(precision), ["float32", "float64"])
    require_threads(threads)
    if engine == "reference":
        return reference.run(problem)
    from fedac.engine import fast

    try:
        fast.check(problem)
    except InputError:
        if engine == "fast":
            raise
        return reference.run(problem)
    from numba import get_num_threads

    return fast.run(problem, dtype=precision, threads=threads or get_num_threads())


def require_threads(threads: int | None) -> None:
    """Refuse a number of threads, or without one that of the environment, that cannot be meant.

    Examples
    --------
    >>> require_threads(10**6)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: threads must be at most ...: this machine has ..., got 1000000
    """
    name, asked = "threads", threads
    if asked is None:
        # Numba ignores what is no number, and fails with a traceback on what is below 1.
        name, text = "NUMBA_NUM_THREADS", os.environ.get("NUMBA_NUM_THREADS", "")
        try:
            asked = int(text)
        except ValueError:
            return
    require_count(name, asked)
    cores = os.cpu_count() or 1
    if asked > THREADS_PER_CORE * cores:
        raise InputError(
            f"{name} must be at most {THREADS_PER_CORE * cores}: this machine has {cores} "
            f"core{'s' if cores > 1 else ''}, got {asked}"
        )


def _schedule(K: int | Schedule, T: int | None) -> Schedule:
    if isinstance(K, Schedule):
        if T is not None and T != K.T:
            raise InputError(f"T={T} contradicts the schedule, which ends after {K.T} steps")
        return K
    if T is None:
        raise InputError("T (steps) is missing; only a Schedule as K makes it unnecessary")
    return Schedule.every(K, steps=T)


def _lanes(
    objective: Objective,
    algorithm: str | Algorithm | Sequence[str | Algorithm],
    eta: float | Sequence[float],
    mu: float | None,
    K: int,
) -> tuple[Lane, ...]:
    if not isinstance(algorithm, str | Algorithm | Iterable):
        raise InputError(f"algorithm must be a name, an Algorithm or several, got {algorithm!r}")
    names = [algorithm] if isinstance(algorithm, str | Algorithm) else list(algorithm)
    values: list[Any] = [eta] if np.ndim(eta) == 0 else list(eta)  # type: ignore[arg-type]
    if not names or not values:
        raise InputError("give at least one algorithm and at least one step size eta")
    etas = [require_positive("eta", value) for value in values]
    mu = objective.strong_convexity if mu is None else require_positive("mu", mu)
    algorithms = [get_algorithm(name) for name in names]
    lanes = tuple(Lane(a, a.couple(eta=value, mu=mu, K=K)) for a in algorithms for value in etas)
    _warn_beyond_theory(objective, etas)
    return lanes


def _warn_beyond_theory(objective: Objective, etas: Sequence[float]) -> None:
    L = objective.smoothness
    beyond = [eta for eta in etas if eta * L > 1 + 1e-12]
    if beyond:
        warnings.warn(
            f"{len(beyond)} of {len(etas)} step sizes exceed 1/L = {1 / L:.4g} (largest: "
            f"{max(beyond):g}); the theory covers eta <= 1/L only",
            StepSizeWarning,
            stacklevel=4,
        )


def start_point(objective: Objective, start: npt.ArrayLike | None) -> Array:
    """Return w_0, by default that of the published runs."""
    if start is None:
        return np.random.RandomState(1).randn(objective.dim)
    w_0 = as_numbers("start", start).copy()
    if w_0.shape != (objective.dim,) or np.abs(w_0).max(initial=0) > DIVERGED:
        raise InputError(
            f"start must be {objective.dim} numbers of size at most {DIVERGED:g}, got shape "
            f"{np.shape(start)} with sizes up to {np.abs(w_0).max(initial=0):g}"
        )
    return w_0


def require_seed(seed: int) -> int:
    """Return a seed if it is one, else say what is wrong."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < 2**64:
        raise InputError(f"seed must be a whole number from 0 to 2^64 - 1, got {seed!r}")
    return int(seed)
