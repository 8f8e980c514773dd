# SPDX-License-Identifier: Apache-2.0
"""The sweep: every run of a grid is made once, whatever stops it."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedac.data import Clients, load, split
from fedac.data.registry import hold_out
from fedac.errors import InputError
from fedac.experiments import sweep, workload
from fedac.experiments.export import write_csv
from fedac.experiments.grid import make_grid
from fedac.experiments.store import FILE, Store
from fedac.experiments.summary import tuned
from fedac.federation.schedule import Decay
from fedac.objectives import LogisticRegression, optimum
from fedac.objectives.losses import choose_loss, make_objective
from fedac.simulation import simulate
from fedac.simulation.simulator import run_problem

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and locks")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Give a LIBSVM file of 60 rows and 12 columns."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "small"
    with path.open("w") as file:
        for row in range(60):
            columns = sorted(rng.choice(12, size=4, replace=False) + 1)
            entries = " ".join(f"{column}:{rng.normal():.3f}" for column in columns)
            file.write(f"{'+1' if row % 3 else '-1'} {entries}\n")
    return path


@pytest.fixture
def make(data):
    """Give a function that makes a small grid, with some values of its own."""

    def make(**values):
        defaults = {
            "name": "small",
            "dataset": str(data),
            "l2": 1e-2,
            "algorithms": ("fedac-i", "mb-sgd"),
            "workers": (4, 8),
            "local_steps": (1, 4),
            "steps": 16,
            "eta": (0.1, 0.5),
            "record_every": 8,
        }
        given = {**defaults, **values}  # None leaves out a default
        return make_grid(**{name: value for name, value in given.items() if value is not None})

    return make


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "out", create=True) as store:
        yield store


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of the engine, and use the one that need not be compiled."""
    calls = []

    def counted(problem, **how):
        etas = {}
        for lane in problem.lanes:
            etas.setdefault(lane.algorithm.name, []).append(lane.hp.eta)
        calls.append((tuple(etas), problem.federation.M, problem.schedule.K, etas))
        return run_problem(problem, **how | {"engine": "reference"})

    monkeypatch.setattr(workload, "run_problem", counted)
    return calls


def exported(store, tmp_path):
    write_csv(store, tmp_path / "runs.csv")
    return (tmp_path / "runs.csv").read_bytes()


def test_runs_are_those_of_simulate(make, store):
    grid = make()
    summary = sweep.run(grid, store)
    assert (summary.new, summary.before) == (16, 0)
    frame = store.frame()
    assert set(frame.key) == set(summary.keys)
    loaded = load(grid.dataset)
    F = LogisticRegression(loaded.X, loaded.y, l2=grid.l2)
    result = simulate(F, grid.algorithm, M=8, K=4, T=16, eta=grid.eta, seed=1, record_every=8)
    rows = frame[(frame.M == 8) & (frame.K == 4)].set_index(["algorithm", "eta"])
    traces = store.traces()
    for run in result.runs:
        row = rows.loc[run.algorithm, run.eta]
        assert (row.dataset, row.n_samples, row.n_features) == ("small", 60, 12)
        assert (row.best_loss, row.final_loss) == (run.best_loss, run.final_loss)
        assert row.best_suboptimality == run.best_loss - optimum(F).value
        trace = traces[traces.key == row.key]
        assert list(zip(trace.step, trace.loss, strict=True)) == list(
            zip(run.steps, run.loss, strict=True)
        )


def test_a_group_is_one_call_and_nothing_is_redone(make, store, calls):
    grid = make()
    sweep.run(grid, store)
    names = ("fedac-i", "mb-sgd")
    # Short rounds cost most; the longest group comes first.
    etas = {name: [0.1, 0.5] for name in names}
    assert calls == [(names, M, K, etas) for K in (1, 4) for M in (8, 4)]
    again = sweep.run(grid, store)
    assert (again.new, again.before, len(again.keys)) == (0, 16, 16)
    assert len(calls) == 4


