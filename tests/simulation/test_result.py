# SPDX-License-Identifier: Apache-2.0
import re
from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedac.algorithms import ALGORITHMS, fedac
from fedac.errors import InputError, StepSizeWarning
from fedac.federation.link import Link
from fedac.objectives import LogisticRegression, NoisyQuadratic
from fedac.plotting import style
from fedac.simulation import Result, Schedule, simulate

F = NoisyQuadratic([1.0, 0.25], sigma=0.1)


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    with mpl.rc_context():
        plt.switch_backend("Agg")
        yield
        plt.close("all")


def test_best_is_the_run_with_the_smallest_trained_loss() -> None:
    result = simulate(F, ["fedavg", "fedac-i"], M=8, K=4, T=64, eta=[0.01, 0.5], seed=1)
    losses = {(run.algorithm, run.eta): run.loss[1:].min() for run in result.runs}
    best = result.best
    assert best is not None
    assert (best.algorithm, best.eta) == min(losses, key=losses.__getitem__)
    assert best.trained_loss == best.best_loss == min(losses.values())
    assert best.trained_loss < max(losses.values())


def test_the_start_point_is_no_score() -> None:
    with pytest.warns(StepSizeWarning):
        (run,) = simulate(F, "fedavg", M=1, K=1, T=8, eta=2.5, start=[1.0, 1.0]).runs
    assert run.best_loss == run.loss[0]
    assert run.trained_loss == run.loss[1:].min() > run.best_loss
    assert run.final_loss == run.loss[-1] > run.best_loss


def test_a_diverged_run_is_never_the_best() -> None:
    # The diverged runs start lower than the other ends: it stays near the start.
    quiet = NoisyQuadratic([1.0, 0.25])
    more = {"M": 1, "K": 1, "T": 64, "start": [1.0, 1.0]}
    with pytest.warns(StepSizeWarning):
        all_diverged = simulate(quiet, "fedavg", eta=[3.0, 4.0], **more)
    assert all_diverged.best is None
    with pytest.warns(StepSizeWarning):
        some = simulate(quiet, "fedavg", eta=[3.0, 1e-9, 4.0], **more)
    assert some.best is some.runs[1]


def test_the_best_run_of_each_method() -> None:
    etas = {"fedavg": [0.01, 0.5, 1e6], "fedac-i": [0.5, 0.1]}
    with pytest.warns(StepSizeWarning):
        result = simulate(F, ["fedavg", "fedac-i"], M=8, K=4, T=64, eta=etas, seed=1)
    best = result.best_by_method()
    assert set(best) == {"fedavg", "fedac-i"}
    assert next(iter(best.values())) is result.best
    for name, run in best.items():
        mine = [run for run in result.runs if run.algorithm == name and run.status == "ok"]
        assert run is min(mine, key=lambda run: run.trained_loss)
    etas = {"fedavg": 50.0, "mb-sgd": 0.1}
    with pytest.warns(StepSizeWarning):
        lost = simulate(F, ["fedavg", "mb-sgd"], M=1, K=1, T=64, eta=etas)
    assert list(lost.best_by_method()) == ["mb-sgd"]


def test_notebooks_show_a_table_of_runs() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    y = np.where(X[:, 0] > 0, "ill", "well")
    more = {"M": 2, "K": 4, "T": 16, "eta": [0.5, 1e9], "engine": "reference"}
    with pytest.warns(StepSizeWarning):
        result = simulate(LogisticRegression(X, y, l2=0.1), "fedavg", test=(X, y), **more)
    # F* is not computed just to be shown.
    heads, run, diverged = _cells(result._repr_html_())
    assert heads[:4] == ["algorithm", "eta", "status", "final loss"]
    assert heads[4:] == [f"test {name}" for name in result.runs[0].metrics]
    assert run[:3] == ["fedavg", "0.5", "ok"]
    assert float(run[3]) == pytest.approx(result.runs[0].final_loss, rel=1e-5)
    assert float(run[heads.index("test accuracy")]) == result.runs[0].test_accuracy[-1]
    assert diverged[:4] == ["fedavg", "1e+09", "diverged", "-"]
    f_star = result.f_star
    heads, run, _ = _cells(result._repr_html_())
    gap = result.runs[0].final_loss - f_star
    assert float(run[heads.index("suboptimality")]) == pytest.approx(gap, rel=1e-5)


