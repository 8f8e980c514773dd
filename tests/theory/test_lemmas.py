# SPDX-License-Identifier: Apache-2.0
"""Lemmas: their printed formulas in plain numbers, and how the theorems follow from them."""

import inspect
import math
from math import e, exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.algorithms import hyperparameters
from fedac.errors import InputError
from fedac.theory import lemmas, theorem
from fedac.theory.bounds import TERMS

pytestmark = pytest.mark.slow

GENERAL = {"eta": 0.25, "L": 1.0, "mu": 0.5, "sigma": 2.0, "M": 2, "K": 4, "T": 8}
PERTURBED = {"eta": 0.25, "gamma": 0.5, "L": 2.0, "mu": 0.25, "sigma": 2.0, "M": 2, "T": 8}
PERTURBED |= {"discrepancy": 1.0}
DRIFT = {"eta": 0.25, "gamma": 0.5, "mu": 0.25, "sigma": 2.0, "K": 2}
LEMMAS = {
    "fedac_i_general_eta": GENERAL | {"Psi0": 1.0},
    "fedac_ii_a1_general_eta": GENERAL | {"Phi0": 1.0},
    "fedac_ii_a2_general_eta": GENERAL | {"Phi0": 1.0, "Q": 3.0, "sigma4": 2.5},
    "fedavg_a2_general_eta": GENERAL | {"D0": 3.0, "Q": 3.0, "sigma4": 2.5},
    "fedac_i_perturbed": PERTURBED | {"Psi0": 1.0},
    "fedac_ii_perturbed": PERTURBED | {"Phi0": 1.0},
    "fedavg_a2_perturbed": {
        letter: value for letter, value in PERTURBED.items() if letter != "gamma"
    }
    | {"L": 1.0, "D0": 3.0, "Q": 3.0},
    "fedac_i_discrepancy": DRIFT,
    "fedac_ii_a1_discrepancy": DRIFT | {"L": 2.0},
    "fedac_ii_a2_discrepancy": {
        "sigma4" if letter == "sigma" else letter: value for letter, value in DRIFT.items()
    }
    | {"Q": 3.0},
    "fedavg_a2_discrepancy": {"eta": 0.25, "sigma4": 2.0, "K": 2},
}
AMPLIFIED = ["fedac_i_discrepancy", "fedac_ii_a1_discrepancy", "fedac_ii_a2_discrepancy"]
every_lemma = pytest.mark.parametrize("name", LEMMAS)

repeatable = settings(deadline=None, derandomize=True, max_examples=60)


def lemma(name: str, **letters):
    return getattr(lemmas, name)(**letters)


def value(name: str, **letters) -> float:
    """Return the bound as one number, whichever kind of lemma it is."""
    got = lemma(name, **letters)
    return got if isinstance(got, float) else got.total


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def constants(draw) -> dict[str, float]:
    """Draw all letters, over many orders of magnitude; few steps and small kappa are favoured."""
    T = draw(st.one_of(st.integers(1, 30), st.integers(1, 10**6)))
    L = draw(powers_of_ten(-3, 3))
    kappa = draw(st.one_of(st.floats(1.001, 2), powers_of_ten(0.1, 6)))
    return {
        "L": L,
        "mu": L / kappa,
        "sigma": (sigma := draw(powers_of_ten(-5, 5))),
        "sigma4": sigma * draw(st.floats(1, 10)),
        "Q": draw(powers_of_ten(-5, 5)),
        "M": draw(st.integers(1, 10**6)),
        "K": max(1, int(T ** draw(st.floats(0, 1)))),
        "T": T,
        "D0": draw(powers_of_ten(-3, 3)),
        "Psi0": draw(powers_of_ten(-6, 6)),
        "Phi0": draw(powers_of_ten(-6, 6)),
    }


def of(name: str, letters: dict[str, float]) -> dict[str, float]:
    """Choose the letters that a lemma needs."""
    wanted = inspect.signature(getattr(lemmas, name)).parameters
    return {letter: value for letter, value in letters.items() if letter in wanted}


