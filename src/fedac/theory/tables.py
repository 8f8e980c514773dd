"""The paper's two tables as data: exponents one can read, check and compute with.

Table 1 (tab:sync:bound) gives the rounds R that suffice for linear speedup in M; table 2
(tab:conv:rate) the rates. Both leave out constants and logarithms; table 2 also leaves out the
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

ORDER = ("L", "Q", "sigma", "mu", "D0", "T", "M", "R")


@dataclass(frozen=True, slots=True)
class Power:
    """A product of powers of the paper's letters.

    Examples
    --------
    >>> power = Power.of("sigma^2 / mu M T")
    >>> print(power)
    sigma^2 / (mu T M)
    >>> power(sigma=2.0, mu=1.0, M=4, T=2), power.exponent("M"), power.exponent("R")
    (0.5, Fraction(-1, 1), Fraction(0, 1))
    """

    exponents: tuple[tuple[str, Fraction], ...]

    @classmethod
    def of(cls, text: str) -> Power:
        """Read a power such as ``L^1/3 / T R^2``: a slash between spaces divides by all after it.

        Brackets, as `str` writes them for people, are allowed.
        """
        exponents: dict[str, Fraction] = {}
        above, _, below = text.replace("(", "").replace(")", "").partition(" / ")
        for sign, side in ((1, above), (-1, below)):
            for factor in side.split():
                letter, _, exponent = factor.partition("^")
                if letter in exponents or letter not in (*ORDER, "1"):
                    raise ValueError(f"cannot read '{factor}' in '{text}'")
                if letter != "1":
                    exponents[letter] = sign * Fraction(exponent or 1)
        return cls(tuple((letter, exponents[letter]) for letter in ORDER if letter in exponents))

    def exponent(self, letter: str) -> Fraction:
        """Return the exponent of a letter."""
        return dict(self.exponents).get(letter, Fraction(0))

    def __call__(self, **letters: float) -> float:
        """Return its value."""
        powers = (letters[letter] ** float(exponent) for letter, exponent in self.exponents)
        return prod(powers, start=1.0)

    def __str__(self) -> str:
        def factor(letter: str, exponent: Fraction) -> str:
            if exponent == 1:
                return letter
            whole = exponent.denominator == 1
            return f"{letter}^{exponent}" if whole else f"{letter}^({exponent})"

        above = " ".join(factor(letter, e) for letter, e in self.exponents if e > 0) or "1"
        below = [factor(letter, -e) for letter, e in self.exponents if e < 0]
        if not below:
            return above
        return f"{above} / {below[0]}" if len(below) == 1 else f"{above} / ({' '.join(below)})"


@dataclass(frozen=True, slots=True)
class Extreme:
    """The smaller or the larger of some powers.

    Examples
    --------
    >>> rounds = Extreme("max", (Power.of("M^1/2 / T^1/2"), Power.of("1")))
    >>> print(rounds)
    max{M^(1/2) / T^(1/2), 1}
    >>> rounds(M=16, T=4), rounds(M=1, T=4)
    (2.0, 1.0)
    """

    which: str
    powers: tuple[Power, ...]

    def __call__(self, **letters: float) -> float:
        """Return its value."""
        choose = min if self.which == "min" else max
        return choose(power(**letters) for power in self.powers)

    def __str__(self) -> str:
        return f"{self.which}{{{', '.join(map(str, self.powers))}}}"


Entry = Power | Extreme


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
    """A row of table 2: the terms of a rate, whose sum bounds E[F] - F*.

    Examples
    --------
    >>> row = TABLE_2[3]
    >>> print(row)
    sigma^2 / (mu T M) + Q^2 sigma^4 / (mu^5 T^2 R^6)
    """

    assumption: int
    strongly_convex: bool
    algorithm: str
    terms: Mapping[str, Entry]
    reference: str

    def __call__(self, **letters: float) -> float:
        """Return the sum of all terms."""
        return sum(term(**letters) for term in self.terms.values())

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms.values()))


def _min(*powers: str) -> Extreme:
    return Extreme("min", tuple(map(Power.of, powers)))


def _max(*powers: str) -> Extreme:
    return Extreme("max", tuple(map(Power.of, powers)))


TABLE_1 = (
    Speedup(1, "FedAvg", Power.of("T^1/2 M^1/2"), None, "Stich 2019"),
    Speedup(1, "FedAvg", Power.of("T^1/3 M^1/3"), None, "Haddadpour et al. 2019"),
    Speedup(1, "FedAvg", Power.of("M"), Power.of("T^1/2 M^3/2"), "Stich & Karimireddy 2019"),
    Speedup(1, "FedAvg", Power.of("M"), Power.of("T^1/2 M^3/2"), "Khaled et al. 2020"),
    Speedup(
        1,
        "FedAc",
        Power.of("M^1/3"),
        _min("T^1/4 M^3/4", "T^1/3 M^2/3"),
        "fedac:a1, fedaci:a1:gcvx, fedacii:a1:gcvx",
    ),
    Speedup(
        2,
        "FedAvg",
        _max("M^1/2 / T^1/2", "1"),
        Power.of("T^1/2 M^3/2"),
        "fedavg:a2, fedavg:a2:gcvx",
    ),
    Speedup(
        2,
        "FedAc",
        _max("M^1/6 / T^1/6", "1"),
        _max("T^1/4 M^1/4", "T^1/6 M^1/2"),
        "fedacii:a2, fedacii:a2:gcvx",
    ),
)

_VARIANCE = Power.of("sigma^2 / mu M T")
_CONVEX_VARIANCE = Power.of("sigma D0 / M^1/2 T^1/2")

TABLE_2 = (
    Convergence(
        1,
        True,
        "FedAvg",
        {"variance": _VARIANCE, "discrepancy": Power.of("L sigma^2 / mu^2 T R")},
        "fedavg:a1",
    ),
    Convergence(
        1,
        True,
        "FedAc",
        {
            "variance": _VARIANCE,
            "discrepancy": _min("L sigma^2 / mu^2 T R^2", "L^2 sigma^2 / mu^3 T R^3"),
        },
        "fedac:a1",
    ),
    Convergence(
        2,
        True,
        "FedAvg",
        {"variance": _VARIANCE, "discrepancy": Power.of("Q^2 sigma^4 / mu^5 T^2 R^2")},
        "fedavg:a2",
    ),
    Convergence(
        2,
        True,
        "FedAc",
        {"variance": _VARIANCE, "discrepancy": Power.of("Q^2 sigma^4 / mu^5 T^2 R^6")},
        "fedacii:a2",
    ),
    Convergence(
        1,
        False,
        "FedAvg",
        {
            "optimization": Power.of("L D0^2 / T"),
            "variance": _CONVEX_VARIANCE,
            "discrepancy": Power.of("L^1/3 sigma^2/3 D0^4/3 / T^1/3 R^1/3"),
        },
        "Woodworth et al. 2020",
    ),
    Convergence(
        1,
        False,
        "FedAc",
        {
            "optimization": Power.of("L D0^2 / T R"),
            "variance": _CONVEX_VARIANCE,
            "discrepancy": _min(
                "L^1/3 sigma^2/3 D0^4/3 / T^1/3 R^2/3", "L^1/2 sigma^1/2 D0^3/2 / T^1/4 R^3/4"
            ),
        },
        "fedaci:a1:gcvx, fedacii:a1:gcvx",
    ),
    Convergence(
        2,
        False,
        "FedAvg",
        {
            "optimization": Power.of("L D0^2 / T"),
            "variance": _CONVEX_VARIANCE,
            "discrepancy": Power.of("Q^1/3 sigma^2/3 D0^5/3 / T^1/3 R^1/3"),
        },
        "fedavg:a2:gcvx",
    ),
    Convergence(
        2,
        False,
        "FedAc",
        {
            "optimization": Power.of("L D0^2 / T R"),
            "variance": _CONVEX_VARIANCE,
            "accelerated_variance": Power.of("L^1/3 sigma^2/3 D0^4/3 / M^1/3 T^1/3 R^2/3"),
            "discrepancy": Power.of("Q^1/3 sigma^2/3 D0^5/3 / T^1/3 R"),
        },
        "fedacii:a2:gcvx",
    ),
)
