# SPDX-License-Identifier: Apache-2.0
"""Different roads that must lead to the same place."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS, fedac
from fedac.federation import federation
from fedac.federation.federation import Federation
from fedac.federation.sampling import sample_batch
from fedac.federation.schedule import Span
from fedac.objectives import LogisticRegression, NoisyQuadratic, Objective
from fedac.simulation import Result, Schedule, simulate
from fedac.simulation.engines import reference
from fedac.simulation.problem import Lane

START = np.array([1.0, -2.0, 0.5, 3.0])
NOISY = NoisyQuadratic([1.0, 0.5, 0.2, 0.1], optimum=[0.0, 1.0, 2.0, 3.0], sigma=0.5)


def _logistic() -> LogisticRegression:
    rng = np.random.default_rng(8)
    X = rng.standard_normal((120, 4)) * (rng.random((120, 4)) < 0.7)
    y = np.where(rng.random(120) < 0.4, -1.0, 1.0)
    return LogisticRegression(sp.csr_array(X), y, l2=0.05)


@dataclass(frozen=True)
class Case:
    """An objective on an engine, and how well two roads agree there."""

    objective: Objective
    options: dict[str, str]
    rel: float


LOGISTIC = _logistic()
REFERENCE = {"engine": "reference"}
CASES = {
    "logistic": Case(LOGISTIC, REFERENCE, 1e-12),
    "logistic fast": Case(LOGISTIC, {"engine": "fast", "precision": "float64"}, 1e-10),
    "quadratic": Case(NOISY, REFERENCE, 1e-12),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
both_objectives = pytest.mark.parametrize(
    "objective", [LOGISTIC, NOISY], ids=["logistic", "quadratic"]
)
every_algorithm = pytest.mark.parametrize("name", [*ALGORITHMS, "general"])

ETA = 0.5
GENERAL = fedac(gamma=0.8, alpha=3.0, beta=5.0)


def trajectory(objective, algorithm, *, M=6, K=4, T=24, eta=ETA, **more) -> Result:
    if isinstance(K, Schedule):
        T = None
    options = REFERENCE
    if isinstance(objective, Case):
        objective, options = objective.objective, objective.options
    more = {"start": START, "seed": 11, "record_every": 1} | options | more
    return simulate(objective, algorithm, M=M, K=K, T=T, eta=eta, **more)


def assert_same_path(one: Result, other: Result, *, rel: float = 1e-12) -> None:
    for a, b in zip(one.runs, other.runs, strict=True):
        at = np.isin(a.steps, b.steps)
        assert at.sum() > 2
        assert a.loss[at] == pytest.approx(b.loss[np.isin(b.steps, a.steps)], rel=rel)
        assert a.w == pytest.approx(b.w, rel=rel, abs=rel)


def assert_identical(one: Result, other: Result) -> None:
    for a, b in zip(one.runs, other.runs, strict=True):
        assert a.hyperparameters == b.hyperparameters
        assert np.array_equal(a.steps, b.steps)
        assert np.array_equal(a.loss, b.loss)
        assert a.state.keys() == b.state.keys()
        assert all(np.array_equal(a.state[s], b.state[s]) for s in a.state)


def pick(name: str):
    return GENERAL if name == "general" else name


@every_case
def test_fedac_without_coupling_is_fedavg(case: Case) -> None:
    plain = trajectory(case, "fedavg")
    degenerate = trajectory(case, fedac(gamma=ETA, alpha=1.0, beta=1.0))
    assert_same_path(plain, degenerate, rel=case.rel)
    sequences = degenerate.runs[0].state
    assert sequences["w"] == pytest.approx(sequences["w_ag"], rel=case.rel)


@every_case
@pytest.mark.parametrize(
    ("local", "minibatch"), [("fedavg", "mb-sgd"), ("fedac-vanilla", "mb-ac-sgd")]
)
def test_one_local_step_is_a_minibatch_step(case: Case, local: str, minibatch: str) -> None:
    assert_same_path(trajectory(case, local, K=1), trajectory(case, minibatch, K=1))


@every_case
def test_fedac_i_that_always_synchronizes_is_vanilla(case: Case) -> None:
    one, other = (trajectory(case, name, K=1) for name in ("fedac-i", "fedac-vanilla"))
    assert_identical(one, other)
    # and it is not when it does not
    one, other = (trajectory(case, name, K=4) for name in ("fedac-i", "fedac-vanilla"))
    assert one.runs[0].final_loss != other.runs[0].final_loss


@every_case
@pytest.mark.parametrize("name", ["fedavg", "fedavg-weighted", "fedac-vanilla", "general"])
@pytest.mark.parametrize("K", [2, 8, 24])
def test_one_worker_is_sequential(case: Case, name: str, K: int) -> None:
    # These hyperparameters do not depend on K, so only synchronizations could differ.
    often = trajectory(case, pick(name), M=1, K=1).runs[0]
    seldom = trajectory(case, pick(name), M=1, K=K).runs[0]
    if case.options == REFERENCE:
        assert all(np.array_equal(often.state[s], seldom.state[s]) for s in often.state)
    shared = np.isin(often.steps, seldom.steps)
    assert often.loss[shared] == pytest.approx(seldom.loss, rel=case.rel)
    for s in often.state:
        assert often.state[s] == pytest.approx(seldom.state[s], rel=case.rel, abs=case.rel)


@every_algorithm
def test_without_noise_workers_are_copies(name: str) -> None:
    quiet = NoisyQuadratic(NOISY.curvatures, optimum=NOISY.optimum)
    assert_same_path(
        trajectory(quiet, pick(name), M=1), trajectory(quiet, pick(name), M=7), rel=1e-13
    )


@every_algorithm
def test_noise_makes_workers_differ(name: str) -> None:
    one, many = (trajectory(NOISY, pick(name), M=M).runs[0] for M in (1, 7))
    assert one.final_loss != pytest.approx(many.final_loss, rel=1e-3)


@every_case
@every_algorithm
def test_equal_gaps_are_a_regular_schedule(case: Case, name: str) -> None:
    regular = trajectory(case, pick(name), K=4, T=24)
    listed = trajectory(case, pick(name), K=Schedule.at([4, 8, 12, 16, 20, 24]))
    assert_identical(regular, listed)


@pytest.mark.parametrize("name", ["fedavg", "fedavg-weighted", "fedac-vanilla", "general"])
@pytest.mark.parametrize("K", [2, 8, 24, Schedule.at([1, 6, 7, 20, 24])])
def test_averaging_commutes_with_linear_updates(name: str, K: int | Schedule) -> None:
    # On a quadratic the average over workers obeys the recursion of one worker.
    always = trajectory(NOISY, pick(name), K=1)
    seldom = trajectory(NOISY, pick(name), K=K).runs[0]
    assert seldom.loss == pytest.approx(
        always.runs[0].loss[np.isin(always.runs[0].steps, seldom.steps)], rel=1e-12
    )
    assert seldom.w == pytest.approx(always.runs[0].w, rel=1e-12)


def test_averaging_does_not_commute_with_the_logistic_loss() -> None:
    one, other = (trajectory(LOGISTIC, GENERAL, K=K).runs[0] for K in (1, 24))
    assert one.final_loss != pytest.approx(other.final_loss, rel=1e-9)


@every_case
def test_the_weighted_average_is_the_weighted_average(case: Case) -> None:
    # eta mu = 1/2: rho_t = (3/4)^(T-t-1), so 27/64, 9/16, 3/4, 1 on w_0 .. w_3 at T = 4,
    # and their sum is 175/64. At T = 2: 3/4 and 1, sum 7/4.
    iterates = []
    trajectory(case, "fedavg", K=1, T=4, mu=1.0, callbacks=[lambda r: iterates.append(r.state[0])])
    w = np.array(iterates)
    four = trajectory(case, "fedavg-weighted", K=1, T=4, mu=1.0).runs[0]
    two = trajectory(case, "fedavg-weighted", K=1, T=2, mu=1.0).runs[0]
    weights = np.array([27, 36, 48, 64]) / 175
    assert four.w == pytest.approx(weights @ w[:4], rel=1e-13)
    assert two.w == pytest.approx(np.array([3, 4]) / 7 @ w[:2], rel=1e-13)
    assert four.loss[2] == pytest.approx(two.final_loss, rel=1e-13)
    assert four.loss[0] == case.objective.value(START)


@pytest.mark.parametrize("case", [CASES["logistic"], CASES["logistic fast"]])
def test_the_weighted_average_of_longer_rounds(case: Case) -> None:
    # Averages over workers at every step, also between synchronizations.
    hp = ALGORITHMS["fedavg"].couple(eta=0.5, mu=1.0, K=2)
    lane = Lane(ALGORITHMS["fedavg"], hp)
    averages = [START]
    reference.run_round(
        LOGISTIC,
        lane,
        (START,),
        Federation(M=6, n=LOGISTIC.n_samples, seed=11),
        Span(0, t=0, gap=4),
        on_step=lambda step, state: averages.append(state[0].mean(axis=0)),
    )
    run = trajectory(case, "fedavg-weighted", K=4, T=4, mu=1.0).runs[0]
    weights = np.array([27, 36, 48, 64]) / 175
    assert len(averages) == 5
    assert run.w == pytest.approx(weights @ np.array(averages[:4]), rel=1e-13)


def test_the_weighted_average_with_a_tiny_step_is_the_plain_one() -> None:
    run = trajectory(NOISY, "fedavg-weighted", K=1, T=2, eta=1e-9, mu=1e-9).runs[0]
    assert run.w == pytest.approx(START, rel=1e-8)


@every_case
def test_lanes_do_not_touch_each_other(case: Case) -> None:
    etas = [0.05, 0.2, 0.5]
    names = [*ALGORITHMS, GENERAL]
    together = trajectory(case, names, eta=etas)
    assert len(together.runs) == len(names) * len(etas)
    pairs = [(name, eta) for name in names for eta in etas]
    for (name, eta), run in zip(pairs, together.runs, strict=True):
        alone = trajectory(case, name, eta=eta).runs[0]
        assert (run.algorithm, run.eta) == (alone.algorithm, eta)
        assert run.loss == pytest.approx(alone.loss, rel=1e-12)
        for s in run.state:
            assert run.state[s] == pytest.approx(alone.state[s], rel=1e-12, abs=1e-12)
            if case.options == REFERENCE:
                assert np.array_equal(run.state[s], alone.state[s])


@both_objectives
@every_algorithm
def test_workers_may_swap_names(objective, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trajectory(objective, pick(name))
    swap = np.array([3, 5, 0, 1, 4, 2])
    monkeypatch.setattr(
        federation,
        "sample_batch",
        lambda seed, m, t, n, batch: sample_batch(seed, swap[m], t, n, batch),
    )
    assert_same_path(plain, trajectory(objective, pick(name)))


@every_case
@pytest.mark.parametrize("name", ["fedac-i", "mb-sgd"])
def test_the_seed_matters_and_nothing_else_is_random(case: Case, name: str) -> None:
    assert_identical(trajectory(case, name), trajectory(case, name))
    one, other = (trajectory(case, name, seed=seed).runs[0] for seed in (1, 2))
    assert one.final_loss != other.final_loss


@every_algorithm
@settings(deadline=None, max_examples=15)
@given(shift=st.lists(st.floats(-100, 100), min_size=4, max_size=4))
def test_moving_the_optimum_and_the_start_moves_the_path(name: str, shift: list[float]) -> None:
    here = trajectory(NOISY, pick(name), T=8).runs[0]
    there_objective = NoisyQuadratic(
        NOISY.curvatures, optimum=NOISY.optimum + shift, sigma=NOISY.sigma
    )
    there = trajectory(there_objective, pick(name), T=8, start=START + shift).runs[0]
    assert there.w == pytest.approx(here.w + shift, abs=1e-11)
    assert there.loss == pytest.approx(here.loss, rel=1e-10)


@every_algorithm
@settings(deadline=None, max_examples=15)
@given(scale=st.floats(1e-3, 1e3))
def test_longer_lengths_lengthen_the_path(name: str, scale: float) -> None:
    here = trajectory(NOISY, pick(name), T=8).runs[0]
    larger = NoisyQuadratic(
        NOISY.curvatures, optimum=NOISY.optimum * scale, sigma=NOISY.sigma * scale
    )
    there = trajectory(larger, pick(name), T=8, start=START * scale).runs[0]
    assert there.w == pytest.approx(here.w * scale, rel=1e-10)
    assert there.loss == pytest.approx(here.loss * scale * scale, rel=1e-10)


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(deadline=None, max_examples=15)
@given(scale=st.floats(1e-3, 1e3))
def test_steeper_objectives_with_shorter_steps_give_the_same_path(name: str, scale: float) -> None:
    here = trajectory(NOISY, name, T=8).runs[0]
    steeper = NoisyQuadratic(
        NOISY.curvatures * scale, optimum=NOISY.optimum, sigma=NOISY.sigma * scale
    )
    there = trajectory(steeper, name, T=8, eta=ETA / scale).runs[0]
    assert there.w == pytest.approx(here.w, rel=1e-10)
    assert there.loss == pytest.approx(here.loss * scale, rel=1e-10)


def test_on_step_sees_every_worker_at_every_step() -> None:
    seen = []
    lane = Lane(ALGORITHMS["fedac-i"], ALGORITHMS["fedac-i"].couple(eta=0.5, mu=0.1, K=3))
    after = reference.run_round(
        NOISY,
        lane,
        (START, START),
        Federation(M=5, n=NOISY.n_samples, seed=0),
        Span(2, t=6, gap=3),
        on_step=lambda step, state: seen.append((step, state)),
    )
    assert [step for step, _ in seen] == [7, 8, 9]
    assert all(sequence.shape == (5, 4) for _, state in seen for sequence in state)
    for sequence, workers in zip(after, seen[-1][1], strict=True):
        assert np.array_equal(sequence, workers.mean(axis=0))
