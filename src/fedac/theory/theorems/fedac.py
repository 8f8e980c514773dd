# SPDX-License-Identifier: Apache-2.0
"""Convergence of FedAc-I and FedAc-II.

Theorems fedaci:full, fedacii:a1:full and fedacii:a2:full (strongly convex), fedaci:a1:gcvx,
fedacii:a1:gcvx and fedacii:a2:gcvx (general convex). The step size of FedAc-II's first two is the
minimum over all ratios, where the paper prints a sum (see docs/paper-notes.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import cbrt, exp, sqrt
from typing import Any

from fedac.theory import tight_bounds
from fedac.theory.bounds import Bound, Rate, bound_with_logs, divide, log_ratio
from fedac.theory.theorems.base import Theorem


def _eta(
    start: str, constant: float, rate: Rate, *,
    L: float, mu: float, K: float, T: float, **letters: float,
) -> float:  # fmt: skip
    return min(1 / L, constant * K / (mu * T**2) * log_ratio(letters[start], rate.noise) ** 2)


def _bound(
    start: str, slower: float, shapes: Any, rate: Rate, *,
    L: float, mu: float, K: float, T: float, **letters: float,
) -> Bound:  # fmt: skip
    """Return the bound of a potential that decays over T/slower accelerated steps at eta = 1/L."""
    decay = exp(-max(mu / L, sqrt(mu / (L * K))) * (T / slower))
    potential = letters[start]
    return bound_with_logs(rate, optimization=decay * potential, potential=potential, **shapes)


FEDACI_FULL = Theorem(
    label="fedaci:full",
    short_version="fedac:a1",  # part (a)
    name="fedac_i_a1",
    algorithm="fedac-i",
    start="Psi0",
    rate_formula=lambda *, L, mu, sigma, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K**2 * sigma**2 / (mu**2 * T**3),
    ),
    eta_formula=partial(_eta, "Psi0", 1),
    # of E[Psi_T]
    bound_formula=partial(_bound, "Psi0", 1, {"variance": (2, 2), "discrepancy": (400, 4)}),
    at_formula=tight_bounds.fedac_i,
)

FEDACII_A1_FULL = Theorem(
    label="fedacii:a1:full",
    short_version="fedac:a1",  # part (b)
    name="fedac_ii_a1",
    algorithm="fedac-ii",
    start="Phi0",
    rate_formula=lambda *, L, mu, sigma, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L**2 * K**3 * sigma**2 / (mu**3 * T**4),
    ),
    eta_formula=partial(_eta, "Phi0", 9),
    # of E[Phi_T]
    bound_formula=partial(_bound, "Phi0", 3, {"variance": (4, 1), "discrepancy": (8101, 4)}),
    at_formula=tight_bounds.fedac_ii_a1,
)

FEDACII_A2_FULL = Theorem(
    label="fedacii:a2:full",
    short_version="fedacii:a2",
    name="fedac_ii_a2",
    algorithm="fedac-ii",
    assumption=2,
    start="Phi0",
    rate_formula=lambda *, L, mu, sigma, sigma4, Q, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        accelerated_variance=L * K**2 * sigma**2 / (mu**2 * M * T**3),
        discrepancy=Q**2 * K**6 * sigma4**4 / (mu**5 * T**8),
    ),
    eta_formula=partial(_eta, "Phi0", 9),
    # of E[Phi_T]
    bound_formula=partial(
        _bound,
        "Phi0",
        3,
        {"variance": (4, 1), "accelerated_variance": (55, 3), "discrepancy": (exp(18), 8)},
    ),
    at_formula=tight_bounds.fedac_ii_a2,
)


def _gcvx_bound(
    constant: float, shapes: Any, rate: Rate, *, L: float, K: float, T: float, D0: float, **_: float
) -> Bound:
    """Return the bound of E[F] - F* for FedAc on F + lam/2 ||w - w_0||^2 (eq:aug)."""
    return bound_with_logs(
        rate,
        optimization=constant * rate.optimization,
        optimization_log=log_ratio(T**2, K, 2) ** 2,
        potential=L * D0**2,
        **shapes,
    )


def _gcvx_eta(
    rate: Rate,
    *,
    full: Theorem,
    constant: float,
    caps: Callable[..., tuple[float, ...]],
    **letters: float,
) -> tuple[float, float]:
    """Return eta and lam on F + lam/2 ||w - w_0||^2 (eq:aug).

    eta is the step size of theorem `full` with mu = lam and this constant, limited by `caps`.
    """
    L, K, T, D0 = (letters[letter] for letter in ("L", "K", "T", "D0"))
    lam = max(rate.noise / D0**2, 2 * constant * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = full.rate_formula(mu=lam, **letters).noise
    eta = constant * K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2
    return min(1 / (L + lam), eta, *caps(lam, **letters)), lam


FEDACI_A1_GCVX = Theorem(
    label="fedaci:a1:gcvx",
    name="fedac_i_a1_convex",
    algorithm="fedac-i",
    strongly_convex=False,
    least_steps=24,
    rate_formula=lambda *, L, sigma, M, K, T, D0: Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(L * K**2 * sigma**2 * D0**4) / T,
    ),
    eta_formula=partial(
        _gcvx_eta,
        full=FEDACI_FULL,
        constant=1,
        caps=lambda lam, *, L, sigma, K, T, D0, **_: (
            divide(cbrt(L * K * (D0 / lam) ** 2), T * cbrt(sigma**2)),
            divide((L * K * D0**2 / lam**3) ** 0.25, T * sqrt(sigma)),
        ),
    ),
    bound_formula=partial(_gcvx_bound, 2, {"variance": (2, 2, 2), "discrepancy": (1005, 4, 4)}),
    at_formula=tight_bounds.augmented(tight_bounds.fedac_i, start="Psi0"),
    augmented=True,
)

FEDACII_A1_GCVX = Theorem(
    label="fedacii:a1:gcvx",
    name="fedac_ii_a1_convex",
    algorithm="fedac-ii",
    strongly_convex=False,
    least_steps=1000,
    rate_formula=lambda *, L, sigma, M, K, T, D0: Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=sqrt(L * sigma * D0**3) * K**0.75 / T,
    ),
    eta_formula=partial(
        _gcvx_eta,
        full=FEDACII_A1_FULL,
        constant=9,
        caps=lambda lam, *, L, sigma, T, D0, **_: (
            divide(cbrt(L * (D0 / lam) ** 2), cbrt((T * sigma) ** 2)),
        ),
    ),
    bound_formula=partial(_gcvx_bound, 10, {"variance": (5, 1), "discrepancy": (16411, 4, 4)}),
    at_formula=tight_bounds.augmented(tight_bounds.fedac_ii_a1, start="Phi0"),
    augmented=True,
)

FEDACII_A2_GCVX = Theorem(
    label="fedacii:a2:gcvx",
    name="fedac_ii_a2_convex",
    algorithm="fedac-ii",
    assumption=2,
    strongly_convex=False,
    least_steps=1000,
    rate_formula=lambda *, L, sigma, sigma4, Q, M, K, T, D0: Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        accelerated_variance=cbrt(L * K**2 * sigma**2 * D0**4 / M) / T,
        discrepancy=cbrt(Q * sigma4**2 * D0**5 / T) * K / T,
    ),
    eta_formula=partial(
        _gcvx_eta,
        full=FEDACII_A2_FULL,
        constant=9,
        caps=lambda lam, *, L, sigma, M, K, T, D0, **_: (
            divide(cbrt(L * K * M * (D0 / lam) ** 2), T * cbrt(sigma**2)),
        ),
    ),
    bound_formula=partial(
        _gcvx_bound,
        10,
        {"variance": (5, 1), "accelerated_variance": (139, 3, 3), "discrepancy": (exp(19), 8, 8)},
    ),
    at_formula=tight_bounds.augmented(tight_bounds.fedac_ii_a2, start="Phi0"),
    augmented=True,
)
