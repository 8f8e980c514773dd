# SPDX-License-Identifier: Apache-2.0
"""Speed of the fast engine, compared with the reference engine and with other tools.

Each line compares two ways of doing the same work. They take turns, after a warm-up, and the line
reports the medians of several repeats. Ratios carry over to other machines; seconds do not.

    python benchmarks/bench.py                      # everything, as a table (make bench)
    python benchmarks/bench.py --json > now.json    # for scripts/compare_benchmarks.py
    python benchmarks/bench.py --only clients       # lines whose name contains a word
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedac.algorithms import FEDAC_I
from fedac.cli.console import print_table
from fedac.data import dense, split, synthetic
from fedac.data import load as load_data
from fedac.errors import NotAcceleratedWarning, StepSizeWarning
from fedac.experiments import sweep
from fedac.experiments.grid import read_grid, shipped
from fedac.experiments.store import Store, describe_machine
from fedac.experiments.workload import prepare
from fedac.federation.sampling import sample_index
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

ETAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
M = 8192
K = 64
REPEATS = 5
Speed = Callable[[], float]  # measures and returns millions of steps per second


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison."""

    what: str
    ours: float
    theirs: float
    unit: str
    ratio: float  # ours over theirs, unless `what` says otherwise
    bar: float | None  # lower bound on the ratio, or upper bound with `at_most`
    at_most: bool = False

    @property
    def passed(self) -> bool:
        """Whether the ratio clears its bar."""
        if self.bar is None:
            return True
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


def run(only: str = "") -> Iterator[Line]:
    """Measure the lines whose name contains `only` and whose tools are installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)
        warnings.simplefilter("ignore", NotAcceleratedWarning)
        for name, measure in LINES.items():
            if only in name and NEEDS.get(name, lambda: True)():
                print(f"measuring: {name}", file=sys.stderr)
                yield measure(name)


def as_json(lines: list[Line]) -> str:
    rows = [asdict(line) | {"passed": line.passed} for line in lines]
    return json.dumps({"machine": describe_machine(), "repeats": REPEATS, "lines": rows})


def print_lines(lines: list[Line]) -> None:
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    rows = []
    for line in lines:
        bar = "" if line.bar is None else f"{'<=' if line.at_most else '>='} {line.bar:g}"
        row = {"what": line.what, "ours": f"{line.ours:.3g}", "other": f"{line.theirs:.3g}"}
        rows.append(row | {"unit": line.unit, "ratio": f"{line.ratio:.3g}", "bar": bar})
    missed = [number for number, line in enumerate(lines) if not line.passed]
    print_table(rows, words={"what", "unit"}, title=machine, bold=missed)


def _a9a() -> LogisticRegression:
    """Return the problem of figure 1."""
    data = load_data("a9a")
    return LogisticRegression(data.X, data.y, l2=1e-3)


def _rate(objective: LogisticRegression, algorithm: str = "fedac-i", **how: Any) -> float:
    """Return millions of simulated steps per second, counting every step size."""
    settings: dict[str, Any] = {"M": M, "K": K, "eta": 0.5, "record_every": 512, **how}
    result = simulate(objective, algorithm, **settings)
    return result.gradient_queries / result.seconds / 1e6


def _timed(steps: int, work: Callable[[], object]) -> Speed:
    """Return a function that measures the speed of `work`, which takes this many steps."""

    def speed() -> float:
        before = time.perf_counter()
        work()
        return steps / (time.perf_counter() - before) / 1e6

    return speed


def _compare(
    what: str,
    ours: Speed,
    theirs: Speed,
    bar: float | None,
    at_most: bool = False,
    unit: str = "M steps/s",
) -> Line:
    """Measure two speeds, taking turns, and compare their medians."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(REPEATS)]
    mine, other = (median(speeds) for speeds in zip(*pairs, strict=True))
    return Line(what, mine, other, unit, mine / other, bar, at_most)


def _memory_of_clients(what: str) -> Line:
    objective = _a9a()
    fast = partial(_rate, objective, "scaffold", M=1024, T=1024, eta=ETAS)
    reference = partial(_rate, objective, "scaffold", M=1024, T=64, engine="reference")
    return _compare(what, fast, reference, 100)