# Letters and the paper's terms in numbers, for both cases of gamma = max(sqrt(eta/(mu K)), eta).
# sqrt(eta mu/K) = 1/4 is above eta mu = 1/8; sqrt(eta/(mu K)) = 1/2; eta sqrt(eta K/mu) = 1/4
ACCELERATED = {"eta": 1 / 4, "L": 2, "mu": 1 / 2, "sigma": 2, "M": 2, "K": 2, "T": 8}
# sqrt(eta mu/K) = 1/8 is below eta mu = 1/4; sqrt(eta/(mu K)) = 1/4; eta sqrt(eta K/mu) = 2
PLAIN = {"eta": 1 / 2, "L": 2, "mu": 1 / 2, "sigma": 2, "M": 2, "K": 16, "T": 64}
BY_HAND = {
    # sigma^2/(2 M) = 1; L sigma^2 = 8; eta^2 K = 1/8
    "fedac_i_general_eta, accelerated": (
        ACCELERATED | {"Psi0": 3},
        {
            "optimization": 3 * exp(-2),
            "variance": 1 * (1 / 2 + 1 / 4),
            "discrepancy": 8 * (390 / 4 + 7 / 8),
        },
    ),
    "fedac_i_general_eta, plain": (
        PLAIN | {"Psi0": 3},
        {
            "optimization": 3 * exp(-16),
            "variance": 1 * (1 / 4 + 1 / 2),
            "discrepancy": 8 * (390 * 2 + 7 * 4),
        },
    ),
    # eta^2 L^2 K sigma^2/mu = 1/4 2 8 and 1 16 8
    "fedac_ii_a1_general_eta, accelerated": (
        ACCELERATED | {"Phi0": 3},
        {"optimization": 3 * exp(-2 / 3), "variance": 1, "discrepancy": 100 * 4},
    ),
    "fedac_ii_a1_general_eta, plain": (
        PLAIN | {"Phi0": 3},
        {"optimization": 3 * exp(-16 / 3), "variance": 1 / 2, "discrepancy": 100 * 16 * 8},
    ),
    # eta^4 Q^2 K^2 sigma^4/mu = 1/256 9 4 16 2; the fourth moment is 2^4 times that
    "fedac_ii_a2_general_eta, accelerated": (
        ACCELERATED | {"Q": 3, "Phi0": 3, "sigma4": 4},
        {
            "optimization": 3 * exp(-2 / 3),
            "variance": 1,
            "accelerated_variance": 2 * 1 / 4 * 2 * 4 / 2,
            "discrepancy": 9 / 2 * e**9 * 2**4,
        },
    ),
    "fedac_ii_a2_general_eta, plain": (
        PLAIN | {"Q": 3, "Phi0": 3, "sigma4": 4},
        {
            "optimization": 3 * exp(-16 / 3),
            "variance": 1 / 2,
            "accelerated_variance": 2 * 2 * 2 * 4 / 2,
            "discrepancy": 4608 * e**9 * 2**4,
        },
    ),
    # D0^2/eta = 72; eta^4 Q^2 K^2 sigma^4/mu = 1/4096 9 16 16 2
    "fedavg_a2_general_eta": (
        {"eta": 1 / 8, "L": 2, "mu": 1 / 2, "sigma": 2, "Q": 3, "M": 2, "K": 4, "T": 32, "D0": 3}
        | {"sigma4": 4},
        {"optimization": 72 * exp(-1), "variance": 1 / 4, "discrepancy": 192 * 9 / 8 * 2**4},
    ),
    # gamma mu = 1/4; eta^2 L sigma^2/(2 gamma mu) = 1/2/(1/2); gamma sigma^2/(2 M) = 1/2
    "fedac_i_perturbed": (
        {"eta": 1 / 4, "gamma": 1 / 2, "L": 2, "mu": 1 / 2, "sigma": 2, "M": 2, "T": 8}
        | {"Psi0": 3, "discrepancy": 5},
        {
            "optimization": 3 * exp(-2),
            "variance": 1 / 2,
            "accelerated_variance": 1,
            "discrepancy": 10,
        },
    ),
    # 3 eta^2 L sigma^2/(2 gamma mu M) = 3/2/2
    "fedac_ii_perturbed": (
        {"eta": 1 / 4, "gamma": 1 / 2, "L": 2, "mu": 1 / 2, "sigma": 2, "M": 4, "T": 8}
        | {"Phi0": 3, "discrepancy": 5},
        {
            "optimization": 3 * exp(-2 / 3),
            "variance": 1 / 4,
            "accelerated_variance": 3 / 4,
            "discrepancy": 30,
        },
    ),
    "fedavg_a2_perturbed": (
        {"eta": 1 / 8, "L": 2, "mu": 1 / 2, "sigma": 2, "Q": 3, "M": 2, "T": 32}
        | {"D0": 3, "discrepancy": 5},
        {"optimization": 72 * exp(-1), "variance": 1 / 4, "discrepancy": 90},
    ),
}
# gamma = 1/2 with eta = 1/4 and mu = 1/2: gamma^2 mu/eta = 1/2. gamma = eta = 1/4: no growth.
STEP = {"eta": 1 / 4, "mu": 1 / 2, "sigma": 2, "K": 3}
STEP4 = {"eta": 1 / 4, "mu": 1 / 2, "sigma4": 2, "K": 3}
DRIFT_BY_HAND = [
    ("fedac_i_discrepancy", STEP | {"gamma": 1 / 2}, 7 * 1 / 8 * 3 * 4 * 2**6),
    ("fedac_i_discrepancy", STEP | {"gamma": 1 / 4}, 7 * 1 / 16 * 3 * 4),
    ("fedac_ii_a1_discrepancy", STEP | {"gamma": 1 / 2, "L": 2}, 4 * 1 / 4 * 3 * 4 * 1.5**6),
    ("fedac_ii_a1_discrepancy", STEP | {"gamma": 1 / 4, "L": 2}, 4 * 1 / 4 * 3 * 4),
    ("fedac_ii_a2_discrepancy", STEP4 | {"gamma": 1 / 2, "Q": 5}, 44 * 25 / 256 * 144 * 1.5**12),
    ("fedac_ii_a2_discrepancy", STEP4 | {"gamma": 1 / 4, "Q": 5}, 44 * 25 / 256 * 144),
    ("fedavg_a2_discrepancy", {"eta": 1 / 4, "sigma4": 2, "K": 3}, 192 / 256 * 144),
]


@pytest.mark.parametrize("case", BY_HAND)
def test_numbers_by_hand(case: str) -> None:
    letters, expected = BY_HAND[case]
    got = lemma(case.partition(",")[0], **letters)
    assert got.terms == pytest.approx(dict.fromkeys(TERMS, 0.0) | expected, rel=1e-13)


@pytest.mark.parametrize(("name", "letters", "expected"), DRIFT_BY_HAND)
def test_discrepancies_by_hand(name: str, letters: dict, expected: float) -> None:
    assert lemma(name, **letters) == pytest.approx(expected, rel=1e-13)


def test_every_lemma_is_covered_here() -> None:
    public = {
        name
        for name, value in vars(lemmas).items()
        if inspect.isfunction(value)
        and value.__module__ == lemmas.__name__
        and not name.startswith("_")
    }
    by_hand = {case.partition(",")[0] for case in BY_HAND} | {name for name, *_ in DRIFT_BY_HAND}
    assert public == set(LEMMAS) == by_hand


@repeatable
@given(steps=st.floats(0.01, 1), power=st.integers(-8, 8), length=st.integers(-8, 8))
@every_lemma
def test_lemmas_have_the_right_units(name, steps, power, length) -> None:
    # Values in units of c, lengths in units of s: eta and gamma are s^2/c, L and mu c/s^2,
    # sigma c/s, Q c/s^3; a discrepancy has those of the trace's.
    c, s = 2.0**power, 2.0**length
    overhead = {"fedac_i_": s**2, "fedac_ii_": (c / s) ** 2, "fedavg_a2_": s**4}
    drift = next(unit for prefix, unit in (overhead | {"": c}).items() if name.startswith(prefix))
    units = {"L": c / s**2, "mu": c / s**2, "sigma": c / s, "Q": c / s**3, "D0": s}
    units |= {
        "sigma4": c / s,
        "Psi0": c,
        "Phi0": c,
        "eta": s**2 / c,
        "gamma": s**2 / c,
        "discrepancy": drift,
    }
    letters = of(name, LEMMAS[name] | {"sigma": steps, "sigma4": 2 * steps})
    scaled = {letter: value * units.get(letter, 1) for letter, value in letters.items()}
    unit = drift if name.endswith("_discrepancy") else c
    assert value(name, **scaled) == pytest.approx(value(name, **letters) * unit, rel=1e-12)


# --- the theorems follow from the lemmas ----------------------------------------------------

# Allowed rounding error of two sums whose largest terms are equal.
ROUNDING = 1 - 1e-12


@repeatable
@given(letters=constants())
@pytest.mark.parametrize(
    ("label", "general"),
    [
        ("fedaci:full", "fedac_i_general_eta"),
        ("fedacii:a1:full", "fedac_ii_a1_general_eta"),
        ("fedacii:a2:full", "fedac_ii_a2_general_eta"),
        ("fedavg:a2:full", "fedavg_a2_general_eta"),
    ],
)
def test_the_theorem_is_its_lemma_at_its_step_size(label, general, letters) -> None:
    eta = theorem(label).step_size(**letters).eta
    promised = theorem(label).bound(**letters).total
    assert promised >= lemma(general, eta=eta, **of(general, letters)).total * ROUNDING


