# SPDX-License-Identifier: Apache-2.0
"""Bounds for any step size and their minimum: rigorous, tighter than what is printed, and least."""

import math
from math import e, exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms.hyperparameters import fedac_i, fedac_ii, stable_gamma
from fedac.errors import InputError
from fedac.theory import THEOREMS, lemmas, theorem, tight_bounds
from fedac.theory.bounds import min_max_lower_bound
from fedac.theory.instability import propagate
from fedac.theory.theorems.base import golden_section

repeatable = settings(deadline=None, derandomize=True, max_examples=60)
every_theorem = pytest.mark.parametrize("one", THEOREMS, ids=lambda one: one.label)
slow = pytest.mark.slow
ROUNDING = 1 + 1e-9

LETTERS = {"L": 1.0, "mu": 1e-2, "sigma": 1.0, "sigma4": 1.3, "Q": 0.5, "M": 64, "K": 16}
LETTERS |= {"T": 2**14, "D0": 1.0, "Psi0": 0.7, "Phi0": 0.6}


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def constants(draw) -> dict[str, float]:
    """Draw all letters over many orders of magnitude; the potentials fit to L and D0."""
    T = draw(st.integers(1, 10**6))
    L, D0 = draw(powers_of_ten(-3, 3)), draw(powers_of_ten(-3, 3))
    sigma = L * D0 * draw(powers_of_ten(-4, 2))
    return {
        "L": L,
        "mu": L / draw(powers_of_ten(0.1, 6)),
        "sigma": sigma,
        "sigma4": sigma * draw(st.floats(1, 10)),
        "Q": L / D0 * draw(powers_of_ten(-4, 2)),
        "M": draw(st.integers(1, 10**6)),
        "K": max(1, int(T ** draw(st.floats(0, 1)))),
        "T": T,
        "D0": D0,
        "Psi0": L * D0**2 / 2,
        "Phi0": L * D0**2 / 2,
    }


def for_lemma(letters: dict[str, float], *names: str) -> dict[str, float]:
    wanted = ("L", "mu", "sigma", "M", "K", "T", *names)
    return {letter: letters[letter] for letter in wanted}


# --- at one step size -----------------------------------------------------------------------


@repeatable
@given(letters=constants(), fraction=powers_of_ten(-8, 0))
def test_no_bound_is_above_the_lemma_for_any_step_size(letters, fraction) -> None:
    asm2 = ("sigma4", "Q")
    cases = [
        (tight_bounds.fedac_i, lemmas.fedac_i_general_eta, ("Psi0",), 1),
        (tight_bounds.fedac_ii_a1, lemmas.fedac_ii_a1_general_eta, ("Phi0",), 1),
        (tight_bounds.fedac_ii_a2, lemmas.fedac_ii_a2_general_eta, ("Phi0", *asm2), 1),
        (tight_bounds.fedavg_a2, lemmas.fedavg_a2_general_eta, ("D0", *asm2), 4),
    ]
    for tight, printed, names, shortest in cases:
        at = for_lemma(letters, *names) | {"eta": fraction / (shortest * letters["L"])}
        assert tight(**at).total <= printed(**at).total * ROUNDING, printed.__name__