def _server_rule(what: str) -> Line:
    """Compare the time of a server rule with that of the plain mean."""
    mean, rule = (
        partial(_rate, _a9a(), f"fedavg{rule}", M=1024, T=8192, eta=ETAS, record_every=8192)
        for rule in ("", "+nesterov(1,0.9)")
    )
    return _compare(what, mean, rule, 1.05, at_most=True)


def _over_reference(bar: float, local_steps: int, etas: tuple[float, ...], what: str) -> Line:
    fast = partial(_rate, _a9a(), K=local_steps, T=max(local_steps, 1024), eta=etas)
    reference = partial(_rate, _a9a(), K=local_steps, T=max(local_steps, 32), engine="reference")
    return _compare(what, fast, reference, bar)


def _against_sklearn(what: str) -> Line:
    from sklearn.linear_model import SGDClassifier

    objective = _a9a()
    epochs = 10
    model = SGDClassifier(
        loss="log_loss", alpha=1e-3, fit_intercept=False, learning_rate="constant", eta0=0.01,
        max_iter=epochs, tol=None,
    )  # fmt: skip
    fit = partial(model.fit, objective.X, objective.y)
    ours = partial(_rate, objective, T=512, threads=1)
    return _compare(what, ours, _timed(epochs * objective.n_samples, fit), 2)


def _against_numpy_minibatch(what: str) -> Line:
    objective = _a9a()
    X, y, n = objective.X @ np.eye(objective.dim), objective.y, objective.n_samples
    rng = np.random.default_rng(0)
    w = rng.normal(size=objective.dim)

    def gradient() -> object:
        rows = rng.integers(0, n, M * K)
        x, labels = X[rows], y[rows]
        margins = labels * (x @ w)
        return x.T @ (-labels / (1 + np.exp(margins))) / (M * K) + objective.l2 * w

    ours = partial(_rate, objective, "mb-sgd", T=4096)
    return _compare(what, ours, _timed(M * K, gradient), 50)


def _dense(what: str) -> Line:
    data = dense(4000, 2000)
    objective = LogisticRegression(data.X, data.y, l2=1e-4)
    ours = partial(_rate, objective, M=256, T=512, eta=ETAS)
    reference = partial(_rate, objective, M=256, K=32, T=32, engine="reference")
    return _compare(what, ours, reference, 60)


def _threads(what: str) -> Line:
    two, one = (partial(_rate, _a9a(), T=2048, eta=ETAS, threads=count) for count in (2, 1))
    return _compare(what, two, one, 1.8)


def _clients(what: str) -> Line:
    """Compare clients that hold a few rows each with workers that draw from all rows."""
    objective = _a9a()
    theirs = partial(_rate, objective, T=1024, eta=ETAS)
    ours = partial(theirs, M=None, clients=split(objective, M, "dirichlet(1)"))
    return _compare(what, ours, theirs, 0.9)


def _participation(what: str) -> Line:
    """Compare the seconds of a run: a round must not touch absent clients."""
    data = synthetic(200_000)
    objective = LogisticRegression(data.X, data.y, l2=1e-3)
    clients = split(objective, 100_000, "dirichlet(1)")

    def seconds(participation: float) -> float:
        settings: dict[str, Any] = {"K": K, "T": 512, "eta": 0.5, "record_every": 512}
        settings |= {"clients": clients, "participation": participation}
        return simulate(objective, "fedac-i", **settings).seconds

    return _compare(what, partial(seconds, 0.1), partial(seconds, 1), 0.15, at_most=True, unit="s")


def _batches(what: str) -> Line:
    """Compare rows per second."""
    ours, theirs = (partial(_rate, _a9a(), T=512, eta=ETAS, batch=batch) for batch in (8, 1))
    return _compare(what, ours, theirs, 1)


