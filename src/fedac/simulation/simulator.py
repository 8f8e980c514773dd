# SPDX-License-Identifier: Apache-2.0
"""`simulate`: check the keywords as a Spec, build a problem, run it on an engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from fedac.algorithms import ALGORITHMS, Algorithm, checks, expand
from fedac.algorithms import get as get_algorithm
from fedac.algorithms.minibatch import on_clients, takes_one_batch
from fedac.data import Clients, Dataset
from fedac.data.registry import load_with_test
from fedac.data.splits import as_clients
from fedac.errors import InputError, NotAcceleratedWarning, StepSizeWarning
from fedac.federation.availability import Availability
from fedac.federation.federation import Federation, make_federation, minimized
from fedac.federation.link import DEFAULT_LINK, Link, as_link
from fedac.federation.mode import Mode, require_oversample
from fedac.federation.schedule import Decay, Schedule
from fedac.federation.spec import FLOAT32, OptionSet, Spec
from fedac.federation.spec_checks import check_spec
from fedac.federation.timeline import Timeline, Work, make_timeline
from fedac.objectives import HeldOut, Objective
from fedac.objectives.linear_model import DataObjective
from fedac.objectives.losses import choose_loss, objective_of, targets_of
from fedac.simulation.engines import start_engine
from fedac.simulation.problem import Lane, Problem, Snapshot, start_point
from fedac.simulation.result import Record, Recorder, Result, traffic
from fedac.validate import Array, refuse_keywords, require_count, require_positive

# Problem, algorithms, step sizes and clients may be objects, which enter as they are.
OPTIONS = OptionSet(
    without=("dataset", "label", "standardize", "model", "backend", "loss", "l2", "intercept",
             "clients", "split", "client", "split_seed", "algorithm", "eta", "decay", "test",
             "test_clients", "link", "mode", "availability", "oversample", "target", "budget",
             "tries", "repeats"),
    names={"workers": "M", "local_steps": "K", "steps": "T"},
    # The command has these limits only to catch typos.
    overrides={name: {"most": None} for name in ("workers", "local_steps", "steps", "rounds")},
)  # fmt: skip
# Keywords of other libraries, and ours.
LOAD = "use fedac.load(data, target=..., standardize=...)"
MOMENTUM = "use a method that has it, such as 'fedavgm' or 'fedavg+nesterov(1,0.9)'"
INSTEAD = {
    "lr": "eta", "learning_rate": "eta", "step_size": "eta", "batch_size": "batch",
    "local_steps": "K", "steps": "T", "iterations": "T", "num_steps": "T", "n_rounds": "rounds",
    "num_rounds": "rounds", "workers": "M", "n_workers": "M", "num_workers": "M",
    "n_clients": "clients", "num_clients": "clients", "client": "clients", "split": "clients",
    "fraction_fit": "participation", "fraction": "participation", "weight_decay": "l2",
    "random_state": "seed", "methods": "algorithm", "optimizer": "algorithm",
    "label": LOAD, "target": LOAD, "standardize": LOAD, "momentum": MOMENTUM,
    "local_epochs": "epochs", "l1": "use the method 'dualavg(l1)'",
}  # fmt: skip
StepSizes = float | Decay | Sequence[float | Decay]


class SimulationInterrupted(KeyboardInterrupt):
    """The user stopped a simulation; `result` has the runs recorded so far."""

    def __init__(self, result: Result) -> None:
        super().__init__("simulation interrupted")
        self.result = result


def simulate(
    objective: Any,
    algorithm: str | Algorithm | Sequence[str | Algorithm],
    *,
    M: int | None = None,
    K: int | Schedule | Sequence[int] | None = None,
    epochs: int | None = None,
    T: int | None = None,
    rounds: int | None = None,
    eta: StepSizes | Mapping[str, StepSizes] | None = None,
    clients: Clients | npt.ArrayLike | str | None = None,
    participation: float = 1.0,
    batch: int | str = 1,
    weighting: str = "examples",
    wire: str = FLOAT32,
    mu: float | None = None,
    start: npt.ArrayLike | None = None,
    seed: int = 1,
    test: Any = None,
    test_clients: float | None = None,
    link: Link | str | None = None,
    mode: str = "rounds",
    availability: Any = "always",
    oversample: float = 1.0,
    loss: str | None = None,
    l2: float | None = None,
    intercept: bool = False,
    record_every: int | None = None,
    callbacks: Sequence[Callable[[Record], object]] = (),
    engine: str | None = None,
    precision: str = "float32",
    threads: int | None = None,
    backend: str | None = None,
    compile: bool = False,  # noqa: A002 - as in PyTorch
    device: str | None = None,
    checkpoint: str | Path | None = None,
    on: str | None = None,
    on_progress: Callable[[int], object] = lambda queries: None,
    on_compile: Callable[[], object] = lambda: None,
    **others: Never,
) -> Result:
    """Simulate M workers, or clients with their own data, that synchronize every K steps.

    Runs every algorithm with every step size (or its own step sizes), all on the same draws.

    Parameters
    ----------
    objective : Objective or data
        The function to minimize, such as a `Network`. Or anything that `fedac.load` takes: a
        `Dataset`, a table, a pair (X, y), a file, a name. Then the loss follows from the targets:
        two classes logistic, more softmax, numbers least-squares.
    algorithm : str, Algorithm, or several
        Names such as "fedac-i" or "fedac-i+cv+nesterov(1,0.3)" (see docs/algorithms.md), or your
        own `Algorithm`. Values separated by ``|``, as in "fedavg+nesterov(1,0.5|0.9)", make a run
        each.
    M : int
        Number of workers, who all draw from all rows; or of the clients of a split. Omit it if the
        clients are known.
    K : int, Schedule or sequence of int
        Local steps per round. A `Schedule` has irregular rounds and determines T. A sequence has
        the number of every client, and needs `rounds`.
    epochs : int
        Instead of K: passes of every client through its rows in a round, in an order that differs
        from epoch to epoch. A client with more rows takes more steps. If the numbers of steps
        differ, couplings such as FedAc's, records and T count their weighted mean, rounded up;
        what clients remember, such as control variates, is divided by their own number.
    T : int
        Steps per worker, a multiple of K.
    rounds : int
        Instead of T: the number of rounds.
    eta : float, Decay, or several; or a mapping
        Step sizes; those beyond 1/L, which the theory does not cover, raise one warning. A `Decay`
        decreases over rounds. A mapping has the step sizes of every algorithm, by name.
    clients : Clients, array, str or int, optional
        The rows of every client (see `fedac.split`), the name of every row's client, or where these
        names are: a column of a table, or a file with one name per line. Or a split such as
        "dirichlet(0.3)" among M clients, or the number of clients of an iid split. Clients draw
        only from their own rows. Default: the clients of the data, if it has any and M is omitted.
    participation : float
        Share of the clients in a round, rounded to whole clients; above 1, their number.
    batch : int or "full"
        Rows per local step, drawn with replacement. "full" uses all rows of the client: nothing is
        random then if all clients are present.
    weighting : "examples" or "uniform"
        Weights of the clients: by their rows, so that F is the loss over all rows; or uniform, so
        that F is the mean of the clients' losses.
    wire : "float32" or "bfloat16" or "int8"
        Format of messages to the server (see `fedac.wire`). "float32" does not round anything.
    mu : float, optional
        Strong-convexity estimate for the coupling. Default: the objective's own; a network has
        none, so FedAc needs it there, and it is tuned like a step size. If eta mu K >= 1,
        FedAc degenerates to FedAvg, with a warning.
    start : array, optional
        w_0. Default: ``RandomState(1).randn(d)``, as in the published runs; for a network its own
        parameters.
    seed : int
        Seed of the draws.
    test : Dataset or (X, y), optional
        Rows on which the output is evaluated at every record. With data instead of an objective
        also a share of the rows to hold out, such as 0.2, a file or a table.
    test_clients : float, optional
        With data: a share of the clients to hold out instead; they are not trained on.
    link : Link or str, optional
        The network between clients and server, and the speed of clients, such as "wan". With a link
        the result has a timeline, and with another mode the link decides whose messages count.
        Default: "wan" for all modes but "rounds".
    mode : str
        How the server waits: "rounds" for all clients of a round, "until(10s)" likewise, with as
        many local steps as each client takes in this time, "deadline(30s)" for those that reply in
        time, or "buffer(10)", asynchronously, for any ten messages. `rounds` counts steps of the
        server.
    availability : str or table
        When clients are available: "always", "share(0.1)" of the time, "diurnal(8, 24)", or rows of
        client, from and to in seconds. Work of a client that goes away is lost.
    oversample : float
        With a deadline: how many clients to start, relative to those wanted.
    loss : str, optional
        With data: the loss by name, as for ``fedac run --loss``.
    l2 : float, optional
        With data: regularization strength. Default: 0.001.
    intercept : bool
        With data: append a column of ones.
    record_every : int, optional
        Record the loss at the first synchronization after every N steps, and always at 0 and T.
        Default: about eight records.
    callbacks : sequence of callables
        Each is called with a `Record` at every record (see `fedac.theory.tracing`).
    engine : "fast", "network" or "reference", optional
        Default: the network engine for networks. Otherwise the fast engine, unless the objective or
        an algorithm needs the reference engine; then a `SlowEngineWarning` gives the reason.
    precision : "float32", "float64" or "bfloat16"
        Precision of local states; averages are always float64. "bfloat16": networks only, float32
        with bfloat16 autocast in the forward pass.
    threads : int, optional
        Threads, at most 16 per core. Default: ``NUMBA_NUM_THREADS``, else all cores. Results of the
        fast engine do not depend on it. Small networks use one thread in any case.
    backend : "batched" or "loop", optional
        How a network computes gradients: all clients at once, or one by one. Default: the faster,
        by timing a few steps; the result names it.
    compile : bool
        Compile the local steps of a network with `torch.compile`, which takes about half a minute
        and pays off in long runs of small networks.
    device : str, optional
        Of a network, such as "cuda" or "mps". Default: "cpu".
    checkpoint : path, optional
        Networks only: a file that is written every ten seconds or so and at the end. The same call
        with the same file continues where it stopped.
    on : "ray", optional
        Distribute the workers of every round over all nodes of a Ray cluster: the connected one,
        the one at ``RAY_ADDRESS``, or a Ray started on this machine. Every node uses all its cores
        and keeps the memories of its clients. Results are the same to the last bit; it pays off
        from about 2^22 local steps a round. A lost node raises `fedac.errors.NodeLostError`.
    on_progress : callable
        Called with the number of new gradient queries.
    on_compile : callable
        Called when the fast engine starts to compile kernels, which takes up to a minute; compiled
        code is cached on disk.

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

    The same from a table; the target is its last column:

    >>> import pandas as pd
    >>> table = pd.DataFrame({"x": 1.0, "city": ["a", "a", "b"], "y": [0.0, 0.5, 3.0]})
    >>> result = simulate(table, "fedavg", clients="city", K=2, rounds=32, eta=0.5, l2=0)
    >>> result.M, result.objective
    (2, LeastSquares(3 rows, 1 columns, l2=0))
    """
    refuse_keywords("simulate", others, INSTEAD)
    if eta is None or (K is None and epochs is None):
        raise InputError(f"{'eta' if eta is None else 'K'} is missing")
    if isinstance(objective, Objective):
        data = {"loss": loss, "l2": l2, "test_clients": test_clients}
        data |= {"intercept": True} if intercept else {}
        if unused := [name for name, value in data.items() if value is not None]:
            raise InputError(f"{unused[0]} needs data instead of an objective, which has its own")
        if clients is None and M is None:
            clients = getattr(objective, "clients", None)
        found = None if clients is None else as_clients(clients, objective, M)
        if precision == "bfloat16" and not objective.is_network:
            raise InputError("precision='bfloat16' is for networks; use float32 or float64")
        if test is not None and objective.is_network:
            objective = objective.tested_on(test)  # type: ignore[attr-defined]
    else:
        objective, found, test = _from_data(
            objective, loss, {"l2": Spec.l2 if l2 is None else l2, "intercept": intercept},
            {"clients": clients, "number": M, "test": test, "test_clients": test_clients},
        )  # fmt: skip
    of_networks = {
        "backend": backend,
        "device": device,
        "checkpoint": checkpoint,
        "compile": compile or None,
    }
    for name, value in of_networks.items():
        if value is not None and not objective.is_network:
            raise InputError(f"{name} is for networks (fedac.Network)")
    schedule = K if isinstance(K, Schedule) else None
    own_steps = K if schedule is None and np.ndim(K) > 0 else None  # type: ignore[arg-type]
    if schedule is not None and T not in (None, schedule.T):
        raise InputError(f"T={T} contradicts the schedule, which ends after {schedule.T} steps")
    if schedule is not None and rounds not in (None, schedule.rounds):
        raise InputError(f"rounds={rounds} contradicts the schedule, which has {schedule.rounds}")
    given: dict[str, Any] = {
        "M": M if found is None else None, "participation": participation, "batch": batch,
        "weighting": weighting, "wire": wire, "mu": mu, "seed": seed, "precision": precision,
    }  # fmt: skip
    if record_every is not None:
        given["record_every"] = record_every
    needed = ["workers"] if found is None else []
    if schedule is None:
        given |= {"K": K if own_steps is None else 1, "T": T, "rounds": rounds, "epochs": epochs}
        given = {name: v for name, v in given.items() if name != "K" or v is not None}
        needed += ["steps"] if rounds is None else []
    elif epochs is not None:
        raise InputError("epochs and a Schedule both give the steps of a round: use one")
    spec = check_spec(replace(OPTIONS, needed=tuple(needed)), given)
    federation = make_federation(objective, spec, found)
    if own_steps is not None:
        if rounds is None:
            raise InputError("K of every client needs rounds, the length of the run")
        federation = replace(federation, local_steps=_steps_of_clients(own_steps, federation.M))
    schedule = schedule or make_schedule(spec, federation)
    work = None
    present = Availability.parse(availability)
    if link is not None or (mode, oversample) != ("rounds", 1.0) or not present.is_always:
        require_oversample(oversample, [Mode.parse(mode)])
        work = Work(
            link=DEFAULT_LINK if link is None else as_link(link), mode=Mode.parse(mode),
            availability=present, oversample=oversample,
        )  # fmt: skip
    if record_every is None:
        spec = replace(spec, record_every=max(1, schedule.T // 8))
    problem = make_problem(
        spec, objective, federation, _pairs(algorithm, eta), schedule=schedule, start=start,
        on_progress=on_progress, on_compile=on_compile, threads=threads, on=on, backend=backend,
        compile=compile, device=device, checkpoint=None if checkpoint is None else Path(checkpoint),
        work=work,
    )  # fmt: skip
    warn_about(problem)
    return run_problem(problem, engine=engine, callbacks=callbacks, test=test)


def _from_data(
    source: Any, loss: str | None, model: dict[str, Any], who: dict[str, Any]
) -> tuple[Objective, Clients | None, Dataset | None]:
    """Return the objective of some data, its clients unless there are workers, and test rows."""
    workers = who["number"] is not None and who["clients"] is None
    if workers and who["test_clients"] is not None:
        raise InputError("test_clients needs clients, and M workers draw from all rows: omit M")
    data, test = load_with_test(source, **who)
    loss = choose_loss(data, loss)
    if test is not None:
        test = replace(test, y=targets_of(test, loss))
    return objective_of(data, loss, **model), None if workers else data.clients, test


def _steps_of_clients(K: Any, M: int) -> npt.NDArray[np.int64]:
    """Return the checked number of local steps of every client."""
    steps = [require_count("K (local steps)", one) for one in np.asarray(K, object).reshape(-1)]
    if np.ndim(K) > 1 or len(steps) != M:
        raise InputError(f"K has {len(steps)} numbers of steps for {M} clients: give one for each")
    if max(steps) >= 2**63:
        raise InputError(f"K (local steps) must be below 2^63, got {max(steps)}")
    return np.array(steps, np.int64)


def make_schedule(spec: Spec, federation: Federation) -> Schedule:
    """Return the schedule of a Spec; if clients' steps may differ, K is their mean."""
    if spec.epochs is None and federation.local_steps is None:
        return Schedule.every(spec.local_steps, steps=spec.length)
    K = federation.mean_steps
    return Schedule.every(K, steps=K * (spec.rounds or spec.length // K))


def make_problem(
    spec: Spec,
    objective: Objective,
    federation: Federation,
    pairs: Iterable[tuple[Algorithm, float | Decay]],
    *,
    schedule: Schedule | None = None,
    start: npt.ArrayLike | None = None,
    work: Work | None = None,
    **how: Any,
) -> Problem:
    """Build what an engine gets, with a lane for each pair of an algorithm and a step size.

    `how` are the fields of a `Problem` that do not belong to a Spec.
    """
    pairs, schedule = list(pairs), schedule or make_schedule(spec, federation)
    asynchronous = work is not None and work.is_asynchronous
    objective = minimized(objective, federation.clients, federation.weighting)
    # A network has neither mu nor L.
    own: float = getattr(objective, "strong_convexity", 0.0)
    mu = spec.mu or own
    if objective.is_network and not mu:
        _require_no_mu(pairs, schedule.K)
    messages = spec.wire != FLOAT32 or asynchronous
    pairs = [(on_clients(a) if messages and a.minibatch else a, eta) for a, eta in pairs]
    return Problem(
        objective=objective,
        lanes=tuple(_lane(federation, *pair, mu=mu, K=schedule.K) for pair in pairs),
        federation=federation,
        schedule=schedule,
        start=start_point(objective, start, spec.seed),
        records=schedule.records(spec.record_every),
        wire=spec.wire,
        precision=spec.precision,
        mu=mu,
        work=work,
        **how,
    )


def _require_no_mu(pairs: Sequence[tuple[Algorithm, float | Decay]], K: int) -> None:
    """Raise InputError if an algorithm needs mu, which a network does not have."""
    for algorithm, step_size in pairs:
        eta = step_size.start if isinstance(step_size, Decay) else step_size
        if checks.needs_mu(algorithm, eta=eta, K=K):
            raise InputError(
                f"{algorithm.name} needs mu on a network: tune it like eta, from "
                f"0.1/(eta K) = {0.1 / (eta * K):.2g} on"
            )


def _lane(
    federation: Federation, algorithm: Algorithm, eta: float | Decay, *, mu: float, K: int
) -> Lane:
    first = eta.start if isinstance(eta, Decay) else eta
    hp = checks.couple(algorithm, eta=first, mu=mu, K=K)
    if not federation.equal_steps:
        checks.require_equal_steps(algorithm, hp)
    if hasattr(hp, "K"):
        # It divides all clients' moves by this number: with one below half of a client's steps,
        # that client's control variate would overshoot.
        K = federation.most_steps or K
        hp = checks.couple(algorithm, eta=first, mu=mu, K=K)
    if not isinstance(eta, Decay):
        return Lane(algorithm, hp)
    checks.check_decay(algorithm, eta=first, mu=mu, K=K)
    return Lane(algorithm, hp, eta, mu, K)


def run_problem(
    problem: Problem,
    *,
    engine: str | None = None,
    callbacks: Sequence[Callable[[Record], object]] = (),
    test: Dataset | tuple[Any, Any] | None = None,
) -> Result:
    """Run a problem on an engine, and collect its runs."""
    started: float | None = None
    queries, on_progress = 0, problem.on_progress

    def count(made: int) -> None:
        nonlocal queries
        queries += made
        on_progress(made)

    for lane in problem.lanes:
        lane.algorithm.require_all(some=problem.federation.count is not None)
        if problem.work is not None:
            problem.work.require_method(lane.algorithm)
            if problem.work.mode.kind == "until":
                checks.require_equal_steps(lane.algorithm, lane.hp)
    _check_own_algorithms(problem.lanes, problem.start)
    problem = replace(problem, on_progress=count, live=bool(callbacks))
    parts = with_timelines(problem)
    chosen, settled, snapshots = _start_all(parts, engine)
    problem = replace(problem, backend=settled.backend, threads=settled.threads)
    recorder = Recorder(problem, callbacks, held_out(problem.objective, test))
    timelines = _timelines(problem, parts)

    def result(queries: int) -> Result:
        return Result(
            objective=problem.objective,
            schedule=problem.schedule,
            federation=problem.federation,
            wire=problem.wire,
            engine=chosen,
            backend=problem.backend,
            runs=recorder.runs(timelines),
            work=problem.work,
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
    return result(sum(part.queries * len(part.lanes) for _, part in parts))


Part = tuple[list[int], Problem]
"""Some lanes of a problem, as a problem of their own."""


def with_timelines(problem: Problem) -> list[Part]:
    """Split a problem into parts whose lanes have the same timeline, and compute it.

    In rounds of all clients times decide nothing, and one part has all lanes. Each part has its own
    checkpoint: run.ckpt, run.ckpt.1, and so on.
    """
    if problem.work is None or not problem.work.matters:
        return [([*range(len(problem.lanes))], problem)]
    together = _lanes_by_work(problem, problem.work)
    path = problem.checkpoint
    return [
        (
            lanes,
            replace(
                problem, lanes=tuple(problem.lanes[i] for i in lanes), work=work,
                timeline=make_timeline(problem.federation, problem.schedule, work),
                checkpoint=path.with_name(f"{path.name}.{i}") if path and i else path,
            ),
        )
        for i, (work, lanes) in enumerate(together.items())
    ]  # fmt: skip


def _lanes_by_work(problem: Problem, work: Work) -> dict[Work, list[int]]:
    """Return the lanes by their work: methods that send and compute as much have the same."""
    together: dict[Work, list[int]] = {}
    for index, lane in enumerate(problem.lanes):
        up, down = traffic(lane.algorithm, problem.objective, problem.wire)
        own = replace(
            work, up=up, down=down, minibatch=takes_one_batch(lane.algorithm),
            full_gradient="gradient" in lane.algorithm.asks,
        )  # fmt: skip
        together.setdefault(own, []).append(index)
    return together


def _timelines(problem: Problem, parts: list[Part]) -> dict[int, Timeline | None]:
    """Return the timeline of every lane, None without a link."""
    if problem.work is None or problem.work.matters:
        return {index: part.timeline for lanes, part in parts for index in lanes}
    found: dict[int, Timeline | None] = {}
    for work, lanes in _lanes_by_work(problem, problem.work).items():
        line = make_timeline(problem.federation, problem.schedule, work)
        found |= dict.fromkeys(lanes, line)
    return found


def _start_all(
    parts: list[Part], engine: str | None
) -> tuple[str, Problem, Generator[list[Snapshot]]]:
    """Start the engine of every part; their snapshots come one part after the other."""
    started = []
    backend = None  # the choice of the first part
    for lanes, part in parts:  # no comprehension, which would be a frame: warnings count them
        part = replace(part, backend=part.backend or backend)
        started.append((lanes, *start_engine(part, engine)))
        backend = started[-1][2].backend

    def snapshots() -> Generator[list[Snapshot]]:
        for lanes, _, _, found in started:
            with closing(found):
                for together in found:
                    yield [replace(one, lane=lanes[one.lane]) for one in together]

    _, chosen, settled, _ = started[0]
    return chosen, settled, snapshots()


def warn_about(problem: Problem) -> None:
    """Warn about step sizes beyond 1/L, and about FedAc that does not accelerate."""
    L: float = getattr(problem.objective, "smoothness", 0.0)
    etas = list(dict.fromkeys(lane.hp.eta for lane in problem.lanes))
    beyond = [value for value in etas if value * L > 1 + 1e-12]
    if beyond:
        warnings.warn(
            f"{len(beyond)} of {len(etas)} step sizes exceed 1/L = {1 / L:.4g} (largest: "
            f"{max(beyond):g}); the theory covers eta <= 1/L only",
            StepSizeWarning,
            stacklevel=3,
        )
    runs = ((lane.algorithm, lane.hp.eta) for lane in problem.lanes)
    if text := checks.not_accelerated(runs, mu=problem.mu, K=problem.schedule.K):
        warnings.warn(text, NotAcceleratedWarning, stacklevel=3)


def _pairs(
    algorithm: str | Algorithm | Sequence[str | Algorithm],
    eta: StepSizes | Mapping[str, StepSizes],
) -> list[tuple[Algorithm, float | Decay]]:
    """Return every algorithm with each of its step sizes."""
    if not isinstance(algorithm, str | Algorithm | Iterable):
        raise InputError(f"algorithm must be a name, an Algorithm or several, got {algorithm!r}")
    given = [algorithm] if isinstance(algorithm, str | Algorithm) else list(algorithm)
    names = [one for name in given for one in (expand(name) if isinstance(name, str) else [name])]
    algorithms = [get_algorithm(name) for name in names]
    if isinstance(eta, Mapping):  # names as they were typed
        typed = dict(zip(map(str, names), algorithms, strict=True))
        eta = {typed[name].name if name in typed else name: eta[name] for name in eta}
    of_each = {a.name: _step_sizes(eta, a) for a in algorithms}
    if not all(of_each.values()) or not of_each:
        raise InputError("give at least one algorithm and at least one step size eta")
    return [(a, value) for a in algorithms for value in of_each[a.name]]


def _step_sizes(
    eta: StepSizes | Mapping[str, StepSizes], algorithm: Algorithm
) -> list[float | Decay]:
    """Return the checked step sizes of an algorithm."""
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


def held_out(objective: Objective, test: Dataset | tuple[Any, Any] | None) -> HeldOut | None:
    """Return the test rows, in the columns of the objective."""
    if objective.is_network:  # has its own test rows
        objective.require_test()  # type: ignore[attr-defined]
        return None
    if test is None:
        return None
    if not isinstance(objective, DataObjective):
        raise InputError(f"test needs a linear model, not {type(objective).__name__}")
    if not isinstance(test, Dataset) and not (isinstance(test, tuple) and len(test) == 2):
        raise InputError(f"test must be a Dataset or a pair (X, y), got {test!r:.60}")
    if not isinstance(test, Dataset):
        return HeldOut.of(objective, *test)
    y = test.labels if objective.classes == test.classes else test.y
    return HeldOut.of(objective, test.X, y)


def _check_own_algorithms(lanes: Sequence[Lane], w_0: Array) -> None:
    """Check custom algorithms here, so that they do not fail in the middle of a run."""
    own = {id(lane.algorithm): lane for lane in lanes}
    for lane in own.values():
        if lane.algorithm not in ALGORITHMS.values():
            # The reference engine calls `query` and `update` with a row per worker.
            checks.check_functions(
                lane.algorithm, lane.hp, w_0, lambda vector: np.stack([vector, vector])
            )