@repeatable
@given(letters=constants(), fraction=powers_of_ten(-8, 0), share=powers_of_ten(-6, 0))
def test_no_convex_bound_is_above_the_printed_lemma_for_any_lam_and_eta(
    letters, fraction, share
) -> None:
    L, M, K, T, D0, Q = (letters[letter] for letter in ("L", "M", "K", "T", "D0", "Q"))
    s, s4 = letters["sigma"] ** 2, letters["sigma4"] ** 4
    lam = share * L
    eta = fraction / (L + lam)
    start = lam * D0**2 / 2
    fast = exp(-sqrt(eta * lam / K) * T) * L * D0**2 / 2
    slow = exp(-sqrt(eta * lam / (9 * K)) * T) * L * D0**2 / 2
    root = sqrt(eta / (lam * K)) * s / M
    printed = {
        "fedaci:a1:gcvx": start + fast + root / 2 + eta * s / (2 * M)  # fedaci:gcvx:1
        + 390 * eta**1.5 * sqrt(K) * s * (L / sqrt(lam) + sqrt(lam))
        + 7 * eta**2 * K * s * (L + lam),
        "fedacii:a1:gcvx": start + slow + root  # fedacii:a1:gcvx:1
        + 200 * eta**2 * K * s * (L**2 / lam + lam),
        "fedacii:a2:gcvx": start + slow + root  # fedacii:a2:gcvx:1
        + 2 * eta**1.5 * sqrt(K) * s / M * (L / sqrt(lam) + sqrt(lam))
        + e**9 * eta**4 * Q**2 * K**2 * s4 / lam,
    }  # fmt: skip
    for label, bound in printed.items():
        assert theorem(label).at(eta, lam, **letters).total <= bound * ROUNDING, label


@repeatable
@given(letters=constants(), share=powers_of_ten(-6, 0))
@pytest.mark.parametrize("shift", [e, e**2])
def test_either_e_of_lemma_fedaci_gcvx_2_gives_its_bound(letters, share, shift) -> None:
    # The lemma has e in its step size, its proof e^2.
    L, M, K, T, D0, sigma = (letters[letter] for letter in ("L", "M", "K", "T", "D0", "sigma"))
    lam = share * L
    ratios = (lam * L * M * T * (D0 / sigma) ** 2, lam**2 * T**3 * (D0 / (K * sigma)) ** 2)
    eta = min(
        1 / (L + lam),
        K / (lam * T**2) * math.log(shift + min(ratios)) ** 2,
        math.cbrt(L * K * (D0 / (lam * sigma)) ** 2) / T,
        (L * K * D0**2 / (lam**3 * sigma**2)) ** 0.25 / T,
    )
    bound = (
        lam * D0**2 / 2
        + 3 * sigma**2 / (2 * lam * M * T) * math.log(e**2 + ratios[0]) ** 2
        + 592 * L * (K * sigma) ** 2 / (lam**2 * T**3) * math.log(e**4 + ratios[1]) ** 4
        + 412 * sqrt(L / lam) * K * sigma * D0 / T**1.5
        + L * D0**2 / 2 * exp(-T / sqrt((1 + L / lam) * K))
    )
    assert theorem("fedaci:a1:gcvx").at(eta, lam, **letters).total <= bound * ROUNDING


@every_theorem
def test_one_local_step_or_one_worker_has_no_discrepancy(one) -> None:
    for alone in ({"K": 1}, {"M": 1}):
        assert one.at(0.01, 0.01, **LETTERS | alone).discrepancy == 0
    together = one.at(0.01, 0.01, **LETTERS).discrepancy
    assert (together > 0) == one.label.startswith("fed")


def test_one_local_step_of_fedac_i_is_accelerated_minibatch_sgd() -> None:
    at = LETTERS | {"K": 1}
    for fedac, minibatch in (("fedaci:full", "mb-ac-sgd"), ("fedaci:a1:gcvx", "mb-ac-sgd:gcvx")):
        assert theorem(fedac).at(1e-3, 1e-2, **at) == theorem(minibatch).at(1e-3, 1e-2, **at)
        assert theorem(fedac).best(**at) == theorem(minibatch).best(**at)


