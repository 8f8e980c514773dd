# SPDX-License-Identifier: Apache-2.0
"""Potentials and discrepancies along a run, against numbers computed by hand."""

from math import exp, sqrt

import numpy as np
import pytest

from fedac import fedac
from fedac.errors import InputError
from fedac.federation.sampling import sample_index
from fedac.objectives import LeastSquares, LogisticRegression, NoisyQuadratic
from fedac.simulation import simulate
from fedac.theory import lemmas
from fedac.theory.constants import phi, psi
from fedac.theory.tracing import PotentialRecorder, Trace, trace

NAMES = ("fedac-i", "fedac-ii", "fedavg")
NOISY = NoisyQuadratic([1.0, 0.5, 0.2, 0.1], optimum=[0.0, 1.0, 2.0, 3.0], sigma=0.5)
START = np.array([1.0, -2.0, 0.5, 3.0])


def _logistic() -> LogisticRegression:
    rng = np.random.default_rng(8)
    X = rng.standard_normal((60, 4))
    return LogisticRegression(X, np.where(rng.random(60) < 0.4, -1.0, 1.0), l2=0.05)


LOGISTIC = _logistic()
both_objectives = pytest.mark.parametrize(
    "objective", [LOGISTIC, NOISY], ids=["logistic", "quadratic"]
)


def seed_that_draws(rows: list[list[int]]) -> int:
    """Find a seed with which worker m draws rows[t][m] of two at step t."""
    steps = np.arange(len(rows))[:, None]
    workers = np.arange(len(rows[0]))
    return next(
        seed
        for seed in range(1000)
        if (sample_index(seed, workers, steps, 2) == np.array(rows)).all()
    )


def test_without_noise_workers_agree() -> None:
    # F = (w - 1)^2 from w_0 = 3; gamma = sqrt(1/4/(1/2 2)) = 1/2, alpha = 4, beta = 5.
    # Step 1: gradient 4, w_ag = 3 - 1, w = 3 - 2.
    # Step 2: w_md = 1/5 + 4/5 2 = 9/5, gradient 8/5, w_ag = 9/5 - 2/5, w = 3/4 + 9/20 - 4/5.
    F = NoisyQuadratic([2.0], optimum=1.0)
    traced = trace(F, "fedac-i", M=2, K=2, T=2, eta=1 / 4, mu=1 / 2, start=[3.0])
    assert traced.steps.tolist() == [0, 1, 2]
    # F(w_ag) = 4, 1, 4/25 plus mu/2 or mu/6 times (w - 1)^2 = 4, 0, 9/25
    assert traced.psi == pytest.approx([4 + 1, 1, 4 / 25 + 9 / 100], rel=1e-14)
    assert traced.phi == pytest.approx([4 + 1 / 3, 1, 4 / 25 + 9 / 300], rel=1e-14)
    for name in NAMES:
        assert not traced.discrepancies[name].any()


def test_least_squares_by_hand() -> None:
    # F = mean of (w - 1)^2/2 and (w + 1)^2/2, plus w^2/2 = w^2 + 1/2; gradients 2w - 1 and 2w + 1.
    # Workers draw the rows (0, 1), then (0, 0). gamma = 1/2, alpha = 4, beta = 5, w_0 = 2.
    F = LeastSquares([[1.0], [1.0]], [1.0, -1.0], l2=1.0)
    seed = seed_that_draws([[0, 1], [0, 0]])
    traced = trace(F, "fedac-i", M=2, K=2, T=2, eta=1 / 4, mu=1 / 2, start=[2.0], seed=seed)
    # Step 1: gradients 3 and 5; w_ag = 5/4 and 3/4, w = 1/2 and -1/2, w_md = 11/10 and 1/2.
    # Step 2: gradients 6/5 and 0, on average 3/5; w_ag = 4/5 - 3/20, w = 1/5 - 3/10.
    mean_of_squares, square_of_mean = (25 / 16 + 9 / 16) / 2, 1
    assert traced.psi == pytest.approx(
        [4 + 1 / 4 * 4, mean_of_squares, 0.65**2 + 0.01 / 4], rel=1e-14
    )
    assert traced.phi == pytest.approx(
        [4 + 1 / 12 * 4, square_of_mean, 0.65**2 + 0.01 / 12], rel=1e-14
    )
    # ||w_md - mean|| = 3/10; gamma mu = 1/4: (1/2 + 1/4 1/4)/(5/4) = 9/20
    between = {name: traced.discrepancies[name][1] for name in NAMES}
    assert between["fedac-i"] == pytest.approx(3 / 10 * 9 / 20, rel=1e-14)
    assert between["fedac-ii"] == pytest.approx(0, abs=1e-30)  # gradients are linear
    assert between["fedavg"] == pytest.approx(1 / 16, rel=1e-14)
    for name in NAMES:
        assert traced.discrepancies[name][[0, 2]].tolist() == [0, 0]


