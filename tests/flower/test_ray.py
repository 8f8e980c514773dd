"""Ray's simulation of 8 clients gives the simulator's trajectory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedac[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedac[flower]'")

# A process of its own: Ray stays in the process that started it. One Ray serves three runs.
SIMULATION = """
import runpy, sys
import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

conftest, out = sys.argv[1:]
federation = runpy.run_path(conftest)["Federation"]()
server = ServerApp()

@server.main()
def main(grid, context):
    for variant in ("I", "II", "fedavg"):
        result = federation.run(variant, 4, grid=grid, deadline=120.0)
        losses = [loss for _, loss in result.history.metric("loss")]
        np.savez(f"{out}/{variant}", losses=losses, **{
            name.replace("/", "_"): array for name, array in result.sequences.items()
        })

run_simulation(
    server, federation.app(), num_supernodes=8,
    backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
)
"""


def test_ray_is_the_simulator(federation, tmp_path):
    conftest = Path(__file__).with_name("conftest.py")
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION, conftest, tmp_path],
        timeout=600, check=False, capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    for variant, name in {"I": "fedac-i", "II": "fedac-ii", "fedavg": "fedavg"}.items():
        path = tmp_path / f"{variant}.npz"
        assert path.exists(), done.stdout + done.stderr
        run = federation.simulated(name, rounds=4)
        with np.load(path) as mine:
            np.testing.assert_allclose(mine["losses"], run.loss[1:], rtol=1e-9)
            for sequence, values in run.state.items():
                both = np.concatenate([mine[f"{sequence}_{i}"].ravel() for i in range(2)])
                np.testing.assert_allclose(both, values, rtol=1e-9, atol=1e-12)
