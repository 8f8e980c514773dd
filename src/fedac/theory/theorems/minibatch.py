# SPDX-License-Identifier: Apache-2.0
"""Minibatch SGD, accelerated minibatch SGD and accelerated SGD on one worker, for comparison.

The paper does not state these results; labels are ours. The minibatch methods take T/K steps of M K
samples, so there is no discrepancy. Accelerated minibatch SGD is FedAc-I on one worker with noise
sigma^2/(M K), so its constants follow from lemma fedaci:conv:main; accelerated SGD on one worker is
the same at M = K = 1. docs/theory.md proves the constants of minibatch SGD, for the average of its
iterates with weights (1 - eta mu)^-r.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, sqrt
from typing import TypeVar

from fedac.theory import tight_bounds
from fedac.theory.bounds import Bound, Rate, bound_with_logs, divide, log_ratio
from fedac.theory.theorems.base import Theorem

R = TypeVar("R")

MB_SGD = Theorem(
    label="mb-sgd",
    name="mb_sgd",
    title="MB-SGD, averaged iterate",
    algorithm="mb-sgd",
    rate_formula=lambda *, mu, sigma, M, T, **_: Rate(variance=sigma**2 / (mu * M * T)),
    # as in fedavg:a1, for T/K steps
    eta_formula=lambda rate, *, L, mu, K, T, D0, **_: min(
        1 / (2 * L), K / (mu * T) * log_ratio(mu * T / K * D0**2, rate.noise)
    ),
    bound_formula=lambda rate, *, L, mu, K, T, D0, **_: bound_with_logs(
        rate,
        optimization=exp(-mu * T / (2 * K * L)) * 2 * L * D0**2,
        potential=mu * T / K * D0**2,
        variance=(2, 1),
    ),
    at_formula=tight_bounds.mb_sgd,
    eta_limit=1 / 2,
)

MB_AC_SGD = Theorem(
    label="mb-ac-sgd",
    name="mb_ac_sgd",
    algorithm="mb-ac-sgd",
    start="Psi0",
    rate_formula=MB_SGD.rate_formula,
    # as in fedaci:full, for T/K steps with K = 1
    eta_formula=lambda rate, *, L, mu, K, T, Psi0, **_: min(
        1 / L, K**2 / (mu * T**2) * log_ratio(Psi0, rate.noise) ** 2
    ),
    # of E[Psi_T]. The lemma's noise is at most sqrt(eta/mu) sigma^2/(M K), because eta L <= 1. At
    # this eta that is the rate times the logarithm, and the remainder of the start is the rate.
    bound_formula=lambda rate, *, L, mu, K, T, Psi0, **_: bound_with_logs(
        rate,
        optimization=exp(-sqrt(mu / L) * T / K) * Psi0,
        potential=Psi0,
        variance=(2, 1),
    ),
    at_formula=tight_bounds.mb_ac_sgd,
)

MB_SGD_GCVX = replace(
    MB_SGD,
    label="mb-sgd:gcvx",
    name="mb_sgd_convex",
    strongly_convex=False,
    rate_formula=lambda *, L, sigma, M, K, T, D0: Rate(
        optimization=L * K * D0**2 / T, variance=sigma * D0 / sqrt(M * T)
    ),
    eta_formula=lambda rate, *, L, sigma, M, K, T, D0: min(
        1 / (2 * L), divide(D0 * K * sqrt(M), sigma * sqrt(T))
    ),
    bound_formula=lambda rate, **_: Bound(
        optimization=2 * rate.optimization, variance=2 * rate.variance
    ),
)


def _ac_sgd_gcvx_eta(
    rate: Rate, *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> tuple[float, float]:
    """Return eta and lam of fedaci:a1:gcvx for T/K steps with K = 1, without discrepancy."""
    R = T / K
    lam = max(rate.noise / D0**2, 2 * L / R**2 * log_ratio(R**2, 1, 2) ** 2)
    noise = MB_AC_SGD.rate_formula(mu=lam, sigma=sigma, M=M, T=T).noise
    return min(1 / (L + lam), log_ratio(L * D0**2, noise) ** 2 / (lam * R**2)), lam


MB_AC_SGD_GCVX = Theorem(
    label="mb-ac-sgd:gcvx",
    name="mb_ac_sgd_convex",
    algorithm="mb-ac-sgd",
    strongly_convex=False,
    rate_formula=lambda *, L, sigma, M, K, T, D0: Rate(
        optimization=L * (K * D0) ** 2 / T**2, variance=sigma * D0 / sqrt(M * T)
    ),
    eta_formula=_ac_sgd_gcvx_eta,
    # of E[F] - F*, as in the proof of fedaci:a1:gcvx: lam D0^2/2 is at most half of the first two
    # terms together, and the remainder of the start at most an eighth of the first term and half
    # of the second. With R rounds that needs exp(-R sqrt(lam/(L + lam))) <= 1/R^2, true for R >= 1.
    bound_formula=lambda rate, *, L, K, T, D0, **_: bound_with_logs(
        rate,
        optimization=2 * rate.optimization,
        optimization_log=log_ratio((T / K) ** 2, 1, 2) ** 2,
        potential=L * D0**2,
        variance=(2, 1),
    ),
    at_formula=tight_bounds.augmented(tight_bounds.mb_ac_sgd, start="Psi0"),
    augmented=True,
)


def _alone(minibatch: Theorem, *, label: str, name: str) -> Theorem:
    """Return the theorem of accelerated SGD on one worker: accelerated minibatch at M = K = 1."""

    def at_one(formula: Callable[..., R]) -> Callable[..., R]:
        return lambda *rate, M, K, **letters: formula(*rate, M=1.0, K=1.0, **letters)

    return replace(
        minibatch,
        label=label,
        name=name,
        algorithm="fedac-vanilla",
        communicates=False,
        rate_formula=at_one(minibatch.rate_formula),
        eta_formula=at_one(minibatch.eta_formula),
        bound_formula=at_one(minibatch.bound_formula),
        at_formula=at_one(minibatch.at_formula),
    )


AC_SGD = _alone(MB_AC_SGD, label="ac-sgd", name="ac_sgd")
AC_SGD_GCVX = _alone(MB_AC_SGD_GCVX, label="ac-sgd:gcvx", name="ac_sgd_convex")