def _columns(what: str) -> Line:
    def speed(columns: int) -> Speed:
        rows, nonzeros = 32_561, 14
        rng = np.random.default_rng(0)
        places = rng.integers(0, columns, size=rows * nonzeros)
        shape = (rows, columns)
        X = sp.csr_array((np.ones(len(places)), places, np.arange(rows + 1) * nonzeros), shape)
        y = rng.choice([-1.0, 1.0], size=rows)
        X.sum_duplicates()
        X.data[:] = 1.0
        return partial(_rate, LogisticRegression(X, y, l2=1e-3), T=512)

    return _compare(what, speed(10**3), speed(10**6), 6, at_most=True)


def _memory(what: str) -> Line:
    def peak(workers: int) -> float:
        # Linux's high-water mark: getrusage would include the parent's memory.
        code = (
            "from pathlib import Path; from fedac import load, LogisticRegression, simulate;"
            "data = load('synthetic'); F = LogisticRegression(data.X, data.y, l2=1e-3);"
            f"simulate(F, 'fedac-i', M={workers}, K=16, T=32, eta=0.5);"
            "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
        )
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        return int(child.stdout) / 1024

    many, few = peak(2**20), peak(2**8)
    return Line(what, many, few, "MB", many / few, 1.05, at_most=True)


def _whole_process(what: str) -> Line:
    """Time `fedac run` on a job of about one second, after a first run to warm up."""
    arguments = ["run", "--dataset", "synthetic", "--l2", "1e-3", "-M", "8192", "-K", "64"]
    arguments += ["-T", "4096", "--eta", "0.5", "--json"]
    command = [sys.executable, "-m", "fedac", *arguments]
    subprocess.run(command, capture_output=True, check=True)
    walls, jobs = [], []
    for _ in range(REPEATS):
        before = time.perf_counter()
        child = subprocess.run(command, capture_output=True, check=True)
        walls.append(time.perf_counter() - before)
        jobs.append(json.loads(child.stdout)["seconds"])
    wall, job = median(walls), median(jobs)
    return Line(what, wall, job, "s", wall, 3, at_most=True)


def _start(what: str) -> Line:
    """Time the overhead of a group of 52 runs, apart from its rounds and records."""
    objective = _a9a()
    names = ("fedac-i", "fedavg", "mb-sgd", "mb-ac-sgd")
    settings: dict[str, Any] = {"M": 4, "K": 256, "T": 256, "eta": ETAS}
    walls, runs = [], []
    for _ in range(REPEATS + 1):
        before = time.perf_counter()
        result = simulate(objective, names, **settings)
        walls.append(1000 * (time.perf_counter() - before))
        runs.append(1000 * result.seconds)
    wall, run = median(walls[1:]), median(runs[1:])
    return Line(what, wall, run, "ms", wall - run, 15, at_most=True)


def _jobs(what: str) -> Line:
    """Compare the runs per second of a sweep of small groups."""
    whole = read_grid(shipped("a9a-l2-1e-3"))
    few = tuple(M for M in whole.several("workers") if M <= 256)
    task, groups = prepare(replace(whole, workers=few))

    def speed(jobs: int) -> float:
        with TemporaryDirectory() as folder, Store(folder, create=True) as store:
            before = time.perf_counter()
            done = sweep.run_groups(task, groups, store, jobs=jobs)
            return done.new / (time.perf_counter() - before)

    # Long enough that one measurement will do.
    two, one = speed(2), speed(1)
    return Line(what, two, one, "runs/s", two / one, 1.7)


def _on_ray(script: str, what: str) -> Line:
    """Measure in a separate process, which starts its own Ray cluster."""
    # Otherwise Ray would replace 127.0.0.1 by an address that others can reach.
    environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    line = [sys.executable, str(Path(__file__).with_name("bench_ray.py")), script]
    child = subprocess.run(line, capture_output=True, check=True, env=environment)
    return Line(what, **json.loads(child.stdout.splitlines()[-1]))