def test_logistic_by_hand() -> None:
    # Rows x = 2 and x = 4, both with y = 1: at w = 0 their gradients are -1 and -2, so with
    # eta = 1/2 FedAvg goes to 1/2 and 1. F'(w) = -s(2w) - 2 s(4w) + l2 w, s(z) = 1/(1 + e^z).
    F = LogisticRegression([[2.0], [4.0]], [1.0, 1.0], l2=0.5)
    seed = seed_that_draws([[0, 1], [0, 1]])
    traced = trace(F, "fedavg", M=2, K=2, T=2, eta=1 / 2, mu=1 / 4, start=[0.0], seed=seed)

    def slope(w: float) -> float:
        return -1 / (1 + exp(2 * w)) - 2 / (1 + exp(4 * w)) + w / 2

    gap = slope(3 / 4) - (slope(1 / 2) + slope(1)) / 2
    assert traced.discrepancies["fedac-ii"] == pytest.approx([0, gap**2, 0], rel=1e-12, abs=1e-30)
    assert gap**2 > 1e-4
    assert traced.discrepancies["fedavg"] == pytest.approx([0, 1 / 4**4, 0], rel=1e-14)
    # FedAvg has one sequence: it is w, w_ag and w_md. (1/4 + gamma mu 1/4)/(1 + gamma mu) = 1/4.
    assert traced.discrepancies["fedac-i"] == pytest.approx([0, 1 / 4**2, 0], rel=1e-14)
    # Psi averages F over the workers, Phi takes it at their mean; mu/2 - mu/6 = 1/12.
    values = [F.value(np.array([w])) for w in (1 / 2, 3 / 4, 1)]
    expected = (values[0] + values[2]) / 2 - values[1] + (3 / 4 - _root(slope)) ** 2 / 12
    assert traced.psi[1] - traced.phi[1] == pytest.approx(expected, rel=1e-9)


def _root(slope) -> float:
    """Bisect for where an increasing slope is zero."""
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low


@both_objectives
@pytest.mark.parametrize("algorithm", ["fedac-i", "fedac-ii", "fedac-vanilla"])
@pytest.mark.parametrize("mu", [None, 0.2])
def test_at_synchronizations_it_is_what_simulate_records(objective, algorithm, mu) -> None:
    what = {"M": 3, "K": 4, "T": 12, "eta": 0.1, "mu": mu, "start": START, "seed": 5}
    traced = trace(objective, algorithm, **what)
    potentials = PotentialRecorder(objective, mu=mu)
    [run] = simulate(
        objective, algorithm, **what, engine="reference", callbacks=[potentials], record_every=4
    ).runs
    assert traced.steps.tolist() == list(range(13))
    assert run.steps.tolist() == [0, 4, 8, 12]
    assert traced.psi[::4] == pytest.approx(potentials.psi[0], rel=1e-12)
    assert traced.phi[::4] == pytest.approx(potentials.phi[0], rel=1e-12)