def _cells(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    return [re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row) for row in rows]


def test_suboptimality_is_above_the_optimum() -> None:
    shifted = NoisyQuadratic([1.0, 0.25], optimum=[1.0, 2.0])
    result = simulate(shifted, "fedavg", M=1, K=1, T=2, eta=0.5, start=[1.0, 4.0])
    # F* = 0; the second coordinate is 4 - 2 = 2, then 2 * 7/8, then 2 * 49/64
    # F = 1/8 * 4, 1/8 * 49/16, 1/8 * (49/32)^2
    assert result.suboptimality(result.runs[0]) == pytest.approx(
        [1 / 2, 49 / 128, 2401 / 8192], rel=1e-12
    )
    assert result.optimum is result.optimum


def test_frame() -> None:
    result = simulate(F, ["fedac-i", "mb-sgd"], M=2, K=4, T=16, eta=[0.5, 0.25], record_every=8)
    frame = result.to_frame()
    assert list(frame.columns) == [
        "algorithm",
        "eta",
        "status",
        "step",
        "round",
        "loss",
        "suboptimality",
    ]
    assert len(frame) == 2 * 2 * 3
    assert frame["step"].tolist() == [0, 8, 16] * 4
    assert frame["round"].tolist() == [0, 2, 4] * 4
    assert frame["algorithm"].tolist() == ["fedac-i"] * 6 + ["mb-sgd"] * 6
    assert frame["eta"].tolist() == ([0.5] * 3 + [0.25] * 3) * 2
    assert set(frame["status"]) == {"ok"}
    assert np.array_equal(frame["loss"], np.concatenate([run.loss for run in result.runs]))
    assert np.array_equal(frame["suboptimality"], frame["loss"] - result.optimum.value)


def test_rounds_of_an_irregular_schedule() -> None:
    # Synchronizations after 1, 4, 6 and 12 steps.
    result = simulate(F, "fedavg", M=2, K=Schedule.at([1, 4, 6, 12]), eta=0.5, record_every=1)
    frame = result.to_frame()
    assert frame["step"].tolist() == [0, 1, 4, 6, 12]
    assert frame["round"].tolist() == [0, 1, 2, 3, 4]


def test_megabytes_per_worker() -> None:
    # d = 2 numbers of 4 bytes, 16 rounds: 128 bytes for every vector sent
    result = simulate(F, list(ALGORITHMS), M=2, K=4, T=64, eta=0.1)
    sent = {run.algorithm: run.megabytes_per_worker for run in result.runs}
    assert sent["fedac-i"] == sent["fedac-ii"] == pytest.approx(256e-6)
    assert sent["fedavg"] == sent["mb-sgd"] == sent["mb-ac-sgd"] == pytest.approx(128e-6)


def test_runs_carry_their_state() -> None:
    (run,) = simulate(F, "fedac-i", M=2, K=2, T=4, eta=0.25).runs
    assert list(run.state) == ["w_ag", "w"]
    assert np.array_equal(run.w, run.state["w_ag"])
    assert F.value(run.w) == run.final_loss
    assert (run.label, run.hyperparameters.eta) == ("FedAc-I", 0.25)


def test_result_says_what_was_run() -> None:
    result = simulate(F, "fedac-i", M=3, K=2, T=4, eta=0.25, seed=9)
    assert (result.M, result.seed, result.schedule) == (3, 9, Schedule.every(2, steps=4))
    assert result.objective is F
    assert result.gradient_queries == 12
    assert result.seconds > 0


def test_plot_draws_a_line_per_run() -> None:
    result = simulate(F, ["fedac-i", "fedavg"], M=2, K=4, T=16, eta=[0.5, 0.25], record_every=4)
    ax = result.plot()
    assert len(ax.lines) == 4
    assert [line.get_label() for line in ax.lines] == [
        "FedAc-I, eta=0.5",
        "FedAc-I, eta=0.25",
        "FedAvg, eta=0.5",
        "FedAvg, eta=0.25",
    ]
    for line, run in zip(ax.lines, result.runs, strict=True):
        assert line.get_xdata().tolist() == [0, 1, 2, 3, 4]
        assert np.array_equal(line.get_ydata(), result.suboptimality(run))
    assert ax.get_yscale() == "log"
    assert ax.get_xlabel() == "communication rounds"
    assert ax.get_legend() is not None
    ax.figure.canvas.draw()