def test_accelerated_minibatch_sgd_is_the_lemma_with_one_worker_and_less_noise() -> None:
    # gamma = sqrt(eta/mu) = 1; sigma^2/(M K) = 1/4; T/K = 2
    letters = {"L": 0.5, "mu": 0.25, "sigma": 1.0, "M": 2, "K": 2, "T": 4, "Psi0": 3.0}
    found = theorem("mb-ac-sgd").at(0.25, **letters)
    lemma = lemmas.fedac_i_perturbed(
        eta=0.25, gamma=1.0, L=0.5, mu=0.25, sigma=0.5, M=1, T=2, Psi0=3.0, discrepancy=0.0
    )
    # Summed exactly: (1 - gamma mu)^2 = 9/16 of the start is left, where the lemma has e^-1/2.
    assert found.optimization == pytest.approx(3 * 9 / 16)
    assert found.optimization < lemma.optimization
    assert found.variance == pytest.approx(7 / 16 * lemma.variance) == 7 / 16 / 8
    assert found.accelerated_variance == pytest.approx(7 / 16 * lemma.accelerated_variance)


def test_a_step_size_that_no_lemma_covers_is_refused() -> None:
    with pytest.raises(InputError, match=r"needs eta of at most 1, got 1\.1"):
        theorem("fedaci:full").at(1.1, **LETTERS)
    with pytest.raises(InputError, match="lam must be"):
        theorem("fedaci:a1:gcvx").at(0.1, **LETTERS)
    with pytest.raises(InputError, match="eta must be"):
        theorem("fedaci:full").at(0.0, **LETTERS)


@pytest.mark.parametrize("label", [one.label for one in THEOREMS if one.assumption == 2])
def test_under_asm2_the_discrepancy_has_the_fourth_moment(label: str) -> None:
    one = theorem(label)
    power = 2 / 3 if label.endswith("gcvx") else 4
    small, large = ({"sigma4": sigma4} for sigma4 in (1.0, 2.0))
    for what in (one.rate, lambda **letters: one.at(0.01, 0.01, **letters)):
        before, after = (what(**LETTERS | fourth) for fourth in (small, large))
        assert after.variance == before.variance
        assert after.accelerated_variance == before.accelerated_variance
        growth = after.discrepancy / before.discrepancy
        assert growth == pytest.approx(2**power if what == one.rate else 2**4)
    assert one.bound(**LETTERS | large).discrepancy > one.bound(**LETTERS | small).discrepancy
    # The paper has one letter for both.
    both = {letter: value for letter, value in LETTERS.items() if letter != "sigma4"}
    assert one.bound(**both) == one.bound(**LETTERS | small)


# --- closed forms that are ours -------------------------------------------------------------


@repeatable
@given(letters=constants())
@pytest.mark.parametrize(
    "label",
    [
        *("mb-ac-sgd", "ac-sgd", "mb-ac-sgd:gcvx", "ac-sgd:gcvx"),
        *("fedavg:a1", "mb-sgd", "fedavg:a1:gcvx", "mb-sgd:gcvx"),
    ],
)
def test_the_closed_form_is_the_lemma_at_its_step_size(label, letters) -> None:
    one = theorem(label)
    chosen = one.step_size(**letters)
    needed = one.at(chosen.eta, chosen.lam, **letters).total
    assert needed <= one.bound(**letters).total * ROUNDING


# --- the minimum ----------------------------------------------------------------------------


def closed_form(one, letters: dict[str, float]) -> float:
    return one.bound(**letters).total if one.least_steps <= letters["T"] else math.inf


@settings(repeatable, max_examples=30)
@given(letters=constants())
@every_theorem
def test_the_minimum_is_at_most_the_closed_form(one, letters) -> None:
    # Also where the closed form says nothing, and its lam may be larger than L.
    assert one.best(**letters).bound.total <= closed_form(one, letters) * ROUNDING


@pytest.mark.parametrize("K", [pytest.param(K, marks=slow) for K in (1, 1024)] + [16])
@every_theorem
def test_no_step_size_of_a_grid_is_better(one, K: int) -> None:
    letters = LETTERS | {"K": K}
    found = one.best(**letters)
    assert found.bound == one.at(found.eta, found.lam, **letters)
    lams = np.geomspace(1e-8, 1.0, 60) if one.augmented else [0.0]
    least_of_grid = min(
        one.at(eta, lam, **letters).total
        for lam in lams
        for eta in np.geomspace(1e-9, 1.0, 60) * one.eta_limit / ((1 + lam) * (1 + 1e-12))
    )
    assert found.bound.total <= 1.01 * least_of_grid