def test_a_larger_grid_runs_only_what_is_new(make, store, calls, tmp_path):
    sweep.run(make(workers=(4,), local_steps=(4,)), store)
    larger = make(
        workers=(4,), local_steps=(4,), eta=(0.1, 0.2, 0.5), algorithms=("fedavg", "fedac-i")
    )
    assert sweep.run(larger, store).new == 4
    etas = {"fedavg": [0.1, 0.2, 0.5], "fedac-i": [0.2]}
    assert calls[1:] == [(("fedavg", "fedac-i"), 4, 4, etas)]
    with Store(tmp_path / "other", create=True) as other:
        sweep.run(larger, other)
        ours = store.frame().set_index("key").loc[list(other.frame().key)]
        assert list(ours.best_loss) == list(other.frame().best_loss)


@pytest.mark.usefixtures("calls")
def test_changed_data_are_other_runs(make, store, data, tmp_path):
    copy = tmp_path / "small"
    copy.write_text(data.read_text())
    sweep.run(make(dataset=str(copy)), store)
    assert sweep.run(make(), store).new == 0  # the same data elsewhere
    copy.write_text(data.read_text().replace("+1 ", "-1 ", 1))
    assert sweep.run(make(dataset=str(copy)), store).new == 16


@pytest.mark.parametrize(
    "values",
    [
        {"loss": "least-squares"},
        {"loss": "squared-hinge", "intercept": True},
        {"mu": 0.5},
        {"precision": "float64"},
        {"record_every": 4},
    ],
)
def test_options_reach_the_simulation(make, store, values):
    grid = make(algorithms=("fedac-i",), workers=(4,), local_steps=(4,), eta=(0.1,))
    other = replace(grid, **values)
    assert (sweep.run(grid, store).new, sweep.run(other, store).new) == (1, 1)
    data = load(grid.dataset)
    F = make_objective(
        choose_loss(data, other.loss), data.X, data.y, l2=other.l2, intercept=other.intercept
    )
    (run,) = simulate(
        F, "fedac-i", M=4, K=4, T=16, eta=0.1, mu=other.mu, seed=1, precision=other.precision,
        record_every=other.record_every,
    ).runs  # fmt: skip
    frame = store.frame().set_index("key")
    (key,) = frame.index.difference(list(sweep.run(grid, store).keys))
    traces = store.traces()
    assert list(traces[traces.key == key].loss) == list(run.loss)
    assert frame.loc[key, "f_star"] == optimum(F).value
    assert sweep.run(other, store).new == 0


FEDERATED = {
    "algorithms": ("fedac-i", "mb-sgd"), "workers": None, "clients": (6,), "local_steps": (4,),
    "eta": (0.1,),
}  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"split": ("label",), "split_seed": 3},
        {"split": ("power(1)",), "weighting": "uniform"},
        {"participation": (0.5,), "batch": (4,)},
        {"participation": (2.0,), "batch": ("full",)},
        {"decay": "1/sqrt(r)"},
        {"test": 0.25},
        {"workers": (6,), "clients": None, "participation": (0.5,), "batch": (3,), "decay": "1/r"},
    ],
)
def test_clients_reach_the_simulation(make, store, values):
    grid = make(**FEDERATED | values)
    assert sweep.run(grid, store).new == 2
    train, test = load(grid.dataset), None
    if grid.test is not None:
        train, test = hold_out(train, 0.25)
    F = LogisticRegression(train.X, train.y, l2=grid.l2)
    by, seed = grid.split or "iid", grid.split_seed
    who = {"M": 6} if grid.workers else {"clients": split(train, 6, by, seed)}
    result = simulate(
        F, grid.algorithm, K=4, T=16, eta=Decay(0.1, grid.decay) if grid.decay else 0.1, seed=1,
        participation=grid.participation, batch=grid.batch, weighting=grid.weighting,
        test=test, record_every=8, **who,
    )  # fmt: skip
    frame, traces = store.frame().set_index("algorithm"), store.traces()
    for run in result.runs:
        row = frame.loc[run.algorithm]
        trace = traces[traces.key == row.key]
        assert list(trace.loss) == list(run.loss)
        # With uniform weights, the minimum of the mean of the clients' losses.
        assert row.f_star == pytest.approx(result.f_star, abs=1e-12)
        assert row.megabytes_per_worker == run.megabytes_per_worker
        assert list(trace.test_loss.dropna()) == list(run.test_loss)
        assert list(trace.test_accuracy.dropna()) == list(run.test_accuracy)
    assert row.split == ("" if grid.workers else by)
    assert store.info()["gradient_queries"] == pytest.approx(result.gradient_queries, rel=0.2)
    assert sweep.run(grid, store).new == 0


