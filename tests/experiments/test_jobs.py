# SPDX-License-Identifier: Apache-2.0
"""Groups side by side in processes: the same bits, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedac.errors import CompileCacheWarning, InputError
from fedac.experiments import pool, sweep, workload
from fedac.experiments.export import write_csv
from fedac.experiments.grid import make_grid
from fedac.experiments.merge import Shard
from fedac.experiments.store import Store
from fedac.experiments.workload import Cost
from fedac.processes import WorkerDiedError

linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")


USUAL = {
    "name": "small", "dataset": "synthetic", "l2": 1e-2, "algorithms": ("fedac-i", "scaffold"),
    "workers": (4, 8, 16), "local_steps": (4, 8), "steps": 64, "eta": (0.1, 0.5),
}  # fmt: skip


def make(**values):
    """Return a grid of six groups, with some values of its own."""
    return make_grid(**USUAL | values)


def exported(grid, folder, **where):
    """Run a grid; return what `fedac export` writes."""
    with Store(folder, create=True) as store:
        sweep.run(grid, store, **where)
    return read(folder)


def read(folder):
    path = Path(folder) / "runs.csv"
    with Store(folder) as store:
        write_csv(store, path)
    return path.read_bytes()


@given(
    costs=st.lists(st.tuples(st.floats(0.01, 9), st.floats(0, 90)), min_size=1, max_size=20),
    cores=st.integers(1, 8),
)
def test_the_best_number_of_jobs_is_no_worse_than_any(costs, cores):
    costs = [Cost(*each) for each in costs]
    times = [pool.predict_time(costs, pool.share_out(cores, jobs)) for jobs in range(1, cores + 1)]
    best = pool.best_jobs(costs, cores)
    assert times[best - 1] == min(times)
    assert sum(pool.share_out(cores, best)) == cores  # none idle, none twice


def test_the_time_of_jobs_by_hand():
    costs = [Cost(alone=2.0, shared=4.0), Cost(alone=1.0), Cost(alone=3.0)]
    assert pool.predict_time(costs, [2]) == (2 + 4 / 2) + 1 + 3
    # The longest takes one job for itself, the others follow each other.
    assert pool.predict_time(costs, [1, 1]) == pool.START + max(6, 3 + 1)


@pytest.mark.slow
def test_jobs_do_not_change_a_byte(tmp_path):
    grid = make()
    alone = exported(grid, tmp_path / "1", jobs=1)
    for jobs in (2, 3):
        assert exported(grid, tmp_path / str(jobs), jobs=jobs) == alone
    with Store(tmp_path / "shards", create=True) as store:
        found = [sweep.run(grid, store, shard=Shard(part, 3), jobs=2).new for part in (1, 2, 3)]
    assert sum(found) == 24
    assert read(tmp_path / "shards") == alone


OWN = """
import os, signal, sys, warnings
from dataclasses import replace
import numpy as np
from fedac.algorithms import FEDAVG
from fedac.errors import CompileCacheWarning
from fedac.objectives import LeastSquares

nameless = replace(FEDAVG, name="nameless", update=lambda state, w, g, hp: (w - hp.eta * g / 2,))

class Slow(LeastSquares):
    '''Has no kernel, so that Python code runs.'''
    kernel = None
    def loss(self, z, y): return (z - y) ** 2 / 2
    def derivative(self, z, y): return z - y
    def second_derivative(self, z, y): return np.ones_like(z)

class Deadly(Slow):
    '''Kills the processes of groups of 8 workers.'''
    def stochastic_gradients(self, W, rows):
        if sys.argv[0].endswith("processes.py") and len(W) == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().stochastic_gradients(W, rows)

class Failing(Deadly):
    def stochastic_gradients(self, W, rows):
        if len(W) == 8:
            raise ZeroDivisionError("so many workers")
        return Slow.stochastic_gradients(self, W, rows)

class Warning(Slow):
    def stochastic_gradients(self, W, rows):
        print("printed")  # must not get among the messages
        warnings.warn("own warning", CompileCacheWarning)
        return super().stochastic_gradients(W, rows)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_jobs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_jobs", raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_algorithms_and_losses_of_the_users_own(tmp_path):
    grid = make(
        algorithms=("own_jobs:nameless", "fedavg"), loss="own_jobs:Warning", workers=(4, 5),
        steps=8, local_steps=(4,),
    )  # fmt: skip
    with pytest.warns(CompileCacheWarning, match="own warning"):
        side_by_side = exported(grid, tmp_path / "2", jobs=2)
    with pytest.warns(CompileCacheWarning, match="own warning"):
        assert exported(grid, tmp_path / "1", jobs=1) == side_by_side


