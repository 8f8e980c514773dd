# SPDX-License-Identifier: Apache-2.0
"""Flower's simulation with Ray follows the simulator's trajectory."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")
pytest.importorskip("ray", reason="Ray is not installed: make install")

# In a process of its own, because Ray cannot be restarted. One Ray serves three runs.
SIMULATION = """
import runpy, sys
import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

conftest, out = sys.argv[1:]
federation = runpy.run_path(conftest)["Different"]()
server = ServerApp()

@server.main()
def main(grid, context):
    for algorithm in ("fedac-i", "fedavg", "scaffold"):
        result = federation.run(algorithm, 4, grid=grid, deadline=600.0, weighting="examples")
        losses = [loss for _, loss in result.history.metric("loss")]
        np.savez(f"{out}/{algorithm}", losses=losses, **{
            name.replace("/", "_"): array for name, array in result.sequences.items()
        })

run_simulation(
    server, federation.app(), num_supernodes=federation.nodes,
    backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
)
"""


@pytest.mark.slow
def test_ray_matches_the_simulator(tmp_path):
    conftest = Path(__file__).with_name("conftest.py")
    federation = runpy.run_path(str(conftest))["Different"]()
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION, conftest, tmp_path],
        timeout=1800, check=False, capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    for algorithm in ("fedac-i", "fedavg", "scaffold"):
        path = tmp_path / f"{algorithm}.npz"
        assert path.exists(), done.stdout + done.stderr
        run = federation.simulated(algorithm, rounds=4, weighting="examples")
        with np.load(path) as mine:
            np.testing.assert_allclose(mine["losses"], run.loss[1:], rtol=1e-9)
            for sequence, values in run.state.items():
                both = np.concatenate([mine[f"{sequence}_{i}"].ravel() for i in range(2)])
                np.testing.assert_allclose(both, values, rtol=1e-9, atol=1e-12)