def test_several_federations(make, store):
    values = {"split": ("iid", "power(1)"), "clients": (6, 3), "participation": (0.5, 1.0, 6.0),
              "batch": (1, "full"), "weighting": "uniform"}  # fmt: skip
    with pytest.raises(ValueError, match="participation=6 is more than the 3 clients"):
        make(**FEDERATED | values)
    grid = make(**FEDERATED | values | {"participation": (0.5, 1.0, 3.0)})
    summary = sweep.run(grid, store)
    # Three of three clients are everybody, three of six are half of them by another name.
    assert summary.new == len(set(summary.keys)) == 2 * (3 + 2) * 2 * 2
    frame = store.frame()
    assert set(frame.split) == {"iid", "power(1)"}
    # F* depends on who the clients are, not on who takes part; 3 or 6 clients of equal size give
    # the loss over all rows.
    assert frame.groupby(["M", "split"]).f_star.nunique().eq(1).all()
    assert frame.f_star.round(9).nunique() == 3


def test_clients_named_by_a_file(make, store, tmp_path):
    names = tmp_path / "users.txt"
    names.write_text("".join(f"user-{row % 5}\n" for row in range(60)))
    grid = make(**FEDERATED | {"clients": None, "split": (str(names),)})
    sweep.run(grid, store)
    frame = store.frame()
    assert (set(frame.M), set(frame.split)) == ({5}, {"users.txt"})
    # Other clients under the same name are another federation.
    names.write_text("".join(f"user-{row // 12}\n" for row in range(60)))
    assert sweep.run(grid, store).new == 2
    assert store.frame().split.nunique() == store.frame().federation.nunique() == 2
    with pytest.raises(InputError, match=r"participation=9 is more than the 5 clients"):
        sweep.run(make(**FEDERATED | {"clients": None, "split": (str(names),),
                                      "participation": (9.0,)}), store)  # fmt: skip


def test_a_test_set_from_a_file(make, store, data, tmp_path):
    other = tmp_path / "small.t"
    other.write_text("".join(data.read_text().splitlines(keepends=True)[:20]))
    grid = make(**FEDERATED, test=str(other))
    plain = make(**FEDERATED)
    assert (sweep.run(grid, store).new, sweep.run(plain, store).new) == (2, 2)
    frame = store.frame()
    tested = frame[frame.test == "small.t"]
    assert len(tested) == 2
    assert tested.test_accuracy.between(0, 1).all()
    assert list(tuned(frame).test) == ["small.t"] * 2
    # Testing changes nothing in what is tested.
    assert frame.groupby("algorithm").final_loss.nunique().eq(1).all()


OWN = """
import numpy as np
from dataclasses import replace
from fedac.algorithms import FEDAVG
from fedac.objectives import LeastSquares

slower = replace(
    FEDAVG, name="slower", update=lambda state, w_md, g, hp: (w_md - FACTOR * hp.eta * g,)
)

class Scaled(LeastSquares):
    kernel = None
    curvature = FACTOR
    def loss(self, z, y): return FACTOR * (z - y) ** 2 / 2
    def derivative(self, z, y): return FACTOR * (z - y)
    def second_derivative(self, z, y): return FACTOR * np.ones_like(z)
"""


