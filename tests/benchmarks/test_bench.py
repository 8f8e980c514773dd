# SPDX-License-Identifier: Apache-2.0
"""The project's benchmark can be imported and run; its numbers are not tested."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from fedac.objectives import LogisticRegression
from fedac.simulation import simulate

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("bench")


def test_one_line_is_measured(bench, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    F = LogisticRegression(rng.standard_normal((60, 12)), rng.choice([-1.0, 1.0], 60), l2=1e-2)
    monkeypatch.setattr(bench, "_a9a", lambda: F)
    monkeypatch.setattr(bench, "M", 4)
    monkeypatch.setattr(bench, "REPEATS", 1)
    bench.main(["--json", "--only", "one step size over the reference engine"])
    out, err = capsys.readouterr()
    (line,) = json.loads(out)["lines"]
    assert line["ratio"] == line["ours"] / line["theirs"] > 0
    assert err == f"measuring: {line['what']}\n"
    bench.print_lines([bench.Line(**{k: v for k, v in line.items() if k != "passed"})])
    assert line["what"] in capsys.readouterr().out


def test_a_line_without_its_tools_is_left_out(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench, "NEEDS", {bench.OVER_JAX: lambda: False})
    assert list(bench.run(bench.OVER_JAX)) == []
    assert capsys.readouterr().err == ""


def test_the_lines_on_ray_can_be_imported(bench):
    pytest.importorskip("ray")
    assert importlib.import_module("bench_ray").measure_task


def test_the_jax_baseline_takes_the_steps_of_fedac(bench):
    pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    F = LogisticRegression(rng.standard_normal((60, 12)), rng.choice([-1.0, 1.0], 60), l2=1e-2)
    theirs = bench.jax_round(F, workers=8, local_steps=4, eta=0.5)()
    (ours,) = simulate(F, "fedac-i", M=8, K=4, T=4, eta=0.5, seed=1, start=np.ones(12)).runs
    for mine, other in zip(ours.state.values(), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4)
