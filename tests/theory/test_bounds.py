# SPDX-License-Identifier: Apache-2.0
"""Bounds: the paper's formulas in plain numbers, what they reduce to, and how they grow."""

import math
from itertools import pairwise, product
from math import e, exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.theory import THEOREMS as ALL
from fedac.theory import theorem
from fedac.theory.bounds import TERMS, Bound

pytestmark = pytest.mark.slow

COMMON = {"L": 2.0, "mu": 0.5, "sigma": 2.0, "M": 2, "K": 16, "T": 1024}
CONVEX = {"L": 2.0, "sigma": 2.0, "M": 2, "K": 16, "T": 1024, "D0": 3.0}
THEOREMS = {
    "fedaci:full": COMMON | {"Psi0": 1.0},
    "fedacii:a1:full": COMMON | {"Phi0": 1.0},
    "fedacii:a2:full": COMMON | {"Phi0": 1.0, "Q": 3.0},
    "fedavg:a1": COMMON | {"D0": 3.0},
    "fedavg:a2:full": COMMON | {"D0": 3.0, "Q": 3.0},
    "mb-sgd": COMMON | {"D0": 3.0},
    "mb-ac-sgd": COMMON | {"Psi0": 1.0},
    "ac-sgd": COMMON | {"Psi0": 1.0},
    "fedaci:a1:gcvx": CONVEX,
    "fedacii:a1:gcvx": CONVEX,
    "fedacii:a2:gcvx": CONVEX | {"Q": 3.0},
    "fedavg:a1:gcvx": CONVEX,
    "fedavg:a2:gcvx": CONVEX | {"Q": 3.0},
    "mb-sgd:gcvx": CONVEX,
    "mb-ac-sgd:gcvx": CONVEX,
    "ac-sgd:gcvx": CONVEX,
}
LEAST_STEPS = {
    "fedaci:a1:gcvx": 24,
    "fedacii:a1:gcvx": 1000,
    "fedacii:a2:gcvx": 1000,
    "fedavg:a2:gcvx": 100,
}
# The terms that are there under noise, for objectives with a third derivative.
NOISE = {
    name: {"variance"}
    | ({"discrepancy"} if name.startswith("fed") else set())
    | ({"accelerated_variance"} if name.startswith("fedacii:a2") else set())
    for name in THEOREMS
}
every_theorem = pytest.mark.parametrize("name", THEOREMS)
third_order = pytest.mark.parametrize("name", [name for name in THEOREMS if "Q" in THEOREMS[name]])

repeatable = settings(deadline=None, derandomize=True, max_examples=60)


def bound(name: str, **letters) -> Bound:
    return theorem(name).bound(**letters)


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def constants(draw) -> dict[str, float]:
    """Draw all letters, over many orders of magnitude."""
    T = draw(st.integers(1, 10**6))
    L = draw(powers_of_ten(-3, 3))
    return {
        "L": L,
        "mu": L / draw(powers_of_ten(0, 6)),
        "sigma": draw(powers_of_ten(-4, 4)),
        "Q": draw(powers_of_ten(-4, 4)),
        "M": draw(st.integers(1, 10**6)),
        "K": T ** draw(st.floats(0, 1)),
        "T": T,
        "D0": draw(powers_of_ten(-3, 3)),
        "Psi0": draw(powers_of_ten(-6, 6)),
        "Phi0": draw(powers_of_ten(-6, 6)),
    }


def of(name: str, letters: dict[str, float]) -> dict[str, float]:
    """Choose the letters that a theorem needs, and enough steps."""
    chosen = {letter: value for letter, value in letters.items() if letter in THEOREMS[name]}
    return chosen | {"T": max(letters["T"], LEAST_STEPS.get(name, 1))}


# Per theorem: letters, and the paper's terms in numbers. mu/L = 1/4 is above sqrt(mu/(L K))
# exactly where K is above 4, which decides between the two exponentials.
STRONGLY = {"L": 2, "mu": 1 / 2, "sigma": 2, "M": 2, "T": 8}
BY_HAND = {
    # sigma^2/(mu M T) = 4/8; L K^2 sigma^2/(mu^2 T^3) = 8/128
    "fedaci:full, K = 1": (
        STRONGLY | {"K": 1, "Psi0": 3},
        {
            "optimization": 3 * exp(-4),
            "variance": 1 * log(e + 6) ** 2,
            "discrepancy": 25 * log(e + 48) ** 4,
        },
    ),
    # L K^2 sigma^2/(mu^2 T^3) = 512/128
    "fedaci:full, K = T": (
        STRONGLY | {"K": 8, "Psi0": 3},
        {
            "optimization": 3 * exp(-2),
            "variance": 1 * log(e + 6) ** 2,
            "discrepancy": 1600 * log(e + 3 / 4) ** 4,
        },
    ),
    # L^2 K^3 sigma^2/(mu^3 T^4) = 16/512
    "fedacii:a1:full, K = 1": (
        STRONGLY | {"K": 1, "Phi0": 3},
        {
            "optimization": 3 * exp(-4 / 3),
            "variance": 2 * log(e + 6),
            "discrepancy": 8101 / 32 * log(e + 96) ** 4,
        },
    ),
    # L^2 K^3 sigma^2/(mu^3 T^4) = 16
    "fedacii:a1:full, K = T": (
        STRONGLY | {"K": 8, "Phi0": 3},
        {
            "optimization": 3 * exp(-2 / 3),
            "variance": 2 * log(e + 6),
            "discrepancy": 8101 * 16 * log(e + 3 / 16) ** 4,
        },
    ),
    # L K^2 sigma^2/(mu^2 M T^3) = 8/256; Q^2 K^6 sigma^4/(mu^5 T^8) = 64/2^19
    "fedacii:a2:full, K = 1": (
        STRONGLY | {"K": 1, "Phi0": 3, "Q": 2},
        {
            "optimization": 3 * exp(-4 / 3),
            "variance": 2 * log(e + 6),
            "accelerated_variance": 55 / 32 * log(e + 96) ** 3,
            "discrepancy": e**18 / 8192 * log(e + 24576) ** 8,
        },
    ),
    # L K^2 sigma^2/(mu^2 M T^3) = 2; Q^2 K^6 sigma^4/(mu^5 T^8) = 2^24/2^19
    "fedacii:a2:full, K = T": (
        STRONGLY | {"K": 8, "Phi0": 3, "Q": 2},
        {
            "optimization": 3 * exp(-2 / 3),
            "variance": 2 * log(e + 6),
            "accelerated_variance": 110 * log(e + 3 / 2) ** 3,
            "discrepancy": 32 * e**18 * log(e + 3 / 32) ** 8,
        },
    ),
    # mu T/(4 L) = 1/2; L K sigma^2/(mu^2 T^2) = 32/16; mu T D0^2 = 16
    "fedavg:a1": (
        STRONGLY | {"K": 4, "D0": 2},
        {
            "optimization": 32 * exp(-1 / 2),
            "variance": 2 / 2 * log(e + 32),
            "discrepancy": 5 * log(e + 8) ** 2,
        },
    ),
    # mu^2 M T^2 D0^2/sigma^2 = 128/4; Q^2 K^2 sigma^4/(mu^5 T^4) = 1024/128;
    # mu^6 T^5 D0^2/(Q^2 K^2 sigma^4) = 2048/1024
    "fedavg:a2:full": (
        STRONGLY | {"K": 4, "D0": 2, "Q": 2},
        {
            "optimization": 32 * exp(-1 / 4),
            "variance": 3 / 2 * log(e + 32),
            "discrepancy": 3073 * 8 * log(e + 2) ** 4,
        },
    ),
    # mu T/(2 K L) = 1/4; mu T/K D0^2 = 4
    "mb-sgd": (
        STRONGLY | {"K": 4, "D0": 2},
        {"optimization": 16 * exp(-1 / 4), "variance": 2 / 2 * log(e + 8)},
    ),
    # sqrt(mu/L) T/K = 1
    "mb-ac-sgd": (
        STRONGLY | {"K": 4, "Psi0": 3},
        {"optimization": 3 * exp(-1), "variance": 2 * 1 / 2 * log(e + 6)},
    ),
    # sqrt(mu/L) T = 4; sigma^2/(mu T) = 1, whatever M and K
    "ac-sgd": (
        STRONGLY | {"K": 4, "Psi0": 3},
        {"optimization": 3 * exp(-4), "variance": 2 * log(e + 3)},
    ),
    # L K D0^2/T^2 = 512/4096; T^2/K = 1024; sigma D0/sqrt(M T) = 4/16; L D0 sqrt(M T)/sigma = 512;
    # (L K^2 sigma^2 D0^4)^1/3/T = 32/64; (L^2 D0^2/(K^2 sigma^2))^1/3 T = 4 64
    "fedaci:a1:gcvx": (
        {"L": 2, "sigma": 1 / 2, "M": 4, "K": 4, "T": 64, "D0": 8},
        {
            "optimization": 1 / 4 * log(e**2 + 1024) ** 2,
            "variance": 1 / 2 * log(e**2 + 512) ** 2,
            "discrepancy": 1005 / 2 * log(e**4 + 256) ** 4,
        },
    ),
    # L K D0^2/T^2 = 512/2^20; T^2/K = 2^16; sigma D0/sqrt(M T) = 2/64; L D0 sqrt(M T)/sigma = 1024;
    # (L sigma D0^3)^1/2 K^3/4/T = 8 8/1024; (L D0/sigma)^1/2 T/K^3/4 = 4 1024/8
    "fedacii:a1:gcvx": (
        {"L": 2, "sigma": 1 / 2, "M": 4, "K": 16, "T": 1024, "D0": 4},
        {
            "optimization": 5 / 1024 * log(e**2 + 2**16) ** 2,
            "variance": 5 / 32 * log(e + 1024),
            "discrepancy": 16411 / 16 * log(e**4 + 512) ** 4,
        },
    ),
    # L K D0^2/T^2 = 512/2^22; T^2/K = 2^20; sigma D0/sqrt(M T) = 4/128;
    # (L K^2 sigma^2 D0^4/M)^1/3/T = 16/2048; (Q sigma^2 D0^5/T)^1/3 K/T = 2 4/2048; L D0^2 = 128
    "fedacii:a2:gcvx": (
        {"L": 2, "sigma": 1 / 2, "Q": 2, "M": 8, "K": 4, "T": 2048, "D0": 8},
        {
            "optimization": 5 / 4096 * log(e**2 + 2**20) ** 2,
            "variance": 5 / 32 * log(e + 4096),
            "accelerated_variance": 139 / 128 * log(e**3 + 16384) ** 3,
            "discrepancy": e**19 / 256 * log(e**8 + 32768) ** 8,
        },
    ),
    # L D0^2/T = 2; sigma D0/sqrt(M T) = 4/16; (L K sigma^2 D0^4/T^2)^1/3 = 8^1/3
    "fedavg:a1:gcvx": (
        {"L": 2, "sigma": 1 / 2, "M": 4, "K": 16, "T": 64, "D0": 8},
        {"optimization": 4 * 2, "variance": 2 / 4, "discrepancy": 2.5 * 2},
    ),
    # L D0^2/T = 1/2; sigma D0/sqrt(M T) = 4/32; (Q K sigma^2 D0^5/T^2)^1/3 = 8^1/3
    "fedavg:a2:gcvx": (
        {"L": 2, "sigma": 1 / 2, "Q": 2, "M": 4, "K": 32, "T": 256, "D0": 8},
        {
            "optimization": 25 * log(e + 256),
            "variance": 3 / 4 * log(e**2 + 256),
            "discrepancy": 6152 * log(e**5 + 256) ** 4,
        },
    ),
    # L K D0^2/T = 512/64
    "mb-sgd:gcvx": (
        {"L": 2, "sigma": 1 / 2, "M": 4, "K": 4, "T": 64, "D0": 8},
        {"optimization": 2 * 8, "variance": 2 / 4},
    ),
    # L K^2 D0^2/T^2 = 2048/4096; R^2 = 256; L D0 sqrt(M T)/sigma = 512
    "mb-ac-sgd:gcvx": (
        {"L": 2, "sigma": 1 / 2, "M": 4, "K": 4, "T": 64, "D0": 8},
        {
            "optimization": 2 * 1 / 2 * log(e**2 + 256) ** 2,
            "variance": 2 * 1 / 4 * log(e + 512),
        },
    ),
    # L D0^2/T^2 = 128/4096; sigma D0/sqrt(T) = 1/2; L D0 sqrt(T)/sigma = 256
    "ac-sgd:gcvx": (
        {"L": 2, "sigma": 1 / 2, "M": 4, "K": 4, "T": 64, "D0": 8},
        {
            "optimization": 2 * 1 / 32 * log(e**2 + 4096) ** 2,
            "variance": 2 * 1 / 2 * log(e + 256),
        },
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_numbers_by_hand(case: str) -> None:
    letters, expected = BY_HAND[case]
    got = bound(case.partition(",")[0], **letters)
    assert got.terms == pytest.approx(dict.fromkeys(TERMS, 0.0) | expected, rel=1e-13)
    assert got.total == pytest.approx(sum(expected.values()), rel=1e-13)
    assert got.dominant == max(expected, key=lambda term: expected[term])


def test_every_bound_is_covered_here() -> None:
    labels = {one.label for one in ALL}
    assert labels == set(THEOREMS) == {case.partition(",")[0] for case in BY_HAND}


@repeatable
@given(letters=constants(), value=st.integers(-8, 8), length=st.integers(-8, 8))
def test_bounds_have_the_right_units(letters, value, length) -> None:
    # Values in units of c, lengths in units of s: L and mu are c/s^2, sigma is c/s, Q is c/s^3.
    c, s = 2.0**value, 2.0**length
    units = {"L": c / s**2, "mu": c / s**2, "sigma": c / s, "Q": c / s**3, "D0": s}
    units |= {"Psi0": c, "Phi0": c, "M": 1, "K": 1, "T": 1}
    scaled = {letter: value * units[letter] for letter, value in letters.items()}
    for name in THEOREMS:
        one, other = bound(name, **of(name, letters)), bound(name, **of(name, scaled))
        expected = {term: value * c for term, value in one.terms.items()}
        assert other.terms == pytest.approx(expected, rel=1e-9), name
        assert other.logs == pytest.approx(one.logs, rel=1e-9), name


# --- limits and reductions ------------------------------------------------------------------


@every_theorem
def test_the_terms_that_noise_causes_vanish_with_it_and_no_others(name: str) -> None:
    noisy, *quieter = (bound(name, **THEOREMS[name] | {"sigma": 10.0**-k}) for k in range(0, 60, 5))
    silent = bound(name, **THEOREMS[name] | {"sigma": 0.0})
    assert {term for term, value in noisy.terms.items() if value} == NOISE[name] | {"optimization"}
    assert silent.terms == dict.fromkeys(TERMS, 0.0) | {"optimization": noisy.optimization}
    for term in NOISE[name]:
        values = [getattr(each, term) for each in (noisy, *quieter)]
        assert all(b < a for a, b in pairwise(values))
        # The weakest dependence is sigma^1/2, times a logarithm.
        assert values[-1] < 1e-16 * values[0]


@every_theorem
def test_terms_without_a_logarithm_have_factor_one(name: str) -> None:
    silent = bound(name, **THEOREMS[name] | {"sigma": 0.0})
    logs = {term: log for term, log in silent.logs.items() if log != 1}
    if name == "fedavg:a2:gcvx":  # of T alone, whatever the noise
        expected = {"optimization", "variance", "discrepancy"}
    elif name.startswith(("fedac", "mb-ac", "ac-")) and name.endswith(":gcvx"):
        expected = {"optimization"}
    else:
        expected = set()
    assert set(logs) == expected


@third_order
def test_only_the_discrepancy_vanishes_with_the_third_derivative(name: str) -> None:
    rough, *smoother = (bound(name, **THEOREMS[name] | {"Q": 10.0**-k}) for k in range(0, 60, 5))
    quadratic = bound(name, **THEOREMS[name] | {"Q": 0.0})
    assert rough.discrepancy > 0
    assert quadratic.terms == rough.terms | {"discrepancy": 0.0}
    values = [each.discrepancy for each in (rough, *smoother)]
    assert all(b < a for a, b in pairwise(values))
    assert values[-1] < 1e-10 * values[0]


# sigma^2/(mu T) = 1: the variance of one worker on its own, and the terms that never had an M.
@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("fedaci:full", 2 * log(e + 3) ** 2),
        ("fedacii:a1:full", 4 * log(e + 3)),
        ("fedacii:a2:full", 4 * log(e + 3)),
        ("fedavg:a1", 2 * log(e + 16)),
        ("fedavg:a2:full", 3 * log(e + 16)),
        ("mb-sgd", 2 * log(e + 4)),
        ("mb-ac-sgd", 2 * log(e + 3)),
        ("ac-sgd", 2 * log(e + 3)),
    ],
)
def test_one_worker_has_the_variance_of_sequential_sgd(name: str, variance: float) -> None:
    letters = STRONGLY | {"M": 1, "K": 4, "Psi0": 3, "Phi0": 3, "D0": 2, "Q": 2}
    alone, many = (bound(name, **of(name, letters | {"M": M})) for M in (1, 1000))
    assert alone.variance == pytest.approx(variance, rel=1e-14)
    for term in ("optimization", "discrepancy"):
        assert getattr(alone, term) == getattr(many, term)


@pytest.mark.parametrize(
    "name", ["fedaci:a1:gcvx", "fedacii:a1:gcvx", "fedacii:a2:gcvx", "fedavg:a2:gcvx"]
)
def test_workers_only_reduce_variance(name: str) -> None:
    alone, many = (bound(name, **THEOREMS[name] | {"M": M}) for M in (1, 1000))
    changed = {term for term in TERMS if getattr(many, term) < getattr(alone, term)}
    assert changed == NOISE[name] - {"discrepancy"}


# mu/L = 1/4, T = 8: at K = 1 the exponent is sqrt(mu/L) T = 4, that of accelerated SGD; at K = T
# it is mu T/L = 2, that of SGD. Where mu T/L is below 1 one round still gives sqrt(mu T/L).
@pytest.mark.parametrize(("name", "slower"), [("fedaci:full", 1), ("fedacii:a1:full", 3)])
@pytest.mark.parametrize(
    ("mu", "K", "exponent"), [(1 / 2, 1, 4), (1 / 2, 4, 2), (1 / 2, 8, 2), (1 / 64, 8, 1 / 4)]
)
def test_the_exponential_interpolates_from_accelerated_to_plain(
    name: str, slower: int, mu: float, K: int, exponent: float
) -> None:
    letters = of(name, STRONGLY | {"mu": mu, "K": K, "Psi0": 1, "Phi0": 1})
    expected = exp(-exponent / slower)
    assert bound(name, **letters).optimization == pytest.approx(expected, rel=1e-14)


@repeatable
@given(letters=constants())
def test_minibatches_of_one_step_are_the_local_algorithms(letters) -> None:
    letters |= {"K": 1, "Psi0": letters["L"] * letters["D0"] ** 2}
    # Minibatch SGD is proven for eta up to 1/(2L), FedAvg for half of that.
    plain = bound("mb-sgd", **of("mb-sgd", letters | {"L": 2 * letters["L"]}))
    sgd = bound("fedavg:a1", **of("fedavg:a1", letters))
    assert plain.optimization == pytest.approx(sgd.optimization, rel=1e-12)
    assert plain.variance == pytest.approx(sgd.variance, rel=1e-12)
    fast, fedac = (bound(name, **of(name, letters)) for name in ("mb-ac-sgd", "fedaci:full"))
    assert fast.optimization == pytest.approx(fedac.optimization, rel=1e-12)
    # FedAc-I's theorem has 2 log^2 where the same without discrepancy has 2 log.
    expected = fast.variance * fast.logs["variance"]
    assert fedac.variance == pytest.approx(expected, rel=1e-12)


@repeatable
@given(letters=constants(), K=st.integers(1, 64), R=st.integers(1, 10**4))
def test_minibatches_are_fewer_steps_of_more_workers(letters, K, R) -> None:
    letters |= {"K": K, "T": K * R}
    same = letters | {"M": letters["M"] * K, "K": 1, "T": R}
    for name in ("mb-sgd", "mb-ac-sgd", "mb-sgd:gcvx", "mb-ac-sgd:gcvx"):
        expected = bound(name, **of(name, letters)).terms
        assert bound(name, **of(name, same)).terms == pytest.approx(expected, rel=1e-9), name


# --- monotonicity ---------------------------------------------------------------------------


def without_logs(got: Bound) -> dict[str, float]:
    return {term: value / got.logs.get(term, 1.0) for term, value in got.terms.items()}


def not_above(more: dict[str, float], less: dict[str, float]) -> bool:
    return all(more[term] <= less[term] * (1 + 1e-12) for term in TERMS)


@repeatable
@given(letters=constants(), factor=st.floats(1, 1000))
def test_more_workers_or_more_rounds_never_hurt_up_to_logarithms(letters, factor) -> None:
    more_workers = letters | {"M": letters["M"] * factor}
    more_rounds = letters | {"K": max(1.0, letters["K"] / factor)}
    for name in THEOREMS:
        less = without_logs(bound(name, **of(name, letters)))
        assert not_above(without_logs(bound(name, **of(name, more_workers))), less), name
        assert not_above(without_logs(bound(name, **of(name, more_rounds))), less), name


@repeatable
@given(letters=constants(), factor=st.floats(1, 1000))
def test_the_convex_theorems_never_get_worse_even_with_logarithms(letters, factor) -> None:
    # Their log^p(e^p + x) is what makes x^-1 log^p decrease (helper:inv:times:log).
    more_workers = letters | {"M": letters["M"] * factor}
    more_rounds = letters | {"K": max(1.0, letters["K"] / factor)}
    for name in (name for name in THEOREMS if name.endswith(":gcvx")):
        less = bound(name, **of(name, letters)).terms
        assert not_above(bound(name, **of(name, more_workers)).terms, less), name
        assert not_above(bound(name, **of(name, more_rounds)).terms, less), name


def test_with_its_logarithm_a_printed_term_can_grow_with_more_rounds() -> None:
    # L K^2 sigma^2/(mu^2 T^3) falls from 1 to 1/4, but log^4(e + 4) is 4.4 times log^4(e + 1).
    letters = {"L": 64, "mu": 1, "sigma": 1, "M": 1, "T": 16, "Psi0": 1}
    two_rounds, four_rounds = (bound("fedaci:full", **letters, K=K) for K in (8, 4))
    assert two_rounds.discrepancy == pytest.approx(400 * log(e + 1) ** 4, rel=1e-14)
    assert four_rounds.discrepancy == pytest.approx(100 * log(e + 4) ** 4, rel=1e-14)
    assert four_rounds.discrepancy > 1.1 * two_rounds.discrepancy
    assert not_above(without_logs(four_rounds), without_logs(two_rounds))


# --- the record -----------------------------------------------------------------------------


def test_a_bound_is_the_sum_of_its_terms() -> None:
    got = Bound(optimization=1.0, variance=2.0, discrepancy=4.0, accelerated_variance=8.0)
    assert got.terms == dict(zip(TERMS, (1.0, 2.0, 8.0, 4.0), strict=True))
    assert (got.total, got.dominant) == (15.0, "accelerated_variance")


# --- extreme constants ----------------------------------------------------------------------


@every_theorem
def test_extreme_constants(name: str) -> None:
    sizes = [(1, 1e-12, 1e-6), (10**6, 1e6, 1e6)]
    for sigma, K, kappa, size in product((1e-12, 1e6), (1, 31623, 10**9), (1.0, 1e12), sizes):
        M, Q, scale = size
        letters = {"L": 1e3, "mu": 1e3 / kappa, "sigma": sigma, "Q": Q, "M": M, "K": K}
        letters |= {"T": 10**9, "D0": scale, "Psi0": scale**2, "Phi0": scale**2}
        got = bound(name, **{letter: letters[letter] for letter in THEOREMS[name]})
        assert all(0 <= value < math.inf for value in got.terms.values())
        assert all(got.terms[term] > 0 for term in NOISE[name])
        assert all(1 <= value < math.inf for value in got.logs.values())
