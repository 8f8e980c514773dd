"""Minibatch SGD and accelerated minibatch SGD, for comparison with the paper's theorems.

The paper does not state these results; all constants are 1. Both take T/K steps of M K samples, so
there is no discrepancy.
"""

from __future__ import annotations

from math import exp, sqrt

from fedac.algorithms import couplings
from fedac.theory.letters import log_ratio
from fedac.theory.terms import Bound, Rate, bound_with_logs
from fedac.theory.theorems.record import StepSize, Theorem
from fedac.theory.theorems.shared import over


def _rate(*, mu: float, sigma: float, M: float, T: float, **_: float) -> Rate:
    return Rate(variance=sigma**2 / (mu * M * T))


def _sgd_step_size(
    rate: Rate, *, L: float, mu: float, K: float, T: float, D0: float, **_: float
) -> StepSize:
    """Return FedAvg's step size (fedavg:a1) for T/K steps."""
    eta = min(1 / L, K / (mu * T) * log_ratio(L * D0**2, rate.noise))
    return StepSize(couplings.fedavg(eta=eta))


def _sgd_bound(
    rate: Rate, *, L: float, mu: float, K: float, T: float, D0: float, **_: float
) -> Bound:
    """Bound E[F] - F*."""
    start = L * D0**2
    decay = exp(-mu * T / (K * L))
    return bound_with_logs(rate, optimization=decay * start, potential=start, variance=(1, 1))


MB_SGD = Theorem(
    label="mb-sgd",
    name="mb_sgd",
    algorithm="mb-sgd",
    assumption=1,
    strongly_convex=True,
    start="D0",
    paper_constants=False,
    rate_formula=_rate,
    step_size_formula=_sgd_step_size,
    bound_formula=_sgd_bound,
)


def _ac_sgd_step_size(
    rate: Rate, *, L: float, mu: float, K: float, T: float, D0: float, **_: float
) -> StepSize:
    """Return FedAc-I's step size (fedaci:full) for T/K steps with K = 1."""
    eta = min(1 / L, K**2 / (mu * T**2) * log_ratio(L * D0**2, rate.noise) ** 2)
    return StepSize(couplings.vanilla(eta=eta, mu=mu))


def _ac_sgd_bound(
    rate: Rate, *, L: float, mu: float, K: float, T: float, D0: float, **_: float
) -> Bound:
    """Bound E[F] - F*."""
    start = L * D0**2
    decay = exp(-sqrt(mu / L) * T / K)
    return bound_with_logs(rate, optimization=decay * start, potential=start, variance=(1, 1))


MB_AC_SGD = Theorem(
    label="mb-ac-sgd",
    name="mb_ac_sgd",
    algorithm="mb-ac-sgd",
    assumption=1,
    strongly_convex=True,
    start="D0",
    paper_constants=False,
    rate_formula=_rate,
    step_size_formula=_ac_sgd_step_size,
    bound_formula=_ac_sgd_bound,
)


def _gcvx_bound(rate: Rate, **_: float) -> Bound:
    """Bound E[F] - F* by the rate itself."""
    return Bound(optimization=rate.optimization, variance=rate.variance)


def _sgd_gcvx_rate(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Rate:
    return Rate(optimization=L * K * D0**2 / T, variance=sigma * D0 / sqrt(M * T))


def _sgd_gcvx_step_size(
    rate: Rate, *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> StepSize:
    eta = min(1 / L, over(D0 * K * sqrt(M), sigma * sqrt(T)))
    return StepSize(couplings.fedavg(eta=eta))


MB_SGD_GCVX = Theorem(
    label="mb-sgd:gcvx",
    name="mb_sgd_convex",
    algorithm="mb-sgd",
    assumption=1,
    strongly_convex=False,
    start="D0",
    paper_constants=False,
    rate_formula=_sgd_gcvx_rate,
    step_size_formula=_sgd_gcvx_step_size,
    bound_formula=_gcvx_bound,
)


def _ac_sgd_gcvx_rate(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Rate:
    return Rate(optimization=L * (K * D0) ** 2 / T**2, variance=sigma * D0 / sqrt(M * T))


def _ac_sgd_gcvx_step_size(
    rate: Rate, *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> StepSize:
    """Return FedAc-I's step size (fedaci:a1:gcvx) for T/K steps with K = 1, without discrepancy."""
    R = T / K
    lam = max(rate.noise / D0**2, 2 * L / R**2 * log_ratio(R**2, 1, 2) ** 2)
    noise = _rate(mu=lam, sigma=sigma, M=M, T=T).noise
    eta = min(1 / (L + lam), log_ratio(L * D0**2, noise) ** 2 / (lam * R**2))
    return StepSize(couplings.vanilla(eta=eta, mu=lam), lam)


MB_AC_SGD_GCVX = Theorem(
    label="mb-ac-sgd:gcvx",
    name="mb_ac_sgd_convex",
    algorithm="mb-ac-sgd",
    assumption=1,
    strongly_convex=False,
    start="D0",
    paper_constants=False,
    rate_formula=_ac_sgd_gcvx_rate,
    step_size_formula=_ac_sgd_gcvx_step_size,
    bound_formula=_gcvx_bound,
)
