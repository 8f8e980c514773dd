"""Convergence of FedAc-I: theorems fedaci:full (strongly convex) and fedaci:a1:gcvx (convex)."""

from __future__ import annotations

from math import cbrt, sqrt

from fedac.algorithms import couplings
from fedac.theory.letters import log_ratio
from fedac.theory.terms import Bound, Rate, bound_with_logs
from fedac.theory.theorems.record import StepSize, Theorem
from fedac.theory.theorems.shared import accelerated_decay, over


def _full_rate(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, **_: float
) -> Rate:
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K**2 * sigma**2 / (mu**2 * T**3),
    )


def _full_step_size(
    rate: Rate, *, L: float, mu: float, K: float, T: float, Psi0: float, **_: float
) -> StepSize:
    eta = min(1 / L, K / (mu * T**2) * log_ratio(Psi0, rate.noise) ** 2)
    return StepSize(couplings.fedac_i(eta=eta, mu=mu, K=K))


def _full_bound(
    rate: Rate, *, L: float, mu: float, K: float, T: float, Psi0: float, **_: float
) -> Bound:
    """Bound E[Psi_T]."""
    return bound_with_logs(
        rate,
        optimization=accelerated_decay(L, mu, K, T) * Psi0,
        potential=Psi0,
        variance=(2, 2),
        discrepancy=(400, 4),
    )


FEDACI_FULL = Theorem(
    label="fedaci:full",
    short_version="fedac:a1",  # its part (a)
    name="fedac_i_a1",
    algorithm="fedac-i",
    assumption=1,
    strongly_convex=True,
    start="Psi0",
    rate_formula=_full_rate,
    step_size_formula=_full_step_size,
    bound_formula=_full_bound,
)


def _gcvx_rate(
    *, L: float, sigma: float, M: float, K: float, T: float, D0: float, **_: float
) -> Rate:
    return Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(L * K**2 * sigma**2 * D0**4) / T,
    )


def _gcvx_step_size(
    rate: Rate, *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> StepSize:
    lam = max(rate.noise / D0**2, 2 * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = _full_rate(L=L, mu=lam, sigma=sigma, M=M, K=K, T=T).noise
    eta = min(
        1 / (L + lam),
        K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2,
        over(cbrt(L * K * (D0 / lam) ** 2), T * cbrt(sigma**2)),
        over((L * K * D0**2 / lam**3) ** 0.25, T * sqrt(sigma)),
    )
    return StepSize(couplings.fedac_i(eta=eta, mu=lam, K=K), lam)


def _gcvx_bound(rate: Rate, *, L: float, K: float, T: float, D0: float, **_: float) -> Bound:
    """Bound E[F] - F*."""
    log = log_ratio(T**2, K, 2) ** 2
    return bound_with_logs(
        rate,
        optimization=2 * rate.optimization * log,
        optimization_log=log,
        potential=L * D0**2,
        variance=(2, 2, 2),
        discrepancy=(1005, 4, 4),
    )


FEDACI_A1_GCVX = Theorem(
    label="fedaci:a1:gcvx",
    name="fedac_i_a1_convex",
    algorithm="fedac-i",
    assumption=1,
    strongly_convex=False,
    start="D0",
    least_steps=24,
    rate_formula=_gcvx_rate,
    step_size_formula=_gcvx_step_size,
    bound_formula=_gcvx_bound,
)
