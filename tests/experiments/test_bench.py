"""The benchmark announces what it measures, and nothing else."""

from __future__ import annotations

import pytest

from fedac.experiments import bench


@pytest.fixture
def announced(monkeypatch):
    """Give a function that runs the benchmark without measuring and returns what it announces."""

    def line(what):
        return bench.Line(what, 2.0, 1.0, "M steps/s", 2.0, None)

    monkeypatch.setattr(bench, "LINES", dict.fromkeys(bench.LINES, line))

    def announced():
        names = []
        assert [line.what for line in bench.run(names.append)] == names
        return names

    return announced


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", [bench.OVER_JAX, bench.PEAK_MEMORY])
def test_a_line_that_cannot_be_measured_is_not_announced(announced, monkeypatch, name, there):
    everything = {line: lambda: True for line in bench.NEEDS}
    monkeypatch.setattr(bench, "NEEDS", everything | {name: lambda: there})
    assert announced() == [line for line in bench.LINES if there or line != name]


def test_jax_is_looked_for(announced, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bench.OVER_JAX not in announced()


def test_every_need_is_that_of_a_line():
    assert bench.NEEDS.keys() <= bench.LINES.keys()


def test_the_jax_baseline_takes_the_steps_of_fedac():
    pytest.importorskip("jax")
    import numpy as np

    from fedac.experiments.jax_baseline import make_round
    from fedac.objectives import LogisticRegression
    from fedac.simulation import simulate

    rng = np.random.default_rng(0)
    F = LogisticRegression(rng.standard_normal((60, 12)), rng.choice([-1.0, 1.0], 60), l2=1e-2)
    theirs = make_round(F, workers=8, local_steps=4, eta=0.5)()
    (ours,) = simulate(F, "fedac-i", M=8, K=4, T=4, eta=0.5, seed=1, start=np.ones(12)).runs
    for mine, other in zip(ours.state.values(), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4)
