"""The paper's two tables as data, with exponents to read, check and compute with.

Table 1 (tab:sync:bound) gives the rounds R that suffice for linear speedup in M, table 2
(tab:conv:rate) the rates. Both omit constants and logarithms; table 2 also omits the
exponentially decaying term of strongly convex objectives.

>>> row = next(row for row in TABLE_1 if row.algorithm == "FedAc" and row.assumption == 1)
>>> print(row.strongly_convex, "|", row.convex)
M^(1/3) | min{T^(1/4) M^(3/4), T^(1/3) M^(2/3)}
>>> round(row.strongly_convex(M=1000, T=4096), 6)
10.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from fedac.theory.theorems import theorem

ORDER = ("L", "Q", "sigma", "mu", "D0", "T", "M", "R")


@dataclass(frozen=True, slots=True)
class Power:
    """A product of powers of the paper's letters.

    Examples
    --------
    >>> power = Power.of("sigma^2 / mu M T")
    >>> print(power)
    sigma^2 / (mu T M)
    >>> power(sigma=2.0, mu=1.0, M=4, T=2), power.exponents["M"]
    (0.5, Fraction(-1, 1))
    """

    exponents: Mapping[str, Fraction]

    @classmethod
    def of(cls, text: str) -> Power:
        """Parse a power such as ``L^1/3 / T R^2``; everything after " / " is in the denominator."""
        exponents = {}
        above, _, below = text.partition(" / ")
        for sign, side in ((1, above), (-1, below)):
            for factor in side.split():
                letter, _, exponent = factor.partition("^")
                exponents[letter] = sign * Fraction(exponent or 1)
        return cls({letter: exponents[letter] for letter in ORDER if letter in exponents})

    def __call__(self, **letters: float) -> float:
        """Return its value."""
        powers = (letters[letter] ** float(e) for letter, e in self.exponents.items())
        return prod(powers, start=1.0)

    def __str__(self) -> str:
        def factor(letter: str, exponent: Fraction) -> str:
            if exponent == 1:
                return letter
            whole = exponent.denominator == 1
            return f"{letter}^{exponent}" if whole else f"{letter}^({exponent})"

        above = " ".join(factor(letter, e) for letter, e in self.exponents.items() if e > 0) or "1"
        below = [factor(letter, -e) for letter, e in self.exponents.items() if e < 0]
        if not below:
            return above
        return f"{above} / {below[0]}" if len(below) == 1 else f"{above} / ({' '.join(below)})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A power, or the minimum or maximum of several.

    Examples
    --------
    >>> rounds = Entry.of("max{M^1/2 / T^1/2, 1}")
    >>> print(rounds)
    max{M^(1/2) / T^(1/2), 1}
    >>> rounds(M=16, T=4), rounds(M=1, T=4)
    (2.0, 1.0)
    """

    which: str  # "min", "max", or "" for one power
    powers: tuple[Power, ...]

    @classmethod
    def of(cls, text: str) -> Entry:
        """Parse a power, or a minimum or maximum such as ``min{M, T^1/2 / M}``."""
        which, _, powers = text.removesuffix("}").rpartition("{")
        return cls(which, tuple(map(Power.of, powers.split(", "))))

    def __call__(self, **letters: float) -> float:
        """Return its value."""
        choose = max if self.which == "max" else min
        return choose(power(**letters) for power in self.powers)

    def __str__(self) -> str:
        powers = ", ".join(map(str, self.powers))
        return f"{self.which}{{{powers}}}" if self.which else powers


@dataclass(frozen=True, slots=True)
class Speedup:
    """A row of table 1: rounds that suffice for linear speedup, as functions of M and T."""

    assumption: int
    algorithm: str
    strongly_convex: Entry
    convex: Entry | None
    reference: str


@dataclass(frozen=True, slots=True)
class Convergence:
    """A row of table 2: the terms of a rate, whose sum bounds E[F] - F*."""

    assumption: int
    strongly_convex: bool
    algorithm: str
    terms: Mapping[str, Entry]
    reference: str

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms.values()))


def _speedup(labels: str, *, strongly_convex: str, convex: str) -> Speedup:
    """Make a row of table 1 from the paper's theorems."""
    assumption, _, algorithm, reference = _summary(labels)
    return Speedup(assumption, algorithm, Entry.of(strongly_convex), Entry.of(convex), reference)


def _convergence(labels: str, **terms: str) -> Convergence:
    """Make a row of table 2 from the paper's theorems."""
    assumption, strongly_convex, algorithm, reference = _summary(labels)
    parsed = {name: Entry.of(term) for name, term in terms.items()}
    return Convergence(assumption, strongly_convex, algorithm, parsed, reference)


def _summary(labels: str) -> tuple[int, bool, str, str]:
    """Return the assumption, strong convexity, algorithm and reference of a row."""
    proven = [theorem(label) for label in labels.split()]
    first = proven[0]
    algorithm = "FedAc" if first.algorithm.startswith("fedac") else "FedAvg"
    # The tables cite the simplified theorems of the main text, where they exist.
    cited = dict.fromkeys(one.short_version or one.label for one in proven)
    return first.assumption, first.strongly_convex, algorithm, ", ".join(cited)


TABLE_1 = (
    Speedup(1, "FedAvg", Entry.of("T^1/2 M^1/2"), None, "Stich 2019"),
    Speedup(1, "FedAvg", Entry.of("T^1/3 M^1/3"), None, "Haddadpour et al. 2019"),
    Speedup(1, "FedAvg", Entry.of("M"), Entry.of("T^1/2 M^3/2"), "Stich & Karimireddy 2019"),
    Speedup(1, "FedAvg", Entry.of("M"), Entry.of("T^1/2 M^3/2"), "Khaled et al. 2020"),
    _speedup(
        "fedaci:full fedacii:a1:full fedaci:a1:gcvx fedacii:a1:gcvx",
        strongly_convex="M^1/3",
        convex="min{T^1/4 M^3/4, T^1/3 M^2/3}",
    ),
    _speedup(
        "fedavg:a2:full fedavg:a2:gcvx",
        strongly_convex="max{M^1/2 / T^1/2, 1}",
        convex="T^1/2 M^3/2",
    ),
    _speedup(
        "fedacii:a2:full fedacii:a2:gcvx",
        strongly_convex="max{M^1/6 / T^1/6, 1}",
        convex="max{T^1/4 M^1/4, T^1/6 M^1/2}",
    ),
)

_VARIANCE = "sigma^2 / mu M T"
_CONVEX_VARIANCE = "sigma D0 / M^1/2 T^1/2"

TABLE_2 = (
    _convergence("fedavg:a1", variance=_VARIANCE, discrepancy="L sigma^2 / mu^2 T R"),
    _convergence(
        "fedaci:full fedacii:a1:full",
        variance=_VARIANCE,
        discrepancy="min{L sigma^2 / mu^2 T R^2, L^2 sigma^2 / mu^3 T R^3}",
    ),
    _convergence("fedavg:a2:full", variance=_VARIANCE, discrepancy="Q^2 sigma^4 / mu^5 T^2 R^2"),
    _convergence("fedacii:a2:full", variance=_VARIANCE, discrepancy="Q^2 sigma^4 / mu^5 T^2 R^6"),
    Convergence(
        1,
        False,
        "FedAvg",
        {
            "optimization": Entry.of("L D0^2 / T"),
            "variance": Entry.of(_CONVEX_VARIANCE),
            "discrepancy": Entry.of("L^1/3 sigma^2/3 D0^4/3 / T^1/3 R^1/3"),
        },
        "Woodworth et al. 2020",
    ),
    _convergence(
        "fedaci:a1:gcvx fedacii:a1:gcvx",
        optimization="L D0^2 / T R",
        variance=_CONVEX_VARIANCE,
        discrepancy="min{L^1/3 sigma^2/3 D0^4/3 / T^1/3 R^2/3, "
        "L^1/2 sigma^1/2 D0^3/2 / T^1/4 R^3/4}",
    ),
    _convergence(
        "fedavg:a2:gcvx",
        optimization="L D0^2 / T",
        variance=_CONVEX_VARIANCE,
        discrepancy="Q^1/3 sigma^2/3 D0^5/3 / T^1/3 R^1/3",
    ),
    _convergence(
        "fedacii:a2:gcvx",
        optimization="L D0^2 / T R",
        variance=_CONVEX_VARIANCE,
        accelerated_variance="L^1/3 sigma^2/3 D0^4/3 / M^1/3 T^1/3 R^2/3",
        discrepancy="Q^1/3 sigma^2/3 D0^5/3 / T^1/3 R",
    ),
)