def test_how_much_tighter_the_minimum_is() -> None:
    # The problem of docs/theory.md.
    letters = {"L": 1.0, "mu": 1e-2, "sigma": 1.0, "M": 64, "K": 16, "T": 2**14, "Psi0": 1.0}
    full = theorem("fedaci:full")
    assert full.bound(**letters).total > 50 * full.best(**letters).bound.total


@every_theorem
def test_without_noise_the_step_size_is_the_largest(one) -> None:
    letters = LETTERS | {"sigma": 0.0, "sigma4": 0.0, "K": 1}
    found = one.best(**letters)
    assert found.eta == pytest.approx(one.eta_limit / (1 + found.lam), rel=0.05)


@repeatable
@given(at=powers_of_ten(-5, 5), width=st.floats(0.1, 3))
def test_golden_sections_find_the_least(at: float, width: float) -> None:
    number, x = golden_section(lambda x: (abs(math.log(x / at)) ** width, x), 1e-6, 1e6)
    assert abs(math.log(x / at)) <= 0.05
    assert number == abs(math.log(x / at)) ** width


# --- step by step ---------------------------------------------------------------------------


@pytest.mark.parametrize("T", [1, 3, 40])
def test_progress_is_the_propositions_step_by_step(T: int) -> None:
    eta, L, mu, sigma, M, K, start = 0.2, 1.0, 0.1, 2.0, 4, 1, 3.0
    gamma = stable_gamma(eta, mu, K)
    noise = sigma**2 / M  # of the averaged gradient, which is all there is at K = 1
    of = {"eta": eta, "L": L, "mu": mu, "sigma": sigma, "M": M, "K": K, "T": T}
    psi = phi = start
    for _ in range(T):
        psi = (1 - gamma * mu) * psi + (eta**2 * L + gamma**2 * mu) / 2 * noise
        phi = (1 - gamma * mu / 3) * phi + (eta**2 * L / 2 + gamma**2 * mu / 6) * noise
    assert tight_bounds.fedac_i(**of, Psi0=start).total == pytest.approx(psi)
    assert tight_bounds.fedac_ii_a1(**of, Phi0=start).total == pytest.approx(phi)
    # FedAvg: the squared distance loses eta (F - F*), which is what is averaged.
    weights = (1 - eta * mu / 2) ** np.arange(T)
    averaged = (1 - eta * mu / 2) ** T * start**2 / (eta * weights.sum()) + eta * noise
    fedavg = tight_bounds.fedavg_a2(**of | {"L": 1.0}, sigma4=sigma, Q=1.0, D0=start)
    assert fedavg.total == pytest.approx(averaged)


@pytest.mark.parametrize("coupling", [fedac_i, fedac_ii])
@pytest.mark.parametrize("K", [1, 4, 1000])
def test_growth_of_differences_is_that_of_the_propositions(coupling, K: int) -> None:
    # fedaci:stab:bound and fedacii:stab:bound, in one dimension: blocks that commute.
    L, mu = 1.0, 0.01
    for eta in (1.0, 0.3, 1e-3):
        hp = coupling(eta=eta, mu=mu, K=K)
        X = np.array([[eta / hp.gamma, 0.0], [1.0, 1.0]])
        twice = 2 if coupling is fedac_i else 1
        most = 1 + (twice * hp.gamma**2 * mu / eta if hp.gamma > eta else 0.0)
        for h in np.linspace(mu, L, 50):
            columns = [propagate(hp, [h], (1.0, 0.0)), propagate(hp, [h], (0.0, 1.0))]
            A = np.array([[c.w_ag[-1] for c in columns], [c.w[-1] for c in columns]])
            assert np.linalg.norm(np.linalg.inv(X) @ A @ X, 2) <= most * ROUNDING