def test_plot_against_megabytes_and_seconds() -> None:
    result = simulate(F, "fedac-i", M=2, K=4, T=16, eta=0.5, record_every=4)
    (run,) = result.runs
    link = Link(latency=1.0, gradient=0.25)
    for against, costs in (
        ("megabytes", result.megabytes_of(run)),
        ("seconds", np.array([0.0, 2.0, 4.0, 6.0, 8.0])),
    ):
        ax = result.plot(against=against, link=link)
        assert ax.lines[0].get_xdata().tolist() == costs.tolist()
        assert ax.get_xlabel() == against
    with pytest.raises(InputError, match="unknown axis 'hours'"):
        result.plot(against="hours")


def test_plot_into_axes_of_ones_own() -> None:
    mine = plt.figure().add_subplot()
    result = simulate(F, "fedac-i", M=2, K=4, T=16, eta=0.5)
    assert result.plot(mine) is mine
    assert len(mine.lines) == 1
    assert len(plt.get_fignums()) == 1


def test_plot_keeps_runs_of_one_name_apart() -> None:
    two = [fedac(gamma=gamma, alpha=2.0, beta=3.0) for gamma in (0.1, 0.2)]
    result = simulate(F, two, M=2, K=4, T=16, eta=0.1)
    assert len(result.plot().lines) == 2


def test_plot_of_a_run_that_starts_at_the_optimum() -> None:
    quiet = NoisyQuadratic([1.0, 0.25])
    result = simulate(quiet, "fedavg", M=1, K=1, T=4, eta=0.5, start=[0.0, 0.0])
    result.plot().figure.canvas.draw()


def test_printed_results_are_short() -> None:
    etas = np.geomspace(0.01, 0.5, 13)
    result = simulate(F, ["fedac-i", "fedavg"], M=2, K=4, T=64, eta=etas, seed=7, record_every=1)
    text = str(result)
    assert len(text.splitlines()) == 3
    assert max(map(len, text.splitlines())) < 100
    for part in (
        "26 runs (0 diverged)",
        "reference engine",
        "M=2 K=4 T=64 seed=7",
        "best: <Run fed",
    ):
        assert part in text
    assert len(repr(result.runs[0]).splitlines()) == 1
    with pytest.warns(StepSizeWarning):
        lost = simulate(F, "fedavg", M=1, K=1, T=64, eta=50.0)
    assert "1 run (1 diverged)" in str(lost)
    assert "best: none" in str(lost)


@pytest.fixture
def without_minimum() -> Result:
    """Separable data without l2: the loss falls for ever."""
    separable = LogisticRegression([[1.0], [-1.0]], [1.0, -1.0], l2=0.0)
    return simulate(separable, "fedavg", M=2, K=2, T=8, eta=0.5, engine="reference")


def test_an_objective_without_a_minimum_has_no_suboptimality(without_minimum: Result) -> None:
    frame = without_minimum.to_frame()
    assert frame["suboptimality"].isna().all()
    assert frame["loss"].tolist() == without_minimum.runs[0].loss.tolist()


def test_without_a_minimum_losses_are_drawn(without_minimum: Result) -> None:
    ax = without_minimum.plot()
    assert ax.lines[0].get_ydata().tolist() == without_minimum.runs[0].loss.tolist()
    assert ax.get_ylabel() == "loss (the objective has no minimum F*)"
    ax.figure.canvas.draw()


def test_lines_have_the_look_of_their_algorithm() -> None:
    names = ["fedac-i", "fedavg", "mb-sgd"]
    ax = simulate(F, names, M=2, K=4, T=16, eta=0.25).plot()
    for line, name in zip(ax.lines, names, strict=True):
        assert (line.get_color(), line.get_marker()) == (style(name).colour, style(name).marker)
