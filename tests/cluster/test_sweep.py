# SPDX-License-Identifier: Apache-2.0
"""Sweeps on a cluster: the bytes of a quiet run, whatever is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fedac.experiments import sweep
from fedac.experiments.export import write_csv
from fedac.experiments.grid import make_grid
from fedac.experiments.store import Store

pytest.importorskip("ray", reason="Ray is not installed: make install")
pytestmark = pytest.mark.slow

GRID = make_grid(
    name="grid", dataset="synthetic", l2=1e-2, algorithms=("fedac-i", "scaffold"),
    workers=tuple(range(4, 36, 4)), local_steps=(4, 8), steps=2**11, eta=(0.1, 0.5),
)  # fmt: skip
CELLS = 8 * 2 * 2 * 2
GROUP = "ray::_run"  # the name of a process that runs a group
# What `fedac` is called with, but for the folder.
LINE = """
import sys
from fedac.cli import main
main(["sweep", "--dataset", "synthetic", "--l2", "1e-2", "--algorithms", "fedac-i,scaffold",
      "--workers", "4,8,12,16,20,24,28,32", "--local-steps", "4,8", "--steps", "2048",
      "--eta", "0.1,0.5", "--on", "ray", "--out", *sys.argv[1:]])
"""


def read(folder):
    path = Path(folder) / "runs.csv"
    with Store(folder) as store:
        write_csv(store, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Give the export of the grid, run in this process."""
    folder = tmp_path_factory.mktemp("quiet")
    with Store(folder, create=True) as store:
        sweep.run(GRID, store, jobs=1)
    return read(folder)


def stored(folder):
    if not (folder / "runs.sqlite").exists():
        return 0
    with Store(folder, create=True) as store:
        return store.info()["runs"]


def wait_for_runs(driver, folder):
    """Wait until something is stored, but not everything."""
    while not stored(folder):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)


def finish(driver):
    try:
        output, errors = driver.communicate(timeout=1800)
    finally:
        driver.kill()
    assert driver.returncode == 0, output + errors
    return errors


def test_two_nodes_change_no_byte(two_nodes, tmp_path, quiet):
    output = two_nodes.run(LINE, tmp_path)
    assert f"{CELLS} runs now, 0 before" in output
    assert read(tmp_path) == quiet
    with Store(tmp_path) as store:
        assert len(store.info()["machines"]) == 1  # as the nodes describe themselves


def test_a_ray_of_our_own_on_this_machine(two_nodes, tmp_path, quiet):
    # Without an address: it is started for the sweep, and stopped.
    environment = {name: value for name, value in two_nodes.environment.items()
                   if name != "RAY_ADDRESS"}  # fmt: skip
    alone = type(two_nodes)(two_nodes.process, environment)
    assert f"{CELLS} runs now" in alone.run(LINE, tmp_path)
    assert read(tmp_path) == quiet


def test_a_killed_process_of_a_node(two_nodes, tmp_path, quiet):
    with two_nodes.start(LINE, tmp_path) as driver:
        wait_for_runs(driver, tmp_path)
        for pid in two_nodes.processes(GROUP):
            os.kill(pid, signal.SIGKILL)
        finish(driver)
    assert read(tmp_path) == quiet


def test_a_killed_node(two_nodes, tmp_path, quiet):
    with two_nodes.start(LINE, tmp_path) as driver:
        try:
            wait_for_runs(driver, tmp_path)
            two_nodes.tell("kill second")
            finish(driver)
        finally:
            two_nodes.tell("start second")
    assert read(tmp_path) == quiet


def test_a_killed_driver_continues_from_its_store(two_nodes, tmp_path, quiet):
    with two_nodes.start(LINE, tmp_path) as driver:
        wait_for_runs(driver, tmp_path)
        driver.kill()
        driver.communicate()
    kept = stored(tmp_path)
    assert 0 < kept < CELLS
    output = two_nodes.run(LINE, tmp_path)
    assert f"{CELLS - kept} runs now, {kept} before" in output
    assert read(tmp_path) == quiet


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_tasks_and_keeps_what_is_finished(two_nodes, tmp_path, number):
    # Long enough not to end before the signal, even on a busy machine.
    with two_nodes.start(LINE, tmp_path, "--steps", 2**15) as driver:
        wait_for_runs(driver, tmp_path)
        driver.send_signal(number)
        _, errors = driver.communicate(timeout=1800)
    assert driver.returncode == 130, errors
    assert "runs are kept" in errors
    until = time.monotonic() + 600
    while two_nodes.processes(GROUP):
        assert time.monotonic() < until, "a task is left behind"
        time.sleep(0.1)


