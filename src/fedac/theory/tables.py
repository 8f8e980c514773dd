# SPDX-License-Identifier: Apache-2.0
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
    Speedup(1, "FedAc", "M^(1/3)", "min{T^(1/4) M^(3/4), T^(1/3) M^(2/3)}",
            "fedac:a1, fedaci:a1:gcvx, fedacii:a1:gcvx"),
    Speedup(2, "FedAvg", "max{M^(1/2) / T^(1/2), 1}", "T^(1/2) M^(3/2)",
            "fedavg:a2, fedavg:a2:gcvx"),
    Speedup(2, "FedAc", "max{M^(1/6) / T^(1/6), 1}", "max{T^(1/4) M^(1/4), T^(1/6) M^(1/2)}",
            "fedacii:a2, fedacii:a2:gcvx"),
)  # fmt: skip


def _strong(assumption: int, algorithm: str, discrepancy: str, reference: str) -> Convergence:
    terms = {"variance": "sigma^2 / (mu T M)", "discrepancy": discrepancy}
    return Convergence(assumption, True, algorithm, terms, reference)


def _convex(assumption: int, algorithm: str, reference: str, **noise: str) -> Convergence:
    start = "L D0^2 / T" if algorithm == "FedAvg" else "L D0^2 / (T R)"
    terms = {"optimization": start, "variance": "sigma D0 / (T^(1/2) M^(1/2))", **noise}
    return Convergence(assumption, False, algorithm, terms, reference)


TABLE_2 = (
    _strong(1, "FedAvg", "L sigma^2 / (mu^2 T R)", "fedavg:a1"),
    _strong(1, "FedAc", "min{L sigma^2 / (mu^2 T R^2), L^2 sigma^2 / (mu^3 T R^3)}", "fedac:a1"),
    _strong(2, "FedAvg", "Q^2 sigma^4 / (mu^5 T^2 R^2)", "fedavg:a2"),
    _strong(2, "FedAc", "Q^2 sigma^4 / (mu^5 T^2 R^6)", "fedacii:a2"),
    _convex(1, "FedAvg", "Woodworth et al. 2020",
            discrepancy="L^(1/3) sigma^(2/3) D0^(4/3) / (T^(1/3) R^(1/3))"),
    _convex(1, "FedAc", "fedaci:a1:gcvx, fedacii:a1:gcvx",
            discrepancy="min{L^(1/3) sigma^(2/3) D0^(4/3) / (T^(1/3) R^(2/3)), "
            "L^(1/2) sigma^(1/2) D0^(3/2) / (T^(1/4) R^(3/4))}"),
    _convex(2, "FedAvg", "fedavg:a2:gcvx",
            discrepancy="Q^(1/3) sigma^(2/3) D0^(5/3) / (T^(1/3) R^(1/3))"),
    _convex(2, "FedAc", "fedacii:a2:gcvx",
            accelerated_variance="L^(1/3) sigma^(2/3) D0^(4/3) / (T^(1/3) M^(1/3) R^(2/3))",
            discrepancy="Q^(1/3) sigma^(2/3) D0^(5/3) / (T^(1/3) R)"),
)  # fmt: skip