@both_objectives
@pytest.mark.parametrize("algorithm", ["fedac-i", "fedac-ii", "fedavg", "fedavg-weighted"])
def test_discrepancies_are_zero_after_a_synchronization_only(objective, algorithm) -> None:
    traced = trace(objective, algorithm, M=3, K=4, T=12, eta=0.1, start=START)
    together = traced.steps % 4 == 0
    for name in NAMES:
        assert not traced.discrepancies[name][together].any()
        if objective is LOGISTIC or name != "fedac-ii":
            assert (traced.discrepancies[name][~together] > 0).all()
    if objective is NOISY:  # a quadratic's gradients average like points, up to rounding
        assert traced.discrepancies["fedac-ii"].max() < 1e-28


@pytest.mark.parametrize("what", [{"M": 1, "K": 4}, {"M": 3, "K": 1}], ids=["M = 1", "K = 1"])
def test_one_worker_or_one_step_has_no_discrepancy(what) -> None:
    traced = trace(LOGISTIC, "fedac-i", T=8, eta=0.1, start=START, **what)
    for name in NAMES:
        assert not traced.discrepancies[name].any()


def test_the_decentralized_potential_is_never_below_the_centralized_one() -> None:
    # Jensen, and mu/2 >= mu/6
    traced = trace(LOGISTIC, "fedac-i", M=3, K=4, T=12, eta=0.5, start=START)
    assert (traced.psi >= traced.phi).all()
    assert (traced.phi >= 0).all()


