# SPDX-License-Identifier: Apache-2.0
"""Small trajectories, kept in tests/golden/*.json, that must not change by accident.

After a change that is meant to change them, write them again and read the difference:

    FEDAC_REGENERATE_GOLDEN=1 pytest tests/engine/test_golden.py && git diff tests/golden
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedac.algorithms import ALGORITHMS
from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

FOLDER = Path(__file__).parent.parent / "golden"


def _problem() -> LogisticRegression:
    # Small whole numbers, so that no library's random normal numbers are part of the record.
    rng = np.random.default_rng(2020)
    X = rng.integers(-2, 3, size=(30, 6)).astype(float)
    y = np.where(rng.integers(0, 2, size=30) == 1, 1.0, -1.0)
    return LogisticRegression(sp.csr_array(X), y, l2=0.01)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_trajectory(name: str) -> None:
    result = simulate(
        _problem(),
        name,
        M=5,
        K=4,
        T=32,
        eta=[0.05, 0.25],
        start=np.ones(6),
        seed=7,
        record_every=4,
        engine="reference",
    )
    runs = [
        {"eta": run.eta, "steps": run.steps.tolist(), "losses": run.loss.tolist()}
        for run in result.runs
    ]
    path = FOLDER / f"{name}.json"
    if os.environ.get("FEDAC_REGENERATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(json.dumps(runs, indent=1) + "\n")
    golden = json.loads(path.read_text())
    assert len(golden) == len(runs)
    for run, kept in zip(runs, golden, strict=True):
        assert run["eta"] == kept["eta"]
        assert run["steps"] == kept["steps"]
        assert run["losses"] == pytest.approx(kept["losses"], rel=1e-12, abs=0)


def test_there_is_a_file_for_every_algorithm_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(ALGORITHMS)
