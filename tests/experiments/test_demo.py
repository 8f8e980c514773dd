"""The experiment behind `fedac demo`."""

from __future__ import annotations

import pytest

from fedac.data import synthetic
from fedac.experiments import demo
from fedac.objectives import LogisticRegression


@pytest.fixture
def cells(monkeypatch):
    for name, value in {"M": 16, "T": 32, "KS": (1, 4), "ETAS": (0.2, 0.5)}.items():
        monkeypatch.setattr(demo, name, value)
    data = synthetic(n_samples=200, n_features=20)
    made = []
    cells = demo.run(LogisticRegression(data.X, data.y, l2=1e-2), made.append)
    assert sum(made) == demo.queries()
    return cells


def test_a_cell_for_every_algorithm_and_k(cells):
    assert [(cell.algorithm, cell.K) for cell in cells] == [
        (name, K) for K in demo.KS for name in demo.ALGORITHMS
    ]
    for cell in cells:
        assert cell.eta in demo.ETAS
        assert cell.rounds == 32 // cell.K
        assert cell.suboptimality > 0
    # At K=1 a local step on M samples is a minibatch step on M samples.
    at_one = {cell.algorithm: cell for cell in cells if cell.K == 1}
    assert at_one["fedavg"].suboptimality == pytest.approx(at_one["mb-sgd"].suboptimality)


def test_fewest_rounds(cells, monkeypatch):
    mine = {cell.K: cell for cell in cells if cell.algorithm == "fedac-i"}
    worst, best = sorted((mine[1], mine[4]), key=lambda cell: -cell.suboptimality)
    monkeypatch.setattr(demo, "TARGET", worst.suboptimality)
    assert demo.fewest_rounds(cells, "fedac-i") is mine[4]
    monkeypatch.setattr(demo, "TARGET", best.suboptimality)
    assert demo.fewest_rounds(cells, "fedac-i") is best
    monkeypatch.setattr(demo, "TARGET", 0.0)
    assert demo.fewest_rounds(cells, "fedac-i") is None


def test_figure_has_a_curve_per_algorithm(cells):
    (axes,) = demo.figure(cells, "a title").axes
    assert axes.get_title() == "a title"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["FedAc-I", "MB-AC-SGD", "MB-SGD", "FedAvg"]
    for line, name in zip(axes.get_lines(), demo.ALGORITHMS, strict=False):
        curve = [cell for cell in cells if cell.algorithm == name]
        assert list(line.get_xdata()) == [cell.rounds for cell in curve]
        assert list(line.get_ydata()) == [cell.suboptimality for cell in curve]