def test_own_algorithms_and_losses_are_known_by_what_they_compute(
    make, store, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = []
    for number, factor in enumerate((0.5, 0.25, 0.25)):
        module = f"own_sweep_{number}"  # a module that was edited, without importing it again
        (tmp_path / f"{module}.py").write_text(OWN.replace("FACTOR", str(factor)))
        how = {"workers": (4,), "local_steps": (4,), "eta": (0.1,)}
        algorithm = make(algorithms=(f"{module}:slower", "fedavg"), **how)
        loss = make(algorithms=("fedavg",), loss=f"{module}:Scaled", **how)
        names.append((sweep.run(algorithm, store).new, sweep.run(loss, store).new))
    # fedavg is the same every time; the third module computes what the second does.
    assert names == [(2, 1), (1, 1), (0, 0)]
    found = set(store.frame().algorithm)
    assert len(found) == 3
    assert {name.split(" (")[0] for name in found} == {"fedavg", "slower"}
    assert store.frame().groupby("dataset").f_star.nunique().max() == 1


@pytest.mark.usefixtures("calls")
def test_divergence_is_a_result(make, store):
    grid = make(algorithms=("fedavg",), eta=(1e9,), l2=1.0, local_steps=(4,), workers=(4,))
    summary = sweep.run(grid, store)
    frame = store.frame()
    assert list(frame.status) == ["diverged"]
    assert np.isfinite(frame.best_loss).all()
    assert store.best(summary.keys) is None
    assert summary.beyond == 1
    assert summary.disguised == 0


@pytest.mark.usefixtures("calls")
def test_runs_of_fedac_that_are_fedavg_are_counted_without_a_noise(make, store):
    # eta mu K = 1/8, 1, 8, 64; mb-ac-sgd takes no local steps
    one = {"l2": 0.5, "workers": (4,), "local_steps": (1, 8), "eta": (0.25, 2.0)}
    grid = make(algorithms=("fedac-i", "fedavg", "mb-ac-sgd"), **one)
    assert sweep.run(grid, store).disguised == 3
    # eta falls to 1/8 in 16 rounds of one step, and to 1 in two rounds of eight
    falling = make(algorithms=("fedac-i",), **one | {"eta": (2.0,)}, decay="1/r")
    assert sweep.run(falling, store).disguised == 1
    assert sweep.run(grid, store).new == 0


@pytest.mark.usefixtures("calls")
def test_an_interrupt_keeps_what_was_finished(make, store, tmp_path):
    grid = make()

    def interrupt(progress):
        if progress.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(sweep.SweepInterrupted) as stopped:
        sweep.run(grid, store, on_progress=interrupt)
    assert (stopped.value.done, stopped.value.cells) == (8, 16)
    assert len(store.frame()) == 8
    assert sweep.run(grid, store).new == 8
    with Store(tmp_path / "other", create=True) as other:
        sweep.run(grid, other)
        assert exported(other, tmp_path) == exported(store, tmp_path)


@pytest.mark.usefixtures("calls")
def test_progress(make, store, monkeypatch):
    monkeypatch.setattr(sweep, "SECONDS_BETWEEN_REPORTS", 0.0)
    grid = make()
    reports = []

    def keep(progress):
        reports.append(replace(progress))

    sweep.run(grid, store, on_progress=keep)
    assert reports[0] == sweep.Progress(cells=16, done=0, best=None)
    assert len(reports) > 5
    for name in ("done", "queries", "work"):
        values = [getattr(report, name) for report in reports]
        assert values == sorted(values)
    last = reports[-1]
    assert (last.done, last.work, last.queries) == (16, 1.0, 2 * 2 * 2 * 2 * 6 * 16)
    frame = store.frame()
    best = frame.loc[(frame.trained_loss - frame.f_star).idxmin()]
    assert last.best == (best.trained_loss - best.f_star, best.algorithm, best.eta)
    # A sweep that finds everything done says so at once.
    reports.clear()
    sweep.run(grid, store, on_progress=keep)
    assert reports == [sweep.Progress(cells=16, done=16, work=1.0, best=last.best)]


@pytest.mark.usefixtures("calls")
def test_plan(make, store):
    workload, groups = sweep.prepare(make())
    assert list(map(len, groups)) == [4, 4, 4, 4]
    sweep.run(make(workers=(4,)), store)
    rest = [tuple(store.missing(runs)) for runs in groups]
    assert rest == [(), (), *groups[2:]]
    assert 0 < sum(map(workload.seconds, rest)) < sum(map(workload.seconds, groups))
    assert (
        0
        < sweep.predict_seconds(workload, rest, jobs=1)
        < sweep.predict_seconds(workload, groups, 1)
    )
    assert sweep.predict_seconds(workload, []) == 0


def test_the_speed_is_measured_on_short_groups(make, calls, monkeypatch):
    monkeypatch.setattr(sweep, "TRIAL_SECONDS", 1e-3)
    grid = make(steps=2**14)
    before = time.perf_counter()
    workload, groups = sweep.prepare(grid)
    ratio = sweep.measure_speed(workload, groups)
    took = time.perf_counter() - before
    assert len(calls) == 2 * sweep.TRIALS  # once to compile, once to measure
    # The whole groups would take more than all of it.
    assert 0 < took < ratio * sum(map(workload.seconds, groups))


def arguments(grid):
    """Return a sweep as arguments of `fedac`, but for its folder."""
    options = {
        "--dataset": grid.dataset,
        "--l2": grid.l2,
        "--algorithms": grid.several("algorithm"),
        "--workers": grid.several("workers"),
        "--local-steps": grid.several("local_steps"),
        "--steps": grid.steps,
        "--eta": grid.several("eta"),
    }
    line = ["sweep"]
    for option, value in options.items():
        line += [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return line


def start(grid, folder):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    line = [sys.executable, "-m", "fedac", *arguments(grid), "--out", str(folder)]
    return subprocess.Popen(line, text=True, **streams)


def finish(process):
    out, err = process.communicate(timeout=1800)
    assert process.returncode == 0, err
    return out


def read(folder, path):
    with Store(folder) as store:
        write_csv(store, path)
    return path.read_bytes()


@pytest.fixture
def long_grid(make):
    """Give a grid of 48 groups of some tens of milliseconds each."""
    return make(
        dataset="synthetic", workers=tuple(range(16, 112, 8)), local_steps=(4, 8, 16, 32), steps=64,
        algorithms=("fedac-i", "fedavg+cv+nesterov(1,0.9)"),  # memory, and a server's state
    )  # fmt: skip


CELLS = 12 * 4 * 2 * 2


@posix
@pytest.mark.slow
def test_two_sweeps_share_one_store(long_grid, tmp_path):
    both = [start(long_grid, tmp_path / "both") for _ in range(2)]
    outputs = [finish(process) for process in both]
    counts = [int(out.split(" runs now")[0].split()[-1]) for out in outputs]
    assert sum(counts) == CELLS  # no run was made twice
    for out in outputs:
        title = " ".join(out.partition("┏")[0].split())
        *parts, whole = (int(part.split()[0]) for part in title.split(": ")[1].split(", "))
        assert sum(parts) == whole == CELLS, title
    with Store(tmp_path / "both") as store:
        frame, traces = store.frame(), store.traces()
    assert len(frame) == frame.key.nunique() == CELLS
    assert not traces.duplicated(["key", "step"]).any()
    finish(start(long_grid, tmp_path / "alone"))
    paths = (tmp_path / "both.csv", tmp_path / "alone.csv")
    assert read(tmp_path / "both", paths[0]) == read(tmp_path / "alone", paths[1])


# Starts sweeps at once, by forking when everything has been imported: a process of its own for
# each of twenty would spend its life, and mostly find its death, importing SciPy.
FORKS = """
import os, signal, sys, time
import pandas
import fedac.simulation.engines.linear.engine, fedac.experiments.sweep
from fedac.cli import main
for line in sys.stdin:
    seconds, folder = line.split(maxsplit=1)
    before = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        main([*sys.argv[1:], "--out", folder.strip()])
    done = 0
    while not done and time.monotonic() - before < float(seconds):
        time.sleep(0.001)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), time.monotonic() - before, flush=True)
"""


@posix
@pytest.mark.slow
def test_killed_at_twenty_instants(long_grid, tmp_path):
    finish(start(long_grid, tmp_path / "whole"))
    whole = read(tmp_path / "whole", tmp_path / "whole.csv")
    rng = random.Random(4)
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, *arguments(long_grid)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as forks:  # fmt: skip

        def attempt(folder, seconds):
            """Sweep for so long at most; return the exit code and the time it took."""
            forks.stdin.write(f"{seconds} {folder}\n")
            forks.stdin.flush()
            code, took = forks.stdout.readline().split()
            return int(code), float(took)

        code, span = attempt(tmp_path / "unhurt", 120)
        assert code == 0
        kept = set()
        kills = stores = hits = 0
        while True:
            folder = tmp_path / f"killed-{stores}"
            code, _ = attempt(folder, span * rng.uniform(0.2, 1) if kills < 20 else 120)
            found = runs(folder)
            assert kept <= found  # what was there has not been made again
            if code == -signal.SIGKILL:
                kills += 1
                hits += kept < found
                kept = found
                continue
            assert code == 0
            assert read(folder, tmp_path / f"{folder.name}.csv") == whole
            if kills == 20:
                break
            kept = set()
            stores += 1
        forks.stdin.close()
    assert hits >= 3, "the kills came too soon to try anything"


def runs(folder):
    """Return what tells a run from the same run made again: its time."""
    if not (folder / FILE).exists():
        return set()
    db = sqlite3.connect(folder / FILE)
    try:
        return set(db.execute("SELECT id, key, seconds, created FROM runs"))
    except sqlite3.OperationalError:  # killed before there were tables
        return set()
    finally:
        db.close()


@posix
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_sweep_with_130(long_grid, tmp_path, number):
    folder = tmp_path / "out"
    # Long enough not to end before the signal, even on a busy machine.
    process = start(replace(long_grid, steps=2**14), folder)
    while not runs(folder) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=1800)
    kept = len(runs(folder))
    assert 0 < kept < CELLS
    assert process.returncode == 130
    # The first process to run these kernels says before that it compiles them.
    assert err.splitlines()[-2:] == [
        f"fedac: sweep: {kept} of {CELLS} runs are kept in '{folder}'; "
        "the same command continues from there",
        "fedac: interrupted",
    ]


TABLE = pd.DataFrame(
    {"x": np.arange(30.0), "city": ["oslo", "rome", "rome"] * 10, "y": [1, 0] * 15}
)
CITIES = TABLE["city"].to_numpy(str)
PAIR = (TABLE[["x"]].to_numpy(), TABLE["y"].to_numpy())


@pytest.mark.parametrize(
    ("data", "who"),
    [
        (TABLE, {"client": "city"}),
        (load(TABLE, client="city"), {}),
        (load(TABLE, client="city"), {"client": "city"}),
        (PAIR, {"client": CITIES}),
        (PAIR, {"client": CITIES.tolist()}),
        (PAIR, {"client": Clients(CITIES)}),
        (PAIR, {"client": TABLE["city"]}),
    ],
)
def test_clients_of_any_kind(store, data, who):
    grid = make_grid(
        dataset=data, l2=0.1, algorithms=["fedavg", "fedac-i"], local_steps=2, rounds=3, eta=0.01,
        record_every=2, **who,
    )  # fmt: skip
    assert sweep.run(grid, store).new == 2
    F = LogisticRegression(PAIR[0], np.where(PAIR[1], 1.0, -1.0), l2=0.1)
    expected = simulate(F, "fedavg", clients=CITIES, K=2, rounds=3, eta=0.01, record_every=2)
    row = store.frame().set_index("algorithm").loc["fedavg"]
    assert (row["M"], row["T"]) == (2, 6)
    trace = store.traces()
    assert list(trace[trace.key == row.key].loss) == list(expected.best.loss)


def test_workers_instead_of_the_clients_of_the_data(store):
    grid = make_grid(dataset=load(TABLE, client="city"), l2=0.1, algorithms="fedavg", workers=3,
                     local_steps=2, rounds=3, eta=0.01)  # fmt: skip
    assert sweep.run(grid, store).new == 1
    assert store.frame()["M"].tolist() == [3]
