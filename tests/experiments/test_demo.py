# SPDX-License-Identifier: Apache-2.0
"""The experiment behind `fedac demo`."""

from __future__ import annotations

import pandas as pd
import pytest

from fedac.experiments.reproduction import demo


@pytest.fixture
def tuned() -> pd.DataFrame:
    """Return tuned runs whose suboptimality grows with K and from seed to seed."""
    return pd.DataFrame(
        {
            "dataset": "a9a",
            "l2": 1e-3,
            "T": demo.GRID.steps,
            "federation": "",
            "algorithm": name,
            "M": 512,
            "K": K,
            "seed": seed,
            "eta": 0.5,
            "edge": "largest" if K == 256 else "",
            "suboptimality": seed * K * 1e-4,
        }
        for name in demo.GRID.several("algorithm")
        for K in demo.GRID.local_steps
        for seed in (1, 2, 6)
    )


def test_figure_has_the_median_and_the_range_of_every_algorithm(tuned: pd.DataFrame) -> None:
    drawing = demo.figure(tuned)
    assert drawing.get_supxlabel().startswith("Best step size at an edge of those tried in 4 of 36")
    (axes,) = drawing.axes
    assert axes.get_title() == "a9a, l2 = 0.001, 512 workers: median and range of 3 seeds"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["FedAc-I", "MB-AC-SGD", "MB-SGD", "FedAvg"]
    for line in axes.get_lines()[:4]:
        assert list(line.get_xdata()) == [4096 // K for K in demo.GRID.local_steps[::-1]]
        assert list(line.get_ydata()) == [2 * K * 1e-4 for K in demo.GRID.local_steps[::-1]]
    assert len(axes.collections) == 4
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1e-4, pytest.approx(6 * 256e-4))
