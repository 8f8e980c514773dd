# SPDX-License-Identifier: Apache-2.0
"""Networks in real processes: the same runs as in the simulator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import small_network as small
import torch

pytestmark = pytest.mark.slow

ADAMW = [small.DILOCO, *(f"adamw+{state}+{small.SERVER}" for state in ("reset", "average"))]
RUNS = {
    f"{method}, {weighting}": {"method": method, "weighting": weighting}
    for method in (*small.METHODS, *ADAMW)
    for weighting in ("examples", "uniform")
}


@pytest.fixture(scope="module")
def in_processes(processes, tmp_path_factory):
    """Return what every rank ends with, by run; one client is one process."""
    path = tmp_path_factory.mktemp("network") / "problem.pt"
    X, y, owners = small.make_data()
    problem = {"X": X, "y": y, "owners": torch.from_numpy(owners), "module": small.make_module()}
    torch.save(problem, path)
    common = {"lr": small.ETA, "mu": small.MU, "local_steps": small.K, "rounds": small.ROUNDS}
    runs = [common | run for run in RUNS.values()]
    ended = processes("network_jobs:train", problem=str(path), runs=runs)
    for process in ended:
        assert process.code == 0, process.err
    by_run = zip(*(process.result for process in ended), strict=True)
    return dict(zip(RUNS, by_run, strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_processes_equal_the_simulator(in_processes, name: str) -> None:
    theirs = small.simulated(**RUNS[name])
    for rank in in_processes[name]:
        np.testing.assert_allclose(rank["outputs"], theirs.outputs, rtol=0, atol=1e-9)
        # PyTorch averages the moments of AdamW in place.
        state = np.stack([x for name, x in theirs.state.items() if name not in ("m", "v")])
        np.testing.assert_allclose(rank["state"], state, rtol=0, atol=1e-9)
    assert np.abs(theirs.outputs[-1] - theirs.outputs[0]).max() > 0.1  # it went somewhere


def test_methods_and_weights_matter(in_processes) -> None:
    ends = [ranks[0]["outputs"][-1] for ranks in in_processes.values()]
    for one, other in itertools.combinations(ends, 2):
        assert abs(one - other).max() > 1e-3