@pytest.mark.parametrize("K", [1, 2, 5, 64])
@pytest.mark.parametrize("eta", [1e-3, 0.5])
def test_drift_is_the_propositions_step_by_step(K: int, eta: float) -> None:
    mu, L, sigma, sigma4, Q, M = 0.1, 1.0, 2.0, 3.0, 0.7, 4
    pairs = 3 / 8  # mean of ||w - w_m||^2 over the mean of ||w_m - w_n||^2 of all pairs
    gamma = stable_gamma(eta, mu, K)

    def grown(rate: float, noise: float) -> float:
        apart = 0.0
        for _ in range(K - 1):
            apart = noise + (1 + (rate if gamma > eta else 0.0)) ** 2 * apart
        return apart

    of = {"eta": eta, "gamma": gamma, "mu": mu, "M": M}
    growth = gamma**2 * mu / eta
    two = grown(2 * growth, 2 * gamma**2 * sigma**2)
    one = grown(growth, 2 * gamma**2 * sigma**2)
    fourth = grown(growth, 7 * gamma**2 * sigma4**2)
    averaged = {"eta": eta, "M": M}
    cases = [
        (tight_bounds.fedac_i_drift(**of, sigma=sigma), sqrt(10) * eta / gamma * pairs * two),
        (
            tight_bounds.fedac_ii_a1_drift(**of, L=L, sigma=sigma),
            17 / 9 * (eta * L / gamma) ** 2 * pairs * one,
        ),
        (
            tight_bounds.fedac_ii_a2_drift(**of, sigma4=sigma4, Q=Q),
            289 / 324 * eta**4 * Q**2 / gamma**4 * (pairs * fourth) ** 2,
        ),
        (
            tight_bounds.fedavg_a1_drift(**averaged, sigma=sigma),
            2 * (eta * sigma) ** 2 * pairs * (K - 1),
        ),
        (
            tight_bounds.fedavg_a2_drift(**averaged, sigma4=sigma4),
            (sqrt(192) * eta**2 * sigma4**2 * pairs * (K - 1)) ** 2,
        ),
    ]
    for drift, expected in cases:
        assert drift.after(K - 1) == pytest.approx(expected)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("shrink", [0.0, 1e-9, 1e-4, 0.03, 1.0])
@pytest.mark.parametrize("growth", [0.0, 1e-9, 1e-5, 0.02, 1.5])
def test_the_mean_drift_is_that_of_all_steps(growth: float, shrink: float, power: int) -> None:
    drift = tight_bounds.Drift(3.0, growth, power)
    for K, T in ((1, 5), (2, 2), (7, 28), (7, 31), (40, 200)):
        weights = (1 - shrink) ** np.arange(T - 1, -1, -1.0)
        each = [drift.after(t % K) for t in range(T)]
        mean = np.average(each, weights=weights)
        found = drift.mean(shrink=shrink, K=K, T=T)
        # An upper bound; where growth or shrink is tiny, one that may be 0.03% above.
        assert mean * (1 - 1e-6) <= found <= mean * 1.0003


