# SPDX-License-Identifier: Apache-2.0
"""A client starts fast: it loads neither SciPy nor Numba nor the simulator."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

CLIENT = """
import sys, tempfile
import numpy as np
from fedac import Decay
from fedac.flower import InProcessGrid, LocalStrategy, client_app
from flwr.app import ArrayRecord

class Mean:
    n_examples = 2
    def __init__(self, data): self.data = data
    def gradient(self, w, step): return [w[0] - self.data[step.rows(2)]]
    def evaluate(self, w): return {"loss": 0.0}

with tempfile.TemporaryDirectory() as folder:
    app = client_app(lambda context: np.array([1.0, 3.0]), Mean, memory_folder=folder)
    for name in ("fedac-i", "fedac-i+cv+adam"):
        strategy = LocalStrategy(name, eta=Decay(0.1, "1/r"), mu=0.1, local_steps=2)
        result = strategy.start(InProcessGrid(app, 2), ArrayRecord([np.zeros(1)]), num_rounds=2)
        assert [row.good for row in result.history.rounds] == [2, 2]
heavy = {"scipy", "numba", "pandas", "matplotlib", "torch", "sklearn"}
ours = {"fedac.simulation", "fedac.theory", "fedac.objectives", "fedac.data", "fedac.experiments"}
print(sorted((heavy | ours) & set(sys.modules)))
"""


def test_a_client_loads_no_heavy_modules():
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr
