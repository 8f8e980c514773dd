"""The paper's two tables, as text to print.

Table 1 (tab:sync:bound) gives the rounds R that suffice for linear speedup in M, table 2
(tab:conv:rate) the rates. Both omit constants and logarithms; table 2 also omits the
exponentially decaying term of strongly convex objectives.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speedup:
    """A row of table 1: rounds that suffice for linear speedup, as functions of M and T."""

    assumption: int
    algorithm: str
    strongly_convex: str
    convex: str | None
    reference: str


@dataclass(frozen=True, slots=True)
class Convergence:
    """A row of table 2: the terms of a rate, whose sum bounds E[F] - F*."""

    assumption: int
    strongly_convex: bool
    algorithm: str
    terms: dict[str, str]
    reference: str

    def __str__(self) -> str:
        return " + ".join(self.terms.values())


TABLE_1 = (
    Speedup(1, "FedAvg", "T^(1/2) M^(1/2)", None, "Stich 2019"),
    Speedup(1, "FedAvg", "T^(1/3) M^(1/3)", None, "Haddadpour et al. 2019"),
    Speedup(1, "FedAvg", "M", "T^(1/2) M^(3/2)", "Stich & Karimireddy 2019"),
    Speedup(1, "FedAvg", "M", "T^(1/2) M^(3/2)", "Khaled et al. 2020"),
    Speedup(
        1,
        "FedAc",
        "M^(1/3)",
        "min{T^(1/4) M^(3/4), T^(1/3) M^(2/3)}",
        "fedac:a1, fedaci:a1:gcvx, fedacii:a1:gcvx",
    ),
    Speedup(
        2,
        "FedAvg",
        "max{M^(1/2) / T^(1/2), 1}",
        "T^(1/2) M^(3/2)",
        "fedavg:a2, fedavg:a2:gcvx",
    ),
    Speedup(
        2,
        "FedAc",
        "max{M^(1/6) / T^(1/6), 1}",
        "max{T^(1/4) M^(1/4), T^(1/6) M^(1/2)}",
        "fedacii:a2, fedacii:a2:gcvx",
    ),
)

_STRONG = {"variance": "sigma^2 / (mu T M)"}
_PLAIN = {"optimization": "L D0^2 / T", "variance": "sigma D0 / (T^(1/2) M^(1/2))"}
_ACCELERATED = _PLAIN | {"optimization": "L D0^2 / (T R)"}

TABLE_2 = (
    Convergence(
        1, True, "FedAvg", _STRONG | {"discrepancy": "L sigma^2 / (mu^2 T R)"}, "fedavg:a1"
    ),
    Convergence(
        1,
        True,
        "FedAc",
        _STRONG | {"discrepancy": "min{L sigma^2 / (mu^2 T R^2), L^2 sigma^2 / (mu^3 T R^3)}"},
        "fedac:a1",
    ),
    Convergence(
        2, True, "FedAvg", _STRONG | {"discrepancy": "Q^2 sigma^4 / (mu^5 T^2 R^2)"}, "fedavg:a2"
    ),
    Convergence(
        2, True, "FedAc", _STRONG | {"discrepancy": "Q^2 sigma^4 / (mu^5 T^2 R^6)"}, "fedacii:a2"
    ),
    Convergence(
        1,
        False,
        "FedAvg",
        _PLAIN | {"discrepancy": "L^(1/3) sigma^(2/3) D0^(4/3) / (T^(1/3) R^(1/3))"},
        "Woodworth et al. 2020",
    ),
    Convergence(
        1,
        False,
        "FedAc",
        _ACCELERATED
        | {
            "discrepancy": "min{L^(1/3) sigma^(2/3) D0^(4/3) / (T^(1/3) R^(2/3)), "
            "L^(1/2) sigma^(1/2) D0^(3/2) / (T^(1/4) R^(3/4))}"
        },
        "fedaci:a1:gcvx, fedacii:a1:gcvx",
    ),
    Convergence(
        2,
        False,
        "FedAvg",
        _PLAIN | {"discrepancy": "Q^(1/3) sigma^(2/3) D0^(5/3) / (T^(1/3) R^(1/3))"},
        "fedavg:a2:gcvx",
    ),
    Convergence(
        2,
        False,
        "FedAc",
        _ACCELERATED
        | {
            "accelerated_variance": "L^(1/3) sigma^(2/3) D0^(4/3) / (T^(1/3) M^(1/3) R^(2/3))",
            "discrepancy": "Q^(1/3) sigma^(2/3) D0^(5/3) / (T^(1/3) R)",
        },
        "fedacii:a2:gcvx",
    ),
)
