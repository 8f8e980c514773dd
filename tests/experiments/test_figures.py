# SPDX-License-Identifier: Apache-2.0
"""What is drawn: panels, curves, markers, guides, words; and the bytes that are saved."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from fedac.experiments.reproduction import figures
from fedac.experiments.reproduction.figures import FIGURES
from fedac.experiments.reproduction.published import F_STAR
from fedac.experiments.summary import A9A
from fedac.plotting import save_figure

SMALL = {"workers": (4, 64, 1024), "local_steps": (1, 8, 64)}
OVER_M = replace(FIGURES["figure-1"], **SMALL)
OVER_K = replace(FIGURES["figure-3"], **SMALL, algorithms=("fedac-i", "fedavg"))


@pytest.fixture
def tuned():
    """Give a made-up suboptimality of every cell, K/M."""
    rows = [
        {"dataset": "a9a", "l2": 1e-3, "algorithm": name, "M": M, "K": K, "T": 4096, "seed": 1,
         "federation": "",
         "eta": 0.1, "edge": "", "suboptimality": K / M, "f_star": F_STAR["a9a", 1e-3],
         "data_hash": A9A[1e-3], "n_samples": 32_561, "n_features": 123}
        for name, M, K in product(OVER_M.algorithms, OVER_M.workers, OVER_M.local_steps)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def lines(ax, kind):
    """Return the lines of one kind: curve, published or guide."""

    def kind_of(line):
        return {"-": "curve", "None": "published", "--": "guide"}[line.get_linestyle()]

    return [line for line in ax.get_lines() if kind_of(line) == kind]


def words(ax):
    return [text.get_text() for text in ax.texts]


def legend(drawing):
    (shared,) = drawing.legends
    return [text.get_text() for text in shared.get_texts()]


def test_speedup_over_workers(tuned):
    drawing = figures.draw(tuned, OVER_M)
    assert [ax.get_title() for ax in drawing.axes] == ["K = 1", "K = 8", "K = 64"]
    for ax, K in zip(drawing.axes, OVER_M.local_steps, strict=True):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert [len(lines(ax, kind)) for kind in ("curve", "published", "guide")] == [4, 4, 1]
        for curve in lines(ax, "curve"):
            assert list(curve.get_xdata()) == [4, 64, 1024]
            assert list(curve.get_ydata()) == [K / 4, K / 64, K / 1024]
        (guide,) = lines(ax, "guide")
        assert list(guide.get_xdata() * guide.get_ydata()) == [K, K]  # slope -1
        assert all(line.get_markerfacecolor() == "none" for line in lines(ax, "published"))
        assert words(ax) == []
    assert drawing.get_suptitle() == OVER_M.title
    assert [label.get_text() for label in drawing.axes[0].get_xticklabels()] == ["4", "64", "1024"]
    names = ["FedAc-I", "MB-AC-SGD", "MB-SGD", "FedAvg"]
    assert legend(drawing) == [*names, "published", "linear speedup"]


def test_dependence_on_local_steps(tuned):
    drawing = figures.draw(tuned, OVER_K)
    assert [ax.get_title() for ax in drawing.axes] == ["M = 1024"]
    (ax,) = drawing.axes
    assert [len(lines(ax, kind)) for kind in ("curve", "published", "guide")] == [2, 2, 0]
    assert list(lines(ax, "curve")[0].get_ydata()) == [K / 1024 for K in OVER_K.local_steps]
    assert legend(drawing) == ["FedAc-I", "FedAvg", "published"]


def test_the_published_value(tuned):
    ax = figures.draw(tuned, OVER_K).axes[0]
    at_64 = lines(ax, "published")[0].get_ydata()[-1]
    assert at_64 == pytest.approx(3.9431e-4, rel=1e-4)


def test_no_published_markers_for_other_data(tuned):
    figure = replace(OVER_M, dataset="mine", stands_in_for="a9a")
    drawing = figures.draw(tuned.assign(dataset="mine", data_hash="0"), figure)
    assert all(len(lines(ax, "curve")) == 4 for ax in drawing.axes)
    assert all(not lines(ax, "published") for ax in drawing.axes)
    assert "published" not in legend(drawing)
    assert "mine in place of a9a" in drawing.get_suptitle()


def test_seeds_make_a_band(tuned):
    seeds = [tuned.assign(seed=s, suboptimality=tuned["suboptimality"] * s) for s in (1, 2, 4)]
    ax = figures.draw(pd.concat(seeds), OVER_K).axes[0]
    assert list(lines(ax, "curve")[0].get_ydata()) == [2 * K / 1024 for K in OVER_K.local_steps]
    assert len(ax.collections) == 2
    ys = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (ys.min(), ys.max()) == (1 / 1024, 4 * 64 / 1024)
    assert not figures.draw(tuned, OVER_K).axes[0].collections
    (guide,) = lines(figures.draw(pd.concat(seeds), OVER_M).axes[0], "guide")
    assert guide.get_ydata()[0] == 2 / 4  # through the median


def test_a_figure_says_what_its_band_is(tuned):
    seeds = pd.concat(
        tuned.assign(seed=s, suboptimality=tuned["suboptimality"] * s) for s in (1, 3)
    )

    def drawn(band):
        drawing = figures.draw(seeds, OVER_K, band)
        ax = drawing.axes[0]
        ys = ax.collections[0].get_paths()[0].vertices[:, 1]
        return drawing.legends[0].get_title().get_text(), ys.max() / (64 / 1024)

    assert drawn("range") == ("Lines: median of 2 seeds; bands: range.", 3)
    assert drawn("quartiles") == ("Lines: median of 2 seeds; bands: quartiles.", 2.5)
    # The mean is 2, the deviations are 1, and t(0.975; 1) = 12.706205.
    note, high = drawn("confidence")
    assert note == "Lines: mean of 2 seeds; bands: 95% confidence interval."
    assert high == pytest.approx(2 + 12.706204736432095)


def test_panels_say_what_is_missing(tuned):
    some = tuned[(tuned["K"] == 1) | ((tuned["K"] == 8) & (tuned["M"] == 4))]
    drawing = figures.draw(some, OVER_M)
    assert [words(ax) for ax in drawing.axes] == [[], ["8 of 12 cells missing"], ["no runs"]]
    nothing = figures.draw(tuned[:0], OVER_M)
    assert [words(ax) for ax in nothing.axes] == [["no runs"]] * 3


def test_cells_whose_runs_diverged_are_counted(tuned):
    tuned.loc[(tuned["K"] == 8) & (tuned["M"] == 4), "suboptimality"] = np.inf
    drawing = figures.draw(tuned, OVER_M)
    assert [words(ax) for ax in drawing.axes] == [[], ["4 of 12 cells diverged"], []]
    assert list(lines(drawing.axes[1], "curve")[0].get_xdata()) == [64, 1024]
    drawing.draw_without_rendering()  # what is left fits on the axes


def test_step_sizes_at_an_edge_are_counted(tuned):
    def note():
        return figures.draw(tuned, OVER_K).legends[0].get_title().get_text()

    assert note() == ""
    tuned.loc[tuned["M"] == 1024, "edge"] = "largest"
    assert note() == ("Best step size at an edge of those tried in 6 of 6 cells: the largest in 6.")


def test_what_is_not_positive_leaves_the_axes_alone(tuned):
    tuned.loc[0, "suboptimality"] = -1e-13
    low, high = figures.draw(tuned, OVER_M).axes[0].get_ylim()
    assert 0 < low < high
    assert np.isfinite(high)


@pytest.mark.slow
def test_the_same_bytes_each_time(tuned, tmp_path):
    made = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        folder.mkdir()
        paths = save_figure(figures.draw(tuned, OVER_M), folder, "figure-1")
        assert [path.name for path in paths] == ["figure-1.png", "figure-1.pdf"]
        made.append([path.read_bytes() for path in paths])
    assert made[0] == made[1]
    png, pdf = made[0]
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf
