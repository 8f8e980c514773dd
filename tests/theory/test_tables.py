# SPDX-License-Identifier: Apache-2.0
"""The paper's two tables: as printed, as the theorems say, and one from the other."""

import re
from fractions import Fraction
from math import log2, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.theory import THEOREMS, tables, theorem
from fedac.theory.bounds import Bound, Rate
from fedac.theory.tables import TABLE_1, TABLE_2

LETTERS = {"L": 7.0, "Q": 11.0, "sigma": 1.3, "mu": 0.6, "D0": 1.7, "T": 4096.0, "M": 24.0}
LETTERS |= {"R": 32.0}

# The second table as printed, row by row.
CONVERGENCE = {
    (1, True, "FedAvg"): lambda L, Q, sigma, mu, D0, T, M, R: (
        sigma**2 / (mu * M * T) + L * sigma**2 / (mu**2 * T * R)
    ),
    (1, True, "FedAc"): lambda L, Q, sigma, mu, D0, T, M, R: (
        sigma**2 / (mu * M * T)
        + min(L * sigma**2 / (mu**2 * T * R**2), L**2 * sigma**2 / (mu**3 * T * R**3))
    ),
    (2, True, "FedAvg"): lambda L, Q, sigma, mu, D0, T, M, R: (
        sigma**2 / (mu * M * T) + Q**2 * sigma**4 / (mu**5 * T**2 * R**2)
    ),
    (2, True, "FedAc"): lambda L, Q, sigma, mu, D0, T, M, R: (
        sigma**2 / (mu * M * T) + Q**2 * sigma**4 / (mu**5 * T**2 * R**6)
    ),
    (1, False, "FedAvg"): lambda L, Q, sigma, mu, D0, T, M, R: (
        L * D0**2 / T
        + sigma * D0 / (M * T) ** (1 / 2)
        + L ** (1 / 3) * sigma ** (2 / 3) * D0 ** (4 / 3) / (T ** (1 / 3) * R ** (1 / 3))
    ),
    (1, False, "FedAc"): lambda L, Q, sigma, mu, D0, T, M, R: (
        L * D0**2 / (T * R)
        + sigma * D0 / (M * T) ** (1 / 2)
        + min(
            L ** (1 / 3) * sigma ** (2 / 3) * D0 ** (4 / 3) / (T ** (1 / 3) * R ** (2 / 3)),
            L ** (1 / 2) * sigma ** (1 / 2) * D0 ** (3 / 2) / (T ** (1 / 4) * R ** (3 / 4)),
        )
    ),
    (2, False, "FedAvg"): lambda L, Q, sigma, mu, D0, T, M, R: (
        L * D0**2 / T
        + sigma * D0 / (M * T) ** (1 / 2)
        + Q ** (1 / 3) * sigma ** (2 / 3) * D0 ** (5 / 3) / (T ** (1 / 3) * R ** (1 / 3))
    ),
    (2, False, "FedAc"): lambda L, Q, sigma, mu, D0, T, M, R: (
        L * D0**2 / (T * R)
        + sigma * D0 / (M * T) ** (1 / 2)
        + L ** (1 / 3)
        * sigma ** (2 / 3)
        * D0 ** (4 / 3)
        / (M ** (1 / 3) * T ** (1 / 3) * R ** (2 / 3))
        + Q ** (1 / 3) * sigma ** (2 / 3) * D0 ** (5 / 3) / (T ** (1 / 3) * R)
    ),
}
# The first table as printed: rounds at M workers and T steps, strongly convex and convex.
SPEEDUP = [
    (1, "FedAvg", lambda M, T: T ** (1 / 2) * M ** (1 / 2), None),
    (1, "FedAvg", lambda M, T: T ** (1 / 3) * M ** (1 / 3), None),
    (1, "FedAvg", lambda M, T: M, lambda M, T: T ** (1 / 2) * M ** (3 / 2)),
    (1, "FedAvg", lambda M, T: M, lambda M, T: T ** (1 / 2) * M ** (3 / 2)),
    (
        1,
        "FedAc",
        lambda M, T: M ** (1 / 3),
        lambda M, T: min(T ** (1 / 4) * M ** (3 / 4), T ** (1 / 3) * M ** (2 / 3)),
    ),
    (
        2,
        "FedAvg",
        lambda M, T: max(T ** (-1 / 2) * M ** (1 / 2), 1),
        lambda M, T: T ** (1 / 2) * M ** (3 / 2),
    ),
    (
        2,
        "FedAc",
        lambda M, T: max(T ** (-1 / 6) * M ** (1 / 6), 1),
        lambda M, T: max(T ** (1 / 4) * M ** (1 / 4), T ** (1 / 6) * M ** (1 / 2)),
    ),
]
# Theorem -> its row of the second table, and which entry of a minimum is its own.
ROWS = {
    "fedavg:a1": ((1, True, "FedAvg"), 0),
    "fedaci:full": ((1, True, "FedAc"), 0),
    "fedacii:a1:full": ((1, True, "FedAc"), 1),
    "fedavg:a2:full": ((2, True, "FedAvg"), 0),
    "fedacii:a2:full": ((2, True, "FedAc"), 0),
    "fedavg:a1:gcvx": ((1, False, "FedAvg"), 0),
    "fedaci:a1:gcvx": ((1, False, "FedAc"), 0),
    "fedacii:a1:gcvx": ((1, False, "FedAc"), 1),
    "fedavg:a2:gcvx": ((2, False, "FedAvg"), 0),
    "fedacii:a2:gcvx": ((2, False, "FedAc"), 0),
}
every_theorem = pytest.mark.parametrize("name", ROWS)


def exponents(power: str) -> dict[str, Fraction]:
    """Parse a power such as ``L^(1/3) / (T R^2)`` into exponents by letter."""
    above, _, below = power.partition(" / ")
    found = {}
    for sign, side in ((1, above), (-1, below)):
        for letter, exponent in re.findall(r"([A-Za-z]\w*)(?:\^\(?([\d/]+)\)?)?", side):
            found[letter] = sign * Fraction(exponent or 1)
    return found


def powers(entry: str) -> list[str]:
    """Return the powers of which an entry is the minimum or the maximum."""
    return re.sub(r"^m(in|ax){|}$", "", entry).split(", ")


def value(entry: str, **letters: float) -> float:
    """Evaluate an entry of the tables."""
    values = [
        prod(letters[letter] ** float(e) for letter, e in exponents(power).items())
        for power in powers(entry)
    ]
    return max(values) if entry.startswith("max") else min(values)


def row(key: tuple[int, bool, str]) -> tables.Convergence:
    [found] = [
        row for row in TABLE_2 if (row.assumption, row.strongly_convex, row.algorithm) == key
    ]
    return found


def own(name: str) -> dict[str, str]:
    """Return the powers of the table that are a theorem's own."""
    key, index = ROWS[name]
    listed = {term: powers(entry) for term, entry in row(key).terms.items()}
    return {term: found[index if len(found) > 1 else 0] for term, found in listed.items()}


def arguments(letters: dict[str, float]) -> dict[str, float]:
    """Return the letters of a theorem: K is T/R and the potentials start at L D0^2."""
    start = letters["L"] * letters["D0"] ** 2
    known = letters | {"K": letters["T"] / letters["R"], "Psi0": start, "Phi0": start}
    return {letter: value for letter, value in known.items() if letter != "R"}


def rate_of(name: str, letters: dict[str, float]) -> Rate:
    return theorem(name).rate(**arguments(letters))


def bound_of(name: str, letters: dict[str, float]) -> Bound:
    return theorem(name).bound(**arguments(letters))


# --- as printed -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", CONVERGENCE)
@pytest.mark.parametrize("R", [2.0, 300.0])
def test_convergence_rates_are_those_of_the_paper(key, R: float) -> None:
    letters = LETTERS | {"R": R}
    total = sum(value(term, **letters) for term in row(key).terms.values())
    assert total == pytest.approx(CONVERGENCE[key](**letters), rel=1e-13)


@pytest.mark.parametrize("index", range(len(SPEEDUP)))
@pytest.mark.parametrize(("M", "T"), [(7.0, 5000.0), (5000.0, 7.0)])
def test_speedups_are_those_of_the_paper(index: int, M: float, T: float) -> None:
    assumption, algorithm, strongly_convex, convex = SPEEDUP[index]
    found = TABLE_1[index]
    assert (found.assumption, found.algorithm) == (assumption, algorithm)
    assert value(found.strongly_convex, M=M, T=T) == pytest.approx(strongly_convex(M, T), rel=1e-13)
    if convex is None:
        assert found.convex is None
    else:
        assert value(found.convex, M=M, T=T) == pytest.approx(convex(M, T), rel=1e-13)


def test_there_are_no_other_rows() -> None:
    assert len(TABLE_1) == len(SPEEDUP)
    keys = [(found.assumption, found.strongly_convex, found.algorithm) for found in TABLE_2]
    assert keys == list(CONVERGENCE)


def test_powers_by_hand() -> None:
    power = "L^(1/3) M / (T^2 R^(2/3))"
    assert exponents(power) == {"L": Fraction(1, 3), "M": 1, "T": -2, "R": Fraction(-2, 3)}
    # 8^1/3 4/(2^2 8^2/3)
    assert value(power, L=8, M=4, T=2, R=8) == pytest.approx(1 / 2, rel=1e-15)
    assert [value(entry, M=2, T=3) for entry in ("1", "max{M, T^2}", "min{M, T^2}")] == [1, 9, 2]


def test_references_are_theorems_with_the_conditions_of_the_row() -> None:
    cited = {one.short_version or one.label: one for one in THEOREMS}
    labels = [label for row in TABLE_1 + TABLE_2 for label in row.reference.split(", ")]
    assert {label for label in labels if ":" in label} <= set(cited)
    for found in TABLE_1 + TABLE_2:
        for label in found.reference.split(", "):
            if label in cited:
                assert cited[label].assumption == found.assumption
                assert cited[label].algorithm.startswith(found.algorithm.lower())
    for found in TABLE_2:
        if found.reference in cited:
            assert cited[found.reference].strongly_convex == found.strongly_convex


# --- as the theorems say --------------------------------------------------------------------


@every_theorem
def test_rates_are_entries_of_the_table(name: str) -> None:
    rate = rate_of(name, LETTERS)
    for term, power in own(name).items():
        assert getattr(rate, term) == pytest.approx(value(power, **LETTERS), rel=1e-13)
    # Terms the table does not have are zero, but for the one that it leaves out (see below).
    others = {"optimization", "variance", "accelerated_variance", "discrepancy"} - set(own(name))
    left_out = {"accelerated_variance"} if name == "fedacii:a2:full" else set()
    assert {term for term in others if getattr(rate, term)} == left_out


@pytest.mark.parametrize(
    ("name", "optimization", "variance"),
    [
        ("mb-sgd", 0, 1.3**2 / (0.6 * 24 * 4096)),
        ("mb-ac-sgd", 0, 1.3**2 / (0.6 * 24 * 4096)),
        # K/T = 1/R
        ("mb-sgd:gcvx", 7 * 1.7**2 / 32, 1.3 * 1.7 / (24 * 4096) ** (1 / 2)),
        ("mb-ac-sgd:gcvx", 7 * 1.7**2 / 32**2, 1.3 * 1.7 / (24 * 4096) ** (1 / 2)),
    ],
)
def test_minibatches_have_no_discrepancy(name: str, optimization: float, variance: float) -> None:
    rate = rate_of(name, LETTERS)
    assert rate.optimization == pytest.approx(optimization, rel=1e-13)
    assert rate.variance == pytest.approx(variance, rel=1e-13)
    assert rate.discrepancy == rate.accelerated_variance == 0
    assert rate.noise == rate.variance


@every_theorem
def test_bounds_have_the_exponents_of_the_table(name: str) -> None:
    letters = ["R", "M", "T", "L", "sigma", "Q", "D0", *["mu"] * (not name.endswith(":gcvx"))]
    one = bound_of(name, LETTERS)
    for letter in letters:
        # R at fixed T varies K = T/R; T at fixed R varies K as well.
        two = bound_of(name, LETTERS | {letter: 2 * LETTERS[letter]})
        for term, power in own(name).items():
            before, after = (getattr(b, term) / b.logs.get(term, 1.0) for b in (one, two))
            expected = float(exponents(power).get(letter, 0))
            assert log2(after / before) == pytest.approx(expected, abs=1e-3), (letter, term)


@every_theorem
def test_bounds_are_multiples_of_the_table_and_their_logarithms(name: str) -> None:
    # The constants of the theorems; the exponential term has neither log nor power.
    constants = {
        "fedavg:a1": {"variance": 2, "discrepancy": 2.5},
        "fedaci:full": {"variance": 2, "discrepancy": 400},
        "fedacii:a1:full": {"variance": 4, "discrepancy": 8101},
        "fedavg:a2:full": {"variance": 3, "discrepancy": 3073},
        "fedacii:a2:full": {"variance": 4, "discrepancy": 65659969.13733051},  # e^18
        "fedavg:a1:gcvx": {"optimization": 4, "variance": 2, "discrepancy": 2.5},
        "fedaci:a1:gcvx": {"optimization": 2, "variance": 2, "discrepancy": 1005},
        "fedacii:a1:gcvx": {"optimization": 10, "variance": 5, "discrepancy": 16411},
        "fedavg:a2:gcvx": {"optimization": 50, "variance": 6, "discrepancy": 3076},
        "fedacii:a2:gcvx": {
            "optimization": 10,
            "variance": 5,
            "accelerated_variance": 139,
            "discrepancy": 178482300.96318725,  # e^19
        },
    }[name]
    bound = bound_of(name, LETTERS)
    got = {
        term: getattr(bound, term) / bound.logs.get(term, 1.0) / value(power, **LETTERS)
        for term, power in own(name).items()
    }
    assert got == pytest.approx(constants, rel=1e-12)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ((1, True, "FedAc"), ("fedaci:full", "fedacii:a1:full")),
        ((1, False, "FedAc"), ("fedaci:a1:gcvx", "fedacii:a1:gcvx")),
    ],
)
@pytest.mark.parametrize("R", [2.0, 300.0])
def test_fedac_under_assumption_1_is_the_better_of_both_couplings(key, names, R: float) -> None:
    letters = LETTERS | {"R": R}
    found = [rate_of(name, letters).discrepancy for name in names]
    assert value(row(key).terms["discrepancy"], **letters) == pytest.approx(min(found), rel=1e-13)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("strongly_convex", "equal"),
    # R = L/mu and R = T (L D0/sigma)^2
    [(True, 7 / 0.6), (False, 4096 * (7 * 1.7 / 1.3) ** 2)],
)
def test_fedac_ii_is_the_better_coupling_from_some_rounds_on(strongly_convex, equal) -> None:
    entry = row((1, strongly_convex, "FedAc")).terms["discrepancy"]

    def both(R: float) -> list[float]:
        return [value(power, **LETTERS | {"R": R}) for power in powers(entry)]

    first, second = both(equal)
    assert first == pytest.approx(second)
    first, second = both(equal / 2)
    assert first < second
    first, second = both(equal * 2)
    assert first > second


@settings(deadline=None, derandomize=True)
@given(
    kappa=st.floats(1, 1e6),
    rounds=st.floats(1, 1e3),
    M=st.integers(1, 10**6),
    sigma=st.floats(1e-3, 1e3),
)
def test_what_the_table_leaves_out_is_within_the_variance(kappa, rounds, M, sigma) -> None:
    # The table and the simplified theorem need R >= sqrt(L/mu), where the two are equal.
    R = rounds * kappa**0.5
    letters = {"L": 2.0, "mu": 2.0 / kappa, "sigma": sigma, "Q": 1.0, "M": M, "K": 8.0, "T": 8 * R}
    rate = theorem("fedacii:a2:full").rate(**letters, Phi0=1.0)
    assert rate.accelerated_variance <= rate.variance * (1 + 1e-12)
    assert rate.accelerated_variance * rounds**2 == pytest.approx(rate.variance, rel=1e-9)


# --- the first table follows from the second ------------------------------------------------


def _speedup(assumption: int, algorithm: str, reference: str) -> tables.Speedup:
    [found] = [
        found
        for found in TABLE_1
        if (found.assumption, found.algorithm) == (assumption, algorithm)
        and reference in found.reference
    ]
    return found


@pytest.mark.parametrize(
    ("reference", "assumption", "strongly_convex", "algorithm", "entry", "term", "index"),
    [
        ("Khaled", 1, True, "FedAvg", 0, "discrepancy", 0),
        ("Khaled", 1, False, "FedAvg", 0, "discrepancy", 0),
        ("fedac:a1", 1, True, "FedAc", 0, "discrepancy", 1),
        ("fedac:a1", 1, False, "FedAc", 0, "discrepancy", 0),
        ("fedac:a1", 1, False, "FedAc", 1, "discrepancy", 1),
        ("fedavg:a2", 2, True, "FedAvg", 0, "discrepancy", 0),
        ("fedavg:a2", 2, False, "FedAvg", 0, "discrepancy", 0),
        ("fedacii:a2", 2, True, "FedAc", 0, "discrepancy", 0),
        ("fedacii:a2", 2, False, "FedAc", 0, "accelerated_variance", 0),
        ("fedacii:a2", 2, False, "FedAc", 1, "discrepancy", 0),
    ],
)
@pytest.mark.parametrize(("M", "T"), [(64.0, 4096.0), (4096.0, 64.0), (10.0, 1e9)])
def test_at_the_rounds_of_table_1_a_term_of_table_2_meets_the_variance(
    reference, assumption, strongly_convex, algorithm, entry, term, index, M, T
) -> None:
    speedup = _speedup(assumption, algorithm, reference)
    rounds = speedup.strongly_convex if strongly_convex else speedup.convex
    rounds = powers(rounds)[entry]
    found = row((assumption, strongly_convex, algorithm))
    overhead = powers(found.terms[term])[index]
    # "All bounds hide variables other than M and T".
    letters = dict.fromkeys(("L", "Q", "sigma", "mu", "D0"), 1.0) | {"M": M, "T": T}
    letters["R"] = value(rounds, M=M, T=T)
    variance = value(found.terms["variance"], **letters)
    assert value(overhead, **letters) == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("strongly_convex", [True, False])
@pytest.mark.parametrize(
    ("reference", "assumption", "algorithm"),
    [
        ("Khaled", 1, "FedAvg"),
        ("fedac:a1", 1, "FedAc"),
        ("fedavg:a2", 2, "FedAvg"),
        ("fedacii:a2", 2, "FedAc"),
    ],
)
@pytest.mark.parametrize(("M", "T"), [(64.0, 4096.0), (4096.0, 64.0), (10.0, 1e9)])
def test_from_the_rounds_of_table_1_on_noise_is_that_of_the_variance(
    reference, assumption, algorithm, strongly_convex, M, T
) -> None:
    speedup = _speedup(assumption, algorithm, reference)
    rounds = speedup.strongly_convex if strongly_convex else speedup.convex
    found = row((assumption, strongly_convex, algorithm))
    letters = dict.fromkeys(("L", "Q", "sigma", "mu", "D0"), 1.0) | {"M": M, "T": T}

    def noise(R: float) -> float:
        overheads = {"discrepancy", "accelerated_variance"} & set(found.terms)
        return max(value(found.terms[term], **letters, R=R) for term in overheads)

    variance = value(found.terms["variance"], **letters, R=1.0)
    enough = value(rounds, M=M, T=T)
    assert noise(enough) <= variance * (1 + 1e-12)
    # Half of them are not enough, unless one round is.
    if enough > 1:
        assert noise(enough / 2) > variance
