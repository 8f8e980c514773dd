# SPDX-License-Identifier: Apache-2.0
"""Convergence of FedAvg.

Proposition fedavg:a1 and theorem fedavg:a2:full (strongly convex), fedavg:a1:gcvx and theorem
fedavg:a2:gcvx (general convex). All bound a weighted average of the iterates: under asm2 the output
of algorithm fedavg-weighted, under asm1 the average with weights (1 - eta mu)^-t. The paper states
fedavg:a1 without constants, and fedavg:a1:gcvx (our label) only in table 2, from Woodworth et al.
2020; docs/theory.md proves both, with constants.
"""

from __future__ import annotations

from dataclasses import replace
from math import cbrt, exp, sqrt

from fedac.theory import tight_bounds
from fedac.theory.bounds import Bound, Rate, bound_with_logs, divide, log_ratio
from fedac.theory.theorems.base import Theorem

FEDAVG_A1 = Theorem(
    label="fedavg:a1",
    name="fedavg_a1",
    title="FedAvg, averaged iterate",
    algorithm="fedavg",
    rate_formula=lambda *, L, mu, sigma, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K * sigma**2 / (mu**2 * T**2),
    ),
    eta_formula=lambda rate, *, L, mu, T, D0, **_: min(
        1 / (4 * L), log_ratio(mu * T * D0**2, rate.noise) / (mu * T)
    ),
    # of E[F] - F* for the weighted average. The remainder of the start is at most
    # exp(-eta mu T) D0^2/eta; without the limit 1/(4L) that is at most the largest noise term.
    bound_formula=lambda rate, *, L, mu, T, D0, **_: bound_with_logs(
        rate,
        optimization=exp(-mu * T / (4 * L)) * 4 * L * D0**2,
        potential=mu * T * D0**2,
        variance=(2, 1),
        discrepancy=(2.5, 2),
    ),
    at_formula=tight_bounds.fedavg_a1,
    eta_limit=1 / 4,
)

FEDAVG_A1_GCVX = replace(
    FEDAVG_A1,
    label="fedavg:a1:gcvx",
    name="fedavg_a1_convex",
    strongly_convex=False,
    rate_formula=lambda *, L, sigma, M, K, T, D0: Rate(
        optimization=L * D0**2 / T,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(L * K * sigma**2 * D0**4 / T**2),
    ),
    # balances D0^2/(eta T) with each noise term
    eta_formula=lambda rate, *, L, sigma, M, K, T, D0: min(
        1 / (4 * L),
        divide(D0 * sqrt(M), sigma * sqrt(T)),
        divide(cbrt(D0**2), cbrt(L * K * T * sigma**2)),
    ),
    # of E[F] - F* for the average of the iterates: D0^2/(eta T) is at most the sum of its values
    # at the three step sizes
    bound_formula=lambda rate, **_: Bound(
        optimization=4 * rate.optimization,
        variance=2 * rate.variance,
        discrepancy=2.5 * rate.discrepancy,
    ),
)

FEDAVG_A2_FULL = Theorem(
    label="fedavg:a2:full",
    short_version="fedavg:a2",
    name="fedavg_a2",
    algorithm="fedavg-weighted",
    assumption=2,
    rate_formula=lambda *, mu, sigma, sigma4, Q, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=Q**2 * K**2 * sigma4**4 / (mu**5 * T**4),
    ),
    eta_formula=lambda rate, *, L, mu, T, D0, **_: min(
        1 / (4 * L), 2 / (mu * T) * log_ratio(mu * T * D0**2, rate.noise)
    ),
    # of E[F] - F* for the weighted average, plus mu/2 E||w_T - w*||^2
    bound_formula=lambda rate, *, L, mu, T, D0, **_: bound_with_logs(
        rate,
        optimization=exp(-mu * T / (8 * L)) * 4 * L * D0**2,
        potential=mu * T * D0**2,
        variance=(3, 1),
        discrepancy=(3073, 4),
    ),
    at_formula=tight_bounds.fedavg_a2,
    eta_limit=1 / 4,
)


def _gcvx_eta(
    rate: Rate, *, L: float, T: float, D0: float, **letters: float
) -> tuple[float, float]:
    lam = max(rate.noise / D0**2, 16 * L / T * log_ratio(T, 1))
    noise = FEDAVG_A2_FULL.rate_formula(mu=lam, T=T, **letters).noise
    return min(1 / (4 * (L + lam)), 2 / (lam * T) * log_ratio(lam * T * D0**2, noise)), lam


def _gcvx_bound(rate: Rate, *, T: float, **_: float) -> Bound:
    """Bound E[F] - F* for the weighted average; the only bound with logarithms of T alone."""
    logs = {
        "optimization": log_ratio(T, 1),
        "variance": log_ratio(T, 1, 2),
        "discrepancy": log_ratio(T, 1, 5) ** 4,
    }
    return Bound(
        optimization=50 * rate.optimization * logs["optimization"],
        variance=6 * rate.variance * logs["variance"],
        discrepancy=3076 * rate.discrepancy * logs["discrepancy"],
        logs=logs,
    )


FEDAVG_A2_GCVX = Theorem(
    label="fedavg:a2:gcvx",
    name="fedavg_a2_convex",
    algorithm="fedavg-weighted",
    assumption=2,
    strongly_convex=False,
    least_steps=100,
    rate_formula=lambda *, L, sigma, sigma4, Q, M, K, T, D0: Rate(
        optimization=L * D0**2 / T,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(Q * K * sigma4**2 * D0**5 / T**2),
    ),
    eta_formula=_gcvx_eta,
    bound_formula=_gcvx_bound,
    at_formula=tight_bounds.augmented(tight_bounds.fedavg_a2, start="D0"),
    eta_limit=1 / 4,
    augmented=True,
)
