# SPDX-License-Identifier: Apache-2.0
"""The engine protocol: engines are tried in order, and an added one costs one line in the list."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedac import NoisyQuadratic, simulate
from fedac.errors import InputError, SlowEngineWarning
from fedac.simulation import engines
from fedac.simulation.problem import Snapshot

F = NoisyQuadratic([1.0, 0.25], sigma=0.1)
OPTIONS = {"M": 2, "K": 2, "T": 8, "eta": 0.5}


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An added engine that never moves; it is tried first and records the problems it is asked."""
    asked: list[str] = []

    def run(problem):
        for step in sorted(problem.records):
            yield [
                Snapshot(index, step, lane.algorithm.start(problem.start))
                for index, lane in enumerate(problem.lanes)
            ]

    def refuse(problem):
        asked.append(problem.precision)
        return engine.reason

    engine = SimpleNamespace(refuse=refuse, run=run, reason=None, asked=asked)
    monkeypatch.setitem(sys.modules, "fedac.simulation.engines.frozen", engine)
    monkeypatch.setattr(engines, "ENGINES", (("frozen", "frozen"), *engines.ENGINES))
    return engine


def test_the_first_engine_that_does_not_refuse_runs(frozen) -> None:
    result = simulate(F, ["fedavg", "fedac-i"], precision="float64", **OPTIONS)
    assert result.engine == "frozen"
    assert frozen.asked == ["float64"]
    for run in result.runs:
        assert np.ptp(run.loss) == 0
        assert run.loss[0] == F.value(run.w)


def test_a_refusal_passes_the_problem_on_and_the_warning_has_the_reason(frozen) -> None:
    frozen.reason = "nothing may move"
    with pytest.warns(SlowEngineWarning, match="nothing may move"):
        assert simulate(F, "fedavg", **OPTIONS).engine == "reference"


def test_a_named_engine_that_refuses_is_an_error(frozen) -> None:
    frozen.reason = "nothing may move"
    with pytest.raises(InputError, match="nothing may move; use engine='reference'"):
        simulate(F, "fedavg", engine="frozen", **OPTIONS)
    frozen.asked.clear()
    assert simulate(F, "fedavg", engine="reference", **OPTIONS).engine == "reference"
    assert not frozen.asked
