"""The experiment behind `fedac demo`."""

from __future__ import annotations

import pandas as pd
import pytest

from fedac.experiments import demo


@pytest.fixture
def cells() -> pd.DataFrame:
    """Tuned cells in which suboptimality grows with K, faster from algorithm to algorithm."""
    return pd.DataFrame(
        {
            "algorithm": name,
            "K": K,
            "T": demo.GRID.steps,
            "eta": 0.5,
            "suboptimality": (place + 1) * K * 1e-4,
            "megabytes_per_worker": 1.0,
        }
        for place, name in enumerate(demo.GRID.algorithms)
        for K in demo.GRID.local_steps
    )


def test_fewest_rounds(cells: pd.DataFrame) -> None:
    # At most 1e-3: K=8 gives 8e-4; twice as bad, K=4 gives 8e-4; three times, K=2 gives 6e-4.
    largest = [demo.fewest_rounds(cells, name)["K"] for name in demo.GRID.algorithms]
    assert largest == [8, 4, 2, 2]
    cells["suboptimality"] += 1e-3
    assert demo.fewest_rounds(cells, "fedac-i") is None


def test_figure_has_a_curve_per_algorithm(cells: pd.DataFrame) -> None:
    (axes,) = demo.figure(cells, "a title").axes
    assert axes.get_title() == "a title"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["FedAc-I", "MB-AC-SGD", "MB-SGD", "FedAvg"]
    for line, name in zip(axes.get_lines(), demo.GRID.algorithms, strict=False):
        curve = cells[cells["algorithm"] == name]
        assert list(line.get_xdata()) == [4096 // K for K in demo.GRID.local_steps]
        assert list(line.get_ydata()) == list(curve["suboptimality"])
