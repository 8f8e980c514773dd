"""Calibration: constants fitted to short runs, and what they recommend."""

import warnings

import numpy as np
import pytest

from fedac.data import load
from fedac.errors import InputError, StepSizeWarning
from fedac.experiments import calibration
from fedac.experiments.calibration import LEMMAS, Fit, calibrate
from fedac.experiments.published import published_runs
from fedac.objectives import LogisticRegression, optimum
from fedac.simulation import simulate
from fedac.theory.constants import Constants, estimate
from fedac.theory.terms import Bound

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def problem() -> tuple[LogisticRegression, Constants]:
    data = load("synthetic")
    F = LogisticRegression(data.X[:2000], data.y[:2000], l2=1e-2)
    return F, estimate(F)


@pytest.fixture(scope="module")
def found(problem) -> calibration.Calibration:
    F, constants = problem
    return calibrate(F, constants, M=64, T=256)


def test_every_algorithm_is_measured_at_every_promising_K(found) -> None:
    Ks = {m.K for m in found.measured}
    assert {(m.algorithm, m.K) for m in found.measured} == {(a, K) for a in LEMMAS for K in Ks}
    assert all(m.M == 64 and m.rounds * m.K == m.T == 256 for m in found.measured)


def test_measurements_can_be_repeated(problem, found) -> None:
    F, _ = problem
    m = found.recommended
    again = simulate(F, m.algorithm, M=m.M, K=m.K, T=m.T, eta=m.eta, seed=1)
    assert again.runs[0].trained_loss - again.optimum.value == pytest.approx(
        m.suboptimality, rel=1e-6
    )


def test_the_recommendation_is_the_best_at_few_rounds(found) -> None:
    best = min(m.suboptimality for m in found.measured)
    mine = found.recommended
    assert mine.suboptimality <= 2 * best
    assert all(m.suboptimality > 2 * best for m in found.measured if m.rounds < mine.rounds)
    rivals = [m for m in found.measured if m.rounds == mine.rounds]
    assert mine.suboptimality == min(m.suboptimality for m in rivals)


def test_fits_explain_the_runs_within_a_factor_of_four(found) -> None:
    # A root mean square of log2; the runs themselves span a factor of hundreds.
    assert all(m.fit.spread < 2 for m in found.measured)


def test_a_fit_finds_the_constants_that_made_its_runs(problem, monkeypatch) -> None:
    _, constants = problem
    truth = Fit(optimization=0.5, speed=2.0, variance=0.2, discrepancy=1e-3, spread=0.0)

    class Run:
        algorithm, status = "fedac-i", "ok"

        def __init__(self, eta: float, loss: float) -> None:
            self.eta, self.trained_loss = eta, loss

    class Probe:
        M = 64

        def __init__(self, K: int) -> None:
            self.schedule = type("Schedule", (), {"K": K, "T": 256})
            self.optimum = type("Optimum", (), {"value": 0.0})
            self.runs = []
            for eta in np.geomspace(1e-3, 1, 9) / constants.L:
                of = {"eta": eta, "M": 64, "K": K, "T": 256}
                bound, start = calibration._lemma("fedac-i", constants, **of)
                self.runs.append(Run(eta, truth(bound, start=start).total))

    fit = calibration._fit("fedac-i", [Probe(K) for K in (1, 4, 16, 64)], constants)
    assert fit.spread < 0.01
    for name in ("optimization", "speed", "variance", "discrepancy"):
        assert getattr(fit, name) == pytest.approx(getattr(truth, name), rel=0.05)


def test_a_target(problem) -> None:
    F, constants = problem
    found = calibrate(F, constants, M=64, target=5e-3, round_cost=100.0)
    assert found.recommended.suboptimality <= 5e-3
    mine = found.recommended
    reached = [m for m in found.measured if m.suboptimality <= 5e-3]
    assert mine.rounds * (100 + mine.K) == min(m.rounds * (100 + m.K) for m in reached)
    # Half the rounds were tried and are not enough.
    if mine.rounds > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepSizeWarning)
            half = simulate(
                F, mine.algorithm, M=mine.M, K=mine.K, T=mine.K * (mine.rounds // 2),
                eta=calibration._etas(constants), seed=1,
            )  # fmt: skip
        assert half.best is not None
        assert half.best.trained_loss - half.optimum.value > 5e-3


@pytest.mark.filterwarnings("ignore::fedac.errors.StepSizeWarning")
def test_the_start_and_diverged_runs_do_not_count(problem, found) -> None:
    F, constants = problem
    prediction = (found.recommended.fitted, found.recommended.fit)
    # From the optimum every step increases the loss, and a huge step size diverges.
    how = {"M": 16, "K": 4, "T": 64, "start": optimum(F).w}
    result = simulate(F, "fedavg", eta=[0.25 / constants.L, 1e25], **how)
    assert [run.status for run in result.runs] == ["ok", "diverged"]
    [best] = calibration._measured("fedavg", result, *prediction)
    assert (best.eta, best.edge) == (0.25 / constants.L, "smallest")
    assert best.suboptimality == result.runs[0].loss[1:].min() - result.optimum.value > 0
    diverged = simulate(F, "fedavg", eta=1e25, **how)
    assert calibration._measured("fedavg", diverged, *prediction) == []


def test_a_target_out_of_reach(problem) -> None:
    with pytest.raises(InputError, match="no algorithm is expected to reach"):
        calibrate(*problem, M=2, target=1e-12)


def test_too_many_workers_are_not_simulated(problem, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "MEASURE_QUERIES", 1e6)
    monkeypatch.setattr(calibration, "PROBE_QUERIES", 1e6)
    found = calibrate(*problem, M=10**6, T=64)
    ways = len({m.K for m in found.measured})
    lanes = len(LEMMAS) * len(calibration.ETAS)
    assert all(16 <= m.M <= max(31, 1e6 / (64 * lanes * ways)) for m in found.measured)


def test_a_fit_scales_each_term() -> None:
    bound = Bound(optimization=0.5, variance=1.0, discrepancy=1.0, accelerated_variance=1.0)
    fit = Fit(optimization=3.0, speed=3.0, variance=5.0, discrepancy=7.0, spread=0.0)
    scaled = fit(bound, start=1.0)
    assert (scaled.optimization, scaled.variance, scaled.discrepancy) == (0.375, 10.0, 7.0)


def test_a9a_against_the_published_runs(a9a) -> None:
    F = LogisticRegression(a9a.X, a9a.y, l2=1e-3)
    mine = calibrate(F, estimate(F), M=1024, T=4096).recommended
    table = published_runs()
    same = (table.dataset == "a9a") & (table.l2 == 1e-3) & (table.M == 1024) & (table.K == mine.K)
    assert same.any()
    assert mine.suboptimality <= 2 * table[same].suboptimality.min()