@repeatable
@given(letters=constants())
@pytest.mark.parametrize(
    ("label", "general"),
    [
        ("fedaci:a1:gcvx", "fedac_i_general_eta"),
        ("fedacii:a1:gcvx", "fedac_ii_a1_general_eta"),
        ("fedacii:a2:gcvx", "fedac_ii_a2_general_eta"),
        ("fedavg:a2:gcvx", "fedavg_a2_general_eta"),
    ],
)
def test_the_convex_theorem_is_the_lemma_for_the_augmented_objective(
    label, general, letters
) -> None:
    # F - F* <= lam D0^2/2 + the potential of F + lam/2 ||w - w_0||^2, which is lam-strongly convex,
    # (L + lam)-smooth and starts at L D0^2/2 or less (fedaci:gcvx:0, fedacii:gcvx:0).
    letters |= {"T": max(theorem(label).least_steps, letters["T"])}
    chosen = theorem(label).step_size(**letters)
    start = letters["L"] * letters["D0"] ** 2 / 2
    augmented = letters | {"L": letters["L"] + chosen.lam, "mu": chosen.lam}
    augmented |= {"Psi0": start, "Phi0": start}
    promised = theorem(label).bound(**letters).total
    needed = lemma(general, eta=chosen.eta, **of(general, augmented)).total
    assert promised >= (chosen.lam * letters["D0"] ** 2 / 2 + needed) * ROUNDING


@repeatable
@given(letters=constants(), fraction=powers_of_ten(-8, 0))
@pytest.mark.parametrize(
    ("general", "perturbed", "discrepancy"),
    [
        ("fedac_i_general_eta", "fedac_i_perturbed", "fedac_i_discrepancy"),
        ("fedac_ii_a1_general_eta", "fedac_ii_perturbed", "fedac_ii_a1_discrepancy"),
        ("fedac_ii_a2_general_eta", "fedac_ii_perturbed", "fedac_ii_a2_discrepancy"),
        ("fedavg_a2_general_eta", "fedavg_a2_perturbed", "fedavg_a2_discrepancy"),
    ],
)
def test_any_step_size_is_progress_and_discrepancy_together(
    general, perturbed, discrepancy, letters, fraction
) -> None:
    letters |= {"eta": fraction / letters["L"] / (4 if general.startswith("fedavg") else 1)}
    stable = hyperparameters.fedac_i(eta=letters["eta"], mu=letters["mu"], K=letters["K"])
    letters |= {"gamma": stable.gamma}
    drift = lemma(discrepancy, **of(discrepancy, letters))
    together = lemma(perturbed, **of(perturbed, letters), discrepancy=drift).total
    promised = lemma(general, **of(general, letters)).total
    assert promised >= together * ROUNDING
    if general.startswith("fedavg"):  # "immediate": the paper loses nothing here
        assert promised == pytest.approx(together, rel=1e-12)


# --- what vanishes --------------------------------------------------------------------------


@every_lemma
def test_without_noise_only_the_start_is_left(name: str) -> None:
    quiet = of(name, LEMMAS[name] | {"sigma": 0.0, "sigma4": 0.0})
    if name.endswith("_discrepancy"):
        assert lemma(name, **quiet) == 0
        assert lemma(name, **LEMMAS[name]) > 0
        return
    noisy, silent = lemma(name, **LEMMAS[name]), lemma(name, **quiet)
    assert silent.optimization == noisy.optimization > 0
    assert silent.variance == silent.accelerated_variance == 0 < noisy.variance
    # A discrepancy that was measured stays what it is.
    assert silent.discrepancy == (noisy.discrepancy if "discrepancy" in quiet else 0)


@pytest.mark.parametrize("name", [name for name in LEMMAS if "Q" in LEMMAS[name]])
def test_without_third_derivative_there_is_no_discrepancy(name: str) -> None:
    smooth, rough = (lemma(name, **LEMMAS[name] | {"Q": Q}) for Q in (0.0, 3.0))
    if name.endswith("_discrepancy"):
        assert smooth == 0 < rough
    else:
        assert smooth.terms == rough.terms | {"discrepancy": 0.0}
        assert rough.discrepancy > 0


def test_acceleration_amplifies_discrepancies_and_its_absence_does_not() -> None:
    # From gamma just above eta on the printed bounds have a factor that gamma = eta does not have.
    for name in AMPLIFIED:
        letters = LEMMAS[name]
        plain, nudged, full = (
            lemma(name, **letters | {"gamma": gamma}) for gamma in (0.25, 0.25001, 1.0)
        )
        # 1 + gamma^2 mu/eta = 1 + 1/16 to the power 2K = 4, at least
        assert plain * 1.0625**4 < nudged < full