CLIENTS = """
import sys
from fedac.experiments import sweep
from fedac.experiments.grid import make_grid
from fedac.experiments.store import Store
grids = [
    make_grid(dataset=dataset, l2=1e-2, clients=8, split="dirichlet(1)",
              algorithms=("fedac-i", "scaffold", "mb-sgd"), local_steps=(4,), steps=16, eta=(0.1,))
    for dataset in ("synthetic", "digits")  # of two and of ten classes
]
say = lambda: print("compiling")
for place, where in (("here", {"jobs": 1}), ("there", {"on": "ray"})):
    with Store(f"{sys.argv[1]}/{place}", create=True) as store:
        print(*(sweep.run(grid, store, on_compile=say, **where).new for grid in grids))
"""


def test_the_nodes_need_no_kernels_of_their_own(two_nodes, tmp_path):
    # Arrays that Ray shares are read-only: Numba would compile everything again for them.
    *_, here, there = two_nodes.run(CLIENTS, tmp_path).splitlines()
    assert (here, there) == ("3 3", "3 3")
    assert read(tmp_path / "here") == read(tmp_path / "there")


NETWORK = """
import sys
from fedac.experiments import sweep
from fedac.experiments.grid import make_grid
from fedac.experiments.store import Store
grid = make_grid(dataset="digits", model="mlp(8)", clients=8, split="dirichlet(1)", batch=8,
                 algorithms=("fedavg", "scaffold"), local_steps=(2, 4), rounds=4, eta=(0.1, 0.5),
                 backend="batched")
for place, where in (("here", {"jobs": 1}), ("there", {"on": "ray"})):
    with Store(f"{sys.argv[1]}/{place}", create=True) as store:
        print(sweep.run(grid, store, **where).new)
"""


def test_networks_on_two_nodes(two_nodes, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed: make install")
    *_, here, there = two_nodes.run(NETWORK, tmp_path).splitlines()
    assert (here, there) == ("8", "8")
    assert read(tmp_path / "here") == read(tmp_path / "there")


OWN = """
from dataclasses import replace
from fedac.algorithms import FEDAVG
mine = replace(FEDAVG, name="mine", update=lambda state, w, g, hp: (w - hp.eta * g / 2,))
"""
OWN_SWEEP = """
import os, sys
from fedac.experiments import sweep  # noqa: E402
from fedac.experiments.grid import make_grid
from fedac.experiments.store import Store
os.chdir(sys.argv[1])
grid = make_grid(dataset="synthetic", l2=1e-2, algorithms="own_on_ray:mine", workers=4,
            local_steps=(4,), steps=16, eta=(0.1,))
with Store("out", create=True) as store:
    print(sweep.run(grid, store, on="ray").new)
"""


def test_an_algorithm_that_the_nodes_do_not_have(two_nodes, tmp_path):
    (tmp_path / "own_on_ray.py").write_text(OWN)
    assert two_nodes.run(OWN_SWEEP, tmp_path).splitlines()[-1] == "1"


OWN_MODEL = """
from torch import nn
class Mine(nn.Linear):
    pass
def make(shape, outputs):
    return nn.Sequential(Mine(*shape, outputs))
"""


def test_a_model_that_the_nodes_do_not_have(two_nodes, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed: make install")
    (tmp_path / "model_on_ray.py").write_text(OWN_MODEL)
    values = 'dataset="synthetic", l2=1e-2, algorithms="own_on_ray:mine", workers=4'
    assert values in OWN_SWEEP
    network = 'dataset="digits", model="model_on_ray:make", algorithms="fedavg", workers=4'
    output = two_nodes.run(OWN_SWEEP.replace(values, network), tmp_path)
    assert output.splitlines()[-1] == "1"


def test_no_cluster_at_the_address(two_nodes, tmp_path):
    driver = two_nodes.start(LINE, tmp_path, "--ray-address", "127.0.0.1:1")
    _, errors = driver.communicate(timeout=1800)
    assert driver.returncode == 2, errors
    assert "cannot use Ray at 127.0.0.1:1" in errors.splitlines()[-1]
    assert sys.executable not in errors