@pytest.mark.slow
@linux
@pytest.mark.usefixtures("own")
def test_a_group_that_kills_its_processes_is_named_and_the_others_are_kept(tmp_path):
    grid = make(algorithms=("fedavg",), loss="own_jobs:Deadly", steps=8, local_steps=(4,))
    with (
        Store(tmp_path / "out", create=True) as store,
        pytest.raises(sweep.GroupsFailedError) as caught,
    ):
        sweep.run(grid, store, jobs=2)
    assert str(caught.value) == (
        "1 of 3 groups failed; all others are kept. synthetic, M=8, K=4, seed=1: its process died "
        "2 times (SIGKILL, perhaps out of memory)"
    )
    with Store(tmp_path / "out") as store:
        assert set(store.frame().M) == {4, 16}
    assert not children(os.getpid())


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("own")
def test_a_group_that_fails_is_named_and_the_others_are_kept(tmp_path, jobs):
    grid = make(algorithms=("fedavg",), loss="own_jobs:Failing", steps=8, local_steps=(4,))
    with (
        Store(tmp_path / "out", create=True) as store,
        pytest.raises(sweep.GroupsFailedError, match=r"^1 of 3 groups failed") as caught,
    ):
        sweep.run(grid, store, jobs=jobs)
    assert str(caught.value).endswith("M=8, K=4, seed=1: ZeroDivisionError: so many workers")
    with Store(tmp_path / "out") as store:
        assert set(store.frame().M) == {4, 16}


def test_what_the_input_is_to_blame_for_is_an_input_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise InputError("what the clients remember takes 9,999 MB")

    monkeypatch.setattr(workload, "run_problem", refuse)
    with (
        Store(tmp_path, create=True) as store,
        pytest.raises(
            InputError, match=r"6 of 6 groups failed. synthetic, M=.* takes 9,999 MB"
        ) as caught,
    ):
        sweep.run(make(), store, jobs=1)
    assert str(caught.value).count("synthetic") == sweep.NAMED_FAILURES
    assert str(caught.value).endswith("; ...")


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_an_error_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("fedac.experiments.pool.to_bytes", lambda task: b"rubbish")
    with (
        Store(tmp_path, create=True) as store,
        pytest.raises(WorkerDiedError, match="could not start: exit code 1"),
    ):
        sweep.run(make(), store, jobs=2)


@pytest.mark.parametrize(
    ("where", "saying"),
    [
        ({"jobs": 0}, "jobs must be a whole number, at least 1, got 0"),
        ({"jobs": 10**6}, "jobs must be at most 1024, got 1000000"),
        ({"on": "slurm"}, "on must be 'ray', or omitted to run on this machine; got 'slurm'"),
        ({"on": "ray", "jobs": 2}, "omit it on Ray"),
        ({"ray_address": "127.0.0.1:1"}, "needs on='ray'"),
    ],
)
def test_refusals(tmp_path, where, saying):
    with Store(tmp_path, create=True) as store, pytest.raises(InputError, match=saying):
        sweep.run(make(), store, **where)


def children(pid):
    """Return the processes that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if int(parent) == pid and "fedac.processes" in (status.parent / "cmdline").read_text():
            found.append((int(status.parent.name), state))
    return found


# Long enough not to end before the signal, even on a busy machine.
LONG = {"steps": 2**13, "workers": tuple(range(4, 64, 4))}
CELLS = 15 * 2 * 2 * 2


def start(folder, **values):
    """Start a sweep with two jobs as its own group of processes, as a terminal does."""
    line = ["--jobs", "2"]
    for name, value in (USUAL | values).items():
        if name != "name":
            several = value if isinstance(value, tuple) else (value,)
            line += [f"--{name.replace('_', '-')}", ",".join(map(str, several))]
    return subprocess.Popen(
        [sys.executable, "-m", "fedac", "sweep", *line, "--out", folder],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_runs(process, folder):
    """Wait until something is stored; return the worker processes."""
    while process.poll() is None:
        time.sleep(0.05)
        if (folder / "runs.sqlite").exists():
            with Store(folder, create=True) as store:
                if store.info()["runs"]:
                    return [pid for pid, _ in children(process.pid)]
    raise AssertionError(process.communicate())


def wait_for_end(pids):
    """Wait until processes have ended; the test's own limit is that of pytest's caller."""
    until = time.monotonic() + 600
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "a worker is left behind"
        time.sleep(0.05)


@pytest.mark.slow
@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [True, False])
def test_a_signal_ends_all_processes(tmp_path, number, whole_group):
    process = start(tmp_path, **LONG)
    workers = wait_for_runs(process, tmp_path)
    assert len(workers) == 2
    # Ctrl-C in a terminal goes to all; a scheduler may signal the first process only.
    if whole_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=1800)
    assert process.returncode == 130, err
    wait_for_end(workers)
    with Store(tmp_path) as store:
        kept = store.info()["runs"]
    assert 0 < kept < CELLS
    assert f"{kept} of {CELLS} runs are kept" in err
    assert "Traceback" not in err


@pytest.mark.slow
@linux
def test_killed_workers_and_a_killed_driver_change_no_byte(tmp_path):
    values = LONG | {"steps": 2**11}
    grid = make(**values)
    quiet = exported(grid, tmp_path / "quiet", jobs=1)
    folder = tmp_path / "killed"
    # The driver dies: its workers follow, and the next sweep continues.
    process = start(folder, **values)
    workers = wait_for_runs(process, folder)
    process.kill()
    process.communicate()
    wait_for_end(workers)
    # A worker dies: its group is run again, by another one.
    process = start(folder, **values)
    while not (workers := children(process.pid)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(2)
    os.kill(workers[0][0], signal.SIGKILL)
    _, err = process.communicate(timeout=1800)
    assert process.returncode == 0, err
    assert read(folder) == quiet
    with Store(folder, create=True) as store:  # no lock is left
        assert sweep.run(grid, store).new == 0