# --- bad input ------------------------------------------------------------------------------

NOT_POSITIVE = [0.0, -1.0, math.nan, math.inf]
NEGATIVE = [-1.0, math.nan, math.inf]
BAD = {
    "eta": NOT_POSITIVE,
    "L": NOT_POSITIVE,
    "mu": NOT_POSITIVE,
    "sigma": NEGATIVE,
    "sigma4": NEGATIVE,
    "Q": NEGATIVE,
    "M": [*NOT_POSITIVE, 0.5],
    "K": [*NOT_POSITIVE, 0.5],
    "T": [*NOT_POSITIVE, 0.5],
    "D0": NOT_POSITIVE,
    "Psi0": NEGATIVE,
    "Phi0": NEGATIVE,
    "discrepancy": NEGATIVE,
    # from eta = 1/4 to sqrt(eta/mu) = 1
    "gamma": [*NOT_POSITIVE, 0.2499, 1.0001],
}


@pytest.mark.parametrize("name", LEMMAS)
def test_impossible_letters_are_refused_by_name(name: str) -> None:
    for letter in LEMMAS[name]:
        for value in BAD[letter]:
            with pytest.raises(InputError, match=rf"^{letter} "):
                lemma(name, **LEMMAS[name] | {letter: value})


@pytest.mark.parametrize("name", [name for name in LEMMAS if "gamma" in LEMMAS[name]])
def test_gamma_out_of_range_says_what_is_allowed(name: str) -> None:
    with pytest.raises(InputError, match=r"from eta=0\.25 to sqrt\(eta/mu\)=1, got 2$"):
        lemma(name, **LEMMAS[name] | {"gamma": 2.0})


@pytest.mark.parametrize("name", [name for name in LEMMAS if "L" in LEMMAS[name]])
def test_mu_is_at_most_L(name: str) -> None:
    with pytest.raises(InputError, match=r"^mu must be at most L"):
        lemma(name, **LEMMAS[name] | {"mu": LEMMAS[name]["L"] * 1.01})


@pytest.mark.parametrize("name", [name for name in LEMMAS if {"K", "T"} <= LEMMAS[name].keys()])
def test_K_is_at_most_T(name: str) -> None:
    with pytest.raises(InputError, match=r"^K \(local steps\) must be at most T \(steps\)"):
        lemma(name, **LEMMAS[name] | {"K": 9})


@pytest.mark.parametrize(
    "name",
    [name for name in LEMMAS if {"eta", "L"} <= LEMMAS[name].keys()],
)
def test_eta_beyond_the_lemma_is_refused(name: str) -> None:
    largest = 1 / 4 / 4 if name.startswith("fedavg_a2") else 1 / 4
    letters = LEMMAS[name] | {"L": 4.0, "mu": 0.25, "eta": largest}
    letters |= {"gamma": largest} if "gamma" in letters else {}
    lemma(name, **letters)
    larger = letters | {letter: largest * 1.01 for letter in ("eta", "gamma") if letter in letters}
    with pytest.raises(InputError, match=rf"needs eta of at most {largest:g}"):
        lemma(name, **larger)


# --- extreme constants ----------------------------------------------------------------------


@pytest.mark.parametrize("name", LEMMAS)
def test_extreme_constants(name: str) -> None:
    for eta in (1e-3 / 4, 1e-15):
        for kappa in (1.0, 1e12):
            for K in (1, 10**9):
                letters = {"eta": eta, "L": 1e3, "mu": 1e3 / kappa, "sigma": 1e-12, "Q": 1e-12}
                letters |= {"sigma4": 1e-12}
                letters |= {"M": 10**6, "K": K, "T": 10**9, "D0": 1e-6, "Psi0": 1e-12}
                letters |= {"Phi0": 1e-12, "discrepancy": 1e-12}
                letters["gamma"] = hyperparameters.fedac_i(eta=eta, mu=letters["mu"], K=K).gamma
                got = value(name, **of(name, letters))
                assert 0 <= got < math.inf


@pytest.mark.parametrize("name", AMPLIFIED)
def test_full_acceleration_over_long_rounds_has_no_bound(name: str) -> None:
    # (1 + gamma^2 mu/eta)^2K = 4^1000 and more: too large for a double, so the bound says nothing.
    letters = LEMMAS[name] | {"gamma": 1.0, "K": 1000}
    assert lemma(name, **letters) == math.inf
    assert lemma(name, **of(name, letters | {"sigma": 0.0, "sigma4": 0.0})) == 0