@pytest.mark.parametrize("algorithm", ["mb-sgd", "mb-ac-sgd"])
def test_minibatch_algorithms_are_refused(algorithm: str) -> None:
    with pytest.raises(InputError, match=rf"'{algorithm}' takes one step per round"):
        trace(NOISY, algorithm, M=2, K=2, T=4, eta=0.1)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"K": 3}, "K=3 does not divide T=4"),
        ({"K": 0}, "K"),
        ({"eta": 0.0}, "eta must be"),
        ({"start": [1.0]}, "start must be 4 numbers"),
        ({"mu": -1.0}, "mu must be"),
    ],
)
def test_bad_input(what: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace(NOISY, "fedac-i", **{"M": 2, "K": 2, "T": 4, "eta": 0.1} | what)


@pytest.mark.parametrize(
    ("what", "letter"), [({"M": 0}, "M"), ({"seed": -1}, "seed"), ({"mu": -1.0}, "mu")]
)
def test_bad_input_that_simulate_refuses_by_name(what: dict, letter: str) -> None:
    with pytest.raises(InputError, match=rf"^{letter} "):
        trace(NOISY, "fedavg", **{"M": 2, "K": 2, "T": 4, "eta": 0.1} | what)


# --- under the lemmas -----------------------------------------------------------------------

M, K, T, ETA = 4, 4, 16, 0.25


def mean_trace(algorithm: str) -> Trace:
    """Average many runs on a quadratic, whose L = 1, mu = 0.1 and sigma = 0.5 are exact."""
    runs = [
        trace(NOISY, algorithm, M=M, K=K, T=T, eta=ETA, start=START, seed=seed)
        for seed in range(30)
    ]
    overheads = {name: np.mean([run.discrepancies[name] for run in runs], axis=0) for name in NAMES}
    psi, phi = (np.mean([getattr(run, name) for run in runs], axis=0) for name in ("psi", "phi"))
    return Trace(runs[0].steps, psi, phi, overheads)


def test_fedac_i_stays_under_its_lemmas() -> None:
    mean = mean_trace("fedac-i")
    gamma = sqrt(ETA / (0.1 * K))
    drift = mean.discrepancies["fedac-i"].max()
    letters = {"eta": ETA, "gamma": gamma, "mu": 0.1, "sigma": 0.5}
    assert 0 < drift <= lemmas.fedac_i_discrepancy(**letters, K=K)
    bound = lemmas.fedac_i_perturbed(
        **letters, L=1.0, M=M, T=T, Psi0=mean.psi[0], discrepancy=drift
    )
    assert mean.psi[-1] <= bound.total


def test_fedac_ii_stays_under_its_lemmas() -> None:
    mean = mean_trace("fedac-ii")
    gamma = sqrt(ETA / (0.1 * K))
    letters = {"eta": ETA, "gamma": gamma, "L": 1.0, "mu": 0.1, "sigma": 0.5}
    drift = mean.discrepancies["fedac-ii"].max()
    assert drift <= lemmas.fedac_ii_a1_discrepancy(**letters, K=K)
    bound = lemmas.fedac_ii_perturbed(**letters, M=M, T=T, Phi0=mean.phi[0], discrepancy=drift)
    assert mean.phi[-1] <= bound.total


def test_fedavg_stays_under_its_lemma() -> None:
    drift = mean_trace("fedavg").discrepancies["fedavg"].max()
    assert 0 < drift <= lemmas.fedavg_a2_discrepancy(eta=ETA, sigma4=0.5 * 1.5**0.25, K=K)


def test_potentials_of_a_point_by_hand() -> None:
    # ||(3, 5) - (1, 2)||^2 = 4 + 9 = 13
    at = {"w": np.array([3.0, 5.0]), "w_star": np.array([1.0, 2.0]), "mu": 0.5}
    assert psi(suboptimality=1.0, **at) == pytest.approx(1 + 13 / 4, rel=1e-15)
    assert phi(suboptimality=1.0, **at) == pytest.approx(1 + 13 / 12, rel=1e-15)


def test_both_are_the_suboptimality_at_the_optimum() -> None:
    w = np.array([1.0, -1.0])
    assert psi(suboptimality=0.25, w=w, w_star=w, mu=3.0) == 0.25
    assert phi(suboptimality=0.25, w=w, w_star=w, mu=3.0) == 0.25


def test_recorded_potentials_by_hand() -> None:
    # F = (w - 1)^2 from w = 3, mu = 2. Psi = 4 + 2/2 * 4 and Phi = 4 + 2/6 * 4.
    # One step: w_md = 3, g = 4, w_ag = 3 - 4/2 = 1, w = 3 - 4/4 = 2.
    # Psi = 0 + 2/2 * 1, Phi = 0 + 2/6 * 1.
    algorithm = fedac(gamma=1 / 4, alpha=2.0, beta=4.0)
    objective = NoisyQuadratic([2.0], optimum=[1.0])
    of_objective = PotentialRecorder(objective)
    of_user = PotentialRecorder(objective, mu=1.0)
    simulate(
        objective, algorithm, M=4, K=1, T=1, eta=0.5, start=[3.0], engine="reference",
        callbacks=[of_objective, of_user],
    )  # fmt: skip
    assert of_objective.psi[0] == pytest.approx([8.0, 1.0], rel=1e-12)
    assert of_objective.phi[0] == pytest.approx([16 / 3, 1 / 3], rel=1e-12)
    # With mu = 1 of the user's own: 4 + 1/2 * 4, 4 + 1/6 * 4, 1/2 and 1/6.
    assert of_user.psi[0] == pytest.approx([6.0, 0.5], rel=1e-12)
    assert of_user.phi[0] == pytest.approx([14 / 3, 1 / 6], rel=1e-12)


def test_only_algorithms_with_w_ag_have_potentials() -> None:
    objective = NoisyQuadratic([2.0, 1.0])
    potentials = PotentialRecorder(objective)
    names = ["fedavg", "fedac-i", "fedavg-weighted", "mb-sgd"]
    result = simulate(
        objective, names, M=2, K=2, T=4, eta=0.25, engine="reference", callbacks=[potentials]
    )
    assert set(potentials.psi) == set(potentials.phi) == {1}
    assert len(potentials.psi[1]) == len(result.runs[1].steps)
