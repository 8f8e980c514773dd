"""`simulate`, the public call: many workers, one or many algorithms and step sizes.

Checks its input, runs the problem on an engine, and collects the results. The engines are
`reference.py`, the algorithms as printed, and `_fast/`, up to 500 times as fast.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.algorithms import ALGORITHMS, Algorithm, checks, expand
from fedac.algorithms import get as get_algorithm
from fedac.algorithms.acceleration import not_accelerated
from fedac.algorithms.minibatch import on_clients
from fedac.data import Clients, Dataset
from fedac.errors import InputError, NotAcceleratedWarning, StepSizeWarning
from fedac.federation.compression import FLOAT32, require_wire
from fedac.federation.federation import make_federation
from fedac.federation.schedule import Decay, Schedule
from fedac.objectives import HeldOut, LinearModel, Objective
from fedac.objectives.heterogeneity import minimized
from fedac.simulation.engines import start_engine
from fedac.simulation.problem import Lane, Problem, require_seed, start_point
from fedac.simulation.recorder import Record, Recorder
from fedac.simulation.result import Result
from fedac.validate import Array, require_positive

StepSizes = float | Decay | Sequence[float | Decay]


class SimulationInterrupted(KeyboardInterrupt):
    """The user stopped a simulation; `result` holds the runs recorded until then."""

    def __init__(self, result: Result) -> None:
        super().__init__("simulation interrupted")
        self.result = result


def simulate(
    objective: Objective,
    algorithm: str | Algorithm | Sequence[str | Algorithm],
    *,
    M: int | None = None,
    K: int | Schedule,
    T: int | None = None,
    eta: StepSizes | Mapping[str, StepSizes],
    clients: Clients | npt.ArrayLike | None = None,
    participation: float = 1.0,
    batch: int | str = 1,
    weighting: str = "examples",
    wire: str = FLOAT32,
    mu: float | None = None,
    start: npt.ArrayLike | None = None,
    seed: int = 1,
    test: Dataset | tuple[Any, Any] | None = None,
    record_every: int | None = None,
    callbacks: Sequence[Callable[[Record], object]] = (),
    engine: str | None = None,
    precision: str = "float32",
    threads: int | None = None,
    on: str | None = None,
    on_progress: Callable[[int], object] = lambda queries: None,
    on_compile: Callable[[], object] = lambda: None,
) -> Result:
    """Simulate M workers, or clients with rows of their own, that synchronize every K steps.

    Every algorithm is run with every step size (or with its own), all on the same draws.

    Parameters
    ----------
    objective : Objective
        What is minimized.
    algorithm : str, Algorithm, or several
        Names such as "fedac-i" or "fedac-i+cv+nesterov(1,0.3)" (see docs/algorithms.md), or
        records of your own. Values separated by ``|``, as in "fedavg+nesterov(1,0.5|0.9)", stand
        for a run each.
    M : int
        Workers that all draw from all rows; left out where there are clients.
    K : int or Schedule
        Local steps per round; a `Schedule` gives irregular rounds and T.
    T : int
        Steps per worker; K must divide it.
    eta : float, Decay, or several; or a mapping
        Step sizes. Beyond 1/L, which the theory does not cover, one warning is given. A `Decay`
        falls over rounds. A mapping gives the step sizes of every algorithm by its name.
    clients : Clients or array, optional
        Who holds which rows (see `fedac.split`), or the name of every row's client. Each client
        then draws from its own rows only.
    participation : float
        Which share of the clients takes part in a round, rounded to whole clients, at least one;
        above 1, how many of them.
    batch : int or "full"
        Rows per local step, drawn with replacement. "full" takes the gradient of all rows of the
        client: then nothing is random if everybody takes part.
    weighting : "examples" or "uniform"
        How much clients count in the average: by their rows, and F is the loss over all rows; or
        all the same, and F is the mean of the clients' losses.
    wire : "float32" or "bfloat16" or "int8"
        How messages to the server travel (see `fedac.wire`). "float32" is not simulated: all
        digits arrive.
    mu : float, optional
        Strong-convexity estimate for the coupling; the objective's own unless given. Where
        eta mu K >= 1, FedAc is FedAvg, and one warning says so.
    start : array, optional
        w_0; ``RandomState(1).randn(d)``, that of the published runs, unless given.
    seed : int
        Of the draws.
    test : Dataset or (X, y), optional
        Rows to evaluate the output on at every record.
    record_every : int, optional
        Record the loss at the first synchronization after every so many steps, and always at
        0 and T. By default about eight times along the run.
    callbacks : sequence of callables
        Each is called with a `Record` at every record (see `fedac.theory.tracing`).
    engine : "fast" or "reference", optional
        The fast engine unless the objective or an algorithm needs the reference engine; a
        `SlowEngineWarning` then gives the reason.
    precision : "float32" or "float64"
        Of the workers' local states in the fast engine; averages are always float64.
    threads : int, optional
        Of the fast engine, at most 16 per core; ``NUMBA_NUM_THREADS`` or all cores unless given.
        Results do not depend on it.
    on : "ray", optional
        Share the workers of every round among all nodes of a Ray cluster: the one this process is
        connected to, or the one at ``RAY_ADDRESS``, or a Ray started on this machine. Every node
        uses all its cores, and keeps the memories of its own clients. The result is the same to
        the last bit; it comes sooner from about 2^22 local steps a round on. If a node is lost,
        `fedac.errors.NodeLostError` says so.
    on_progress : callable
        Called with the number of gradient queries just made.
    on_compile : callable
        Called if the fast engine has to compile kernels, when it starts to. That takes up to a
        minute; the compiled code is kept for later processes.

    Returns
    -------
    Result
        With a `Run` per algorithm and step size, in the order given.

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> F = NoisyQuadratic([1.0, 0.1], sigma=0.1)
    >>> result = simulate(F, ["fedac-i", "fedavg"], M=16, K=8, T=64, eta=[0.1, 0.5],
    ...                   engine="reference")
    >>> result.best.algorithm, result.best.eta
    ('fedac-i', 0.5)

    Two clients that hold different rows:

    >>> from fedac.objectives import LeastSquares
    >>> F = LeastSquares([[1.0], [1.0], [1.0]], [0.0, 0.0, 3.0])
    >>> result = simulate(F, "fedavg", clients=["a", "a", "b"], K=2, T=64, eta=0.5, batch="full",
    ...                   engine="reference")
    >>> result.M, float(result.best.w[0].round(6))
    (2, 1.0)
    """
    if not isinstance(objective, Objective):
        raise InputError(
            "the objective must be a loss on data, such as fedac.LogisticRegression(data.X, "
            f"data.y, l2=1e-3), got {type(objective).__name__}"
        )
    schedule = _schedule(K, T)
    federation = make_federation(
        objective, M=M, seed=require_seed(seed), clients=clients, participation=participation,
        batch=batch, weighting=weighting,
    )  # fmt: skip
    if wire != FLOAT32 and federation.batch is None and federation.clients is None:
        raise InputError(
            "with batch='full' all workers are one and the same, so their messages cannot differ "
            f"by rounding: give clients, or leave out wire='{wire}'"
        )
    objective = minimized(objective, federation.clients, federation.weighting)
    lanes = _lanes(objective, algorithm, eta, mu, schedule, require_wire(wire))
    for lane in lanes:
        lane.algorithm.require_all(some=federation.count is not None)
    if record_every is None:
        record_every = max(1, schedule.T // 8)
    started: float | None = None
    queries = 0

    def count(made: int) -> None:
        nonlocal queries
        queries += made
        on_progress(made)

    w_0 = start_point(objective, start)
    _check_own_algorithms(lanes, w_0)
    problem = Problem(
        objective=objective,
        lanes=lanes,
        federation=federation,
        schedule=schedule,
        start=w_0,
        records=schedule.records(record_every),
        on_progress=count,
        on_compile=on_compile,
        wire=wire,
        precision=precision,
        threads=threads,
        on=on,
    )
    chosen, snapshots = start_engine(problem, engine)
    recorder = Recorder(problem, callbacks, _test_rows(objective, test))

    def result(queries: int) -> Result:
        return Result(
            objective=objective,
            schedule=schedule,
            federation=federation,
            wire=wire,
            engine=chosen,
            runs=recorder.runs(),
            gradient_queries=queries,
            seconds=0.0 if started is None else time.perf_counter() - started,
        )

    try:
        # Closed in any case, so that the engine's threads end with this call.
        with closing(snapshots):
            for together in snapshots:
                if started is None:  # compilation is over when the first snapshot comes
                    started = time.perf_counter()
                recorder.add(together)
    except KeyboardInterrupt:
        raise SimulationInterrupted(result(queries)) from None
    return result(sum(map(federation.queries, schedule)) * len(lanes))


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
    eta: StepSizes | Mapping[str, StepSizes],
    mu: float | None,
    schedule: Schedule,
    wire: str,
) -> tuple[Lane, ...]:
    if not isinstance(algorithm, str | Algorithm | Iterable):
        raise InputError(f"algorithm must be a name, an Algorithm or several, got {algorithm!r}")
    given = [algorithm] if isinstance(algorithm, str | Algorithm) else list(algorithm)
    names = [one for name in given for one in (expand(name) if isinstance(name, str) else [name])]
    # A network has neither mu nor L.
    default: float = getattr(objective, "strong_convexity", 0.0)
    mu = default if mu is None else require_positive("mu", mu)
    algorithms = [get_algorithm(name) for name in names]
    of_each = {a.name: _step_sizes(eta, a) for a in algorithms}
    if not all(of_each.values()) or not of_each:
        raise InputError("give at least one algorithm and at least one step size eta")
    if wire != FLOAT32:
        algorithms = [on_clients(a) if a.minibatch else a for a in algorithms]
    K = schedule.K
    lanes = tuple(
        Lane(a, checks.couple(a, eta=value.start, mu=mu, K=K), value, mu, K)
        if isinstance(value, Decay)
        else Lane(a, checks.couple(a, eta=value, mu=mu, K=K))
        for a in algorithms
        for value in of_each[a.name]
    )
    for lane in lanes:
        if lane.eta is not None:
            checks.check_decay(lane.algorithm, eta=lane.eta.start, mu=mu, K=K)
    L: float = getattr(objective, "smoothness", 0.0)
    etas = list(dict.fromkeys(lane.hp.eta for lane in lanes))
    beyond = [value for value in etas if value * L > 1 + 1e-12]
    if beyond:
        warnings.warn(
            f"{len(beyond)} of {len(etas)} step sizes exceed 1/L = {1 / L:.4g} (largest: "
            f"{max(beyond):g}); the theory covers eta <= 1/L only",
            StepSizeWarning,
            stacklevel=3,
        )
    runs = ((lane.algorithm, lane.hp.eta) for lane in lanes)
    if text := not_accelerated(runs, mu=mu, K=K):
        warnings.warn(text, NotAcceleratedWarning, stacklevel=3)
    return lanes


def _step_sizes(
    eta: StepSizes | Mapping[str, StepSizes], algorithm: Algorithm
) -> list[float | Decay]:
    """Return the step sizes of an algorithm, checked."""
    if isinstance(eta, Mapping):
        if algorithm.name not in eta:
            raise InputError(
                f"eta has no step sizes for '{algorithm.name}', only for "
                f"{', '.join(map(str, eta)) or 'none'}"
            )
        eta = eta[algorithm.name]
    one = isinstance(eta, Decay) or np.ndim(eta) == 0  # type: ignore[arg-type]
    values: list[Any] = [eta] if one else list(eta)  # type: ignore[arg-type]
    return [v if isinstance(v, Decay) else require_positive("eta", v) for v in values]


def _test_rows(objective: Objective, test: Dataset | tuple[Any, Any] | None) -> HeldOut | None:
    """Return the test rows, in the columns of the objective."""
    if test is None:
        return None
    if not isinstance(objective, LinearModel):
        raise InputError(f"test needs a linear model, not {type(objective).__name__}")
    if not isinstance(test, Dataset) and not (isinstance(test, tuple) and len(test) == 2):
        raise InputError(f"test must be a Dataset or a pair (X, y), got {test!r:.60}")
    X, y = (test.X, test.y) if isinstance(test, Dataset) else test
    return HeldOut.of(objective, X, y)


def _check_own_algorithms(lanes: Sequence[Lane], w_0: Array) -> None:
    """Explain what is wrong with a user's record here, not by an error in the middle of a run."""
    own = {id(lane.algorithm): lane for lane in lanes}
    for lane in own.values():
        if lane.algorithm not in ALGORITHMS.values():
            # The reference engine calls `query` and `update` with a row per worker.
            checks.check_functions(
                lane.algorithm, lane.hp, w_0, lambda vector: np.stack([vector, vector])
            )