@pytest.mark.parametrize(("M", "K"), [(8, 8), (64, 16), (1024, 64)])
def test_the_mean_drift_is_several_times_smaller_than_the_largest_of_a_pair(M, K) -> None:
    eta, mu, T = 1e-3, 0.1, 2**14
    gamma = stable_gamma(eta, mu, K)
    of = {"eta": eta, "M": M}
    accelerated = of | {"gamma": gamma, "mu": mu}
    for drift, shrink, times in (
        (tight_bounds.fedac_i_drift(**accelerated, sigma=1.0), gamma * mu, 4),
        (tight_bounds.fedac_ii_a1_drift(**accelerated, L=1.0, sigma=1.0), gamma * mu / 3, 4),
        (tight_bounds.fedac_ii_a2_drift(**accelerated, sigma4=1.0, Q=1.0), gamma * mu / 3, 12),
        (tight_bounds.fedavg_a1_drift(**of, sigma=1.0), eta * mu, 4),
        (tight_bounds.fedavg_a2_drift(**of, sigma4=1.0), eta * mu / 2, 12),
    ):
        pairs = ((M - 1) / (2 * M)) ** drift.power
        largest_of_a_pair = drift.after(K - 1) / pairs
        assert largest_of_a_pair > 0.98 * times * drift.mean(shrink=shrink, K=K, T=T)


def test_full_acceleration_over_long_rounds_has_no_bound() -> None:
    of = {"eta": 0.25, "gamma": 1.0, "mu": 0.25, "M": 4}
    at = {"shrink": 0.25, "K": 1000, "T": 1000}
    assert tight_bounds.fedac_i_drift(**of, sigma=1.0).mean(**at) == math.inf
    assert tight_bounds.fedac_i_drift(**of, sigma=1.0).after(999) == math.inf
    assert tight_bounds.fedac_i_drift(**of, sigma=0.0).mean(**at) == 0
    assert tight_bounds.fedac_i_drift(**of | {"M": 1}, sigma=1.0).mean(**at) == 0


# --- what fedac is compared with ------------------------------------------------------------


def test_fedac_is_between_one_machine_and_accelerated_minibatches() -> None:
    # Under asm1, general convex: a geometric mean of the two in every term that they do not share.
    rates = [
        theorem(label).rate(**LETTERS)
        for label in ("fedaci:a1:gcvx", "ac-sgd:gcvx", "mb-ac-sgd:gcvx")
    ]
    fedac, alone, minibatch = rates
    assert fedac.optimization == pytest.approx(sqrt(alone.optimization * minibatch.optimization))
    between = alone.variance ** (2 / 3) * minibatch.optimization ** (1 / 3)
    assert fedac.discrepancy == pytest.approx(between)
    assert fedac.variance == pytest.approx(minibatch.variance)


def test_the_floor_by_hand() -> None:
    # L D0^2/T^2 = 1/256; sigma D0/sqrt(M T) = 2/32; R = 4; the smaller of the last two terms
    letters = {"L": 1.0, "sigma": 2.0, "M": 64, "K": 4, "T": 16, "D0": 1.0}
    across = 1 / (16 * (1 + math.log(64)) ** 2)
    assert min_max_lower_bound(**letters) == pytest.approx(1 / 256 + 1 / 16 + across)
    often = letters | {"K": 16, "L": 100.0}
    assert min_max_lower_bound(**often) == pytest.approx(100 / 256 + 1 / 16 + 2 / 4)
    alone = letters | {"M": 1, "sigma": 1.0}
    assert min_max_lower_bound(**alone) == pytest.approx(1 / 256 + 1 / 4 + 1 / 16)
    # The start is at most L D0^2/2.
    assert min_max_lower_bound(**letters | {"sigma": 1e6}) == 1 / 2


@repeatable
@given(letters=constants())
def test_the_floor_is_about_the_better_of_the_two(letters) -> None:
    # Each method's own rate, and at most one logarithm squared below the better of them.
    of = {letter: letters[letter] for letter in ("L", "sigma", "M", "K", "T", "D0")}
    floor = min_max_lower_bound(**of)
    rates = [theorem(label).rate(**letters) for label in ("ac-sgd:gcvx", "mb-ac-sgd:gcvx")]
    better = min(rate.optimization + rate.variance for rate in rates)
    assert floor <= better * 2
    start = letters["L"] * letters["D0"] ** 2 / 2
    assert min(better, start) <= floor * 2 * (1 + math.log(letters["M"])) ** 2