def jax_round(
    objective: LogisticRegression, *, workers: int, local_steps: int, eta: float
) -> Callable[[], Any]:
    """Return one round of FedAc-I as a user of JAX would write it: a compiled scan over steps."""
    import jax
    import jax.numpy as jnp

    X = jnp.asarray(np.asarray((objective.X @ np.eye(objective.dim)), dtype=np.float32))
    y = jnp.asarray(objective.y, dtype=jnp.float32)
    hp = FEDAC_I.couple(eta=eta, mu=objective.l2, K=local_steps)
    steps = np.arange(local_steps)[:, None]
    rows = jnp.asarray(sample_index(1, np.arange(workers), steps, objective.n_samples))

    def step(state: Any, rows: Any) -> tuple[Any, None]:
        w_md = FEDAC_I.query(state, hp)
        x, labels = X[rows], y[rows]
        slopes = -labels * jax.nn.sigmoid(-labels * (x * w_md).sum(axis=1))
        g = slopes[:, None] * x + objective.l2 * w_md
        return FEDAC_I.update(state, w_md, g, hp), None

    def one_round(w: Any, rows: Any) -> Any:
        start = jnp.broadcast_to(w, (workers, objective.dim))
        state, _ = jax.lax.scan(step, FEDAC_I.start(start), rows)
        return [sequence.mean(axis=0) for sequence in state]

    w_0 = jnp.ones(objective.dim, dtype=jnp.float32)
    compiled = jax.jit(one_round)
    return lambda: jax.block_until_ready(compiled(w_0, rows))


def _against_jax(what: str) -> Line:
    one_round = jax_round(_a9a(), workers=M, local_steps=K, eta=0.5)
    return _compare(what, partial(_rate, _a9a(), T=1024), _timed(M * K, one_round), None)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


PEAK_MEMORY = "peak memory, M=2^20 over M=2^8"
OVER_SKLEARN = "one core, one step size over scikit-learn's SGDClassifier"
OVER_JAX = "one step size over a jax.jit scan"
RAY_TASK = "overhead of a Ray task with 1 MB of results"
RAY_NODES = "two Ray nodes of one core over two threads, M=2^20, 13 step sizes"
LINES: dict[str, Callable[[str], Line]] = {
    "13 step sizes over the reference engine": partial(_over_reference, 450, K, ETAS),
    "one step size over the reference engine": partial(_over_reference, 30, K, (0.5,)),
    OVER_SKLEARN: _against_sklearn,
    "K=256, 13 step sizes over the reference engine": partial(_over_reference, 450, 256, ETAS),
    "K=16, 13 step sizes over the reference engine": partial(_over_reference, 300, 16, ETAS),
    "MB-SGD over a NumPy minibatch gradient": _against_numpy_minibatch,
    "dense, 2,000 columns, M=256, 13 step sizes over the reference engine": _dense,
    PEAK_MEMORY: _memory,
    "cost of a step, 10^6 columns over 10^3": _columns,
    "two threads over one": _threads,
    "8,192 clients with rows of their own over workers with all rows": _clients,
    "10% of 100,000 clients over all of them": _participation,
    "rows in batches of 8 over single rows": _batches,
    "SCAFFOLD, M=1024, 13 step sizes over the reference engine": _memory_of_clients,
    "the mean over a server rule with momentum, M=1024": _server_rule,
    "whole process of a warm `fedac run`, its job": _whole_process,
    OVER_JAX: _against_jax,
    "start of a warm group of 52 runs": _start,
    "two jobs over one, a9a, M up to 256": _jobs,
    RAY_TASK: partial(_on_ray, "task"),
    RAY_NODES: partial(_on_ray, "nodes"),
}
# What a line needs; lines that cannot be measured here are left out.
NEEDS: dict[str, Callable[[], bool]] = {
    PEAK_MEMORY: Path("/proc/self/status").exists,
    OVER_SKLEARN: partial(_installed, "sklearn"),
    OVER_JAX: partial(_installed, "jax"),
    RAY_TASK: partial(_installed, "ray"),
    RAY_NODES: partial(_installed, "ray"),
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the speed of the fast engine.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", default="", help="measure lines whose name contains this")
    options = parser.parse_args(argv)
    lines = list(run(options.only))
    if options.json:
        print(as_json(lines))
    else:
        print_lines(lines)


if __name__ == "__main__":
    main()
