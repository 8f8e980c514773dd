"""Convergence of FedAc-I: theorems fedaci:full (strongly convex) and fedaci:a1:gcvx (convex)."""

from __future__ import annotations

from math import cbrt, sqrt

from fedac.algorithms import couplings
from fedac.theory.letters import divide, log_ratio
from fedac.theory.terms import Rate, accelerated_decay, bound_with_logs
from fedac.theory.theorems.record import StepSize, Theorem

FEDACI_FULL = Theorem(
    label="fedaci:full",
    short_version="fedac:a1",  # part (a)
    name="fedac_i_a1",
    algorithm="fedac-i",
    assumption=1,
    strongly_convex=True,
    start="Psi0",
    rate_formula=lambda *, L, mu, sigma, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K**2 * sigma**2 / (mu**2 * T**3),
    ),
    step_size_formula=lambda rate, *, L, mu, K, T, Psi0, **_: StepSize(
        couplings.fedac_i(
            eta=min(1 / L, K / (mu * T**2) * log_ratio(Psi0, rate.noise) ** 2), mu=mu, K=K
        )
    ),
    # of E[Psi_T]
    bound_formula=lambda rate, *, L, mu, K, T, Psi0, **_: bound_with_logs(
        rate,
        optimization=accelerated_decay(L, mu, K, T) * Psi0,
        potential=Psi0,
        variance=(2, 2),
        discrepancy=(400, 4),
    ),
)


def _gcvx_step_size(
    rate: Rate, *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> StepSize:
    lam = max(rate.noise / D0**2, 2 * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = FEDACI_FULL.rate_formula(L=L, mu=lam, sigma=sigma, M=M, K=K, T=T).noise
    eta = min(
        1 / (L + lam),
        K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2,
        divide(cbrt(L * K * (D0 / lam) ** 2), T * cbrt(sigma**2)),
        divide((L * K * D0**2 / lam**3) ** 0.25, T * sqrt(sigma)),
    )
    return StepSize(couplings.fedac_i(eta=eta, mu=lam, K=K), lam)


FEDACI_A1_GCVX = Theorem(
    label="fedaci:a1:gcvx",
    name="fedac_i_a1_convex",
    algorithm="fedac-i",
    assumption=1,
    strongly_convex=False,
    start="D0",
    least_steps=24,
    rate_formula=lambda *, L, sigma, M, K, T, D0: Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(L * K**2 * sigma**2 * D0**4) / T,
    ),
    step_size_formula=_gcvx_step_size,
    # of E[F] - F*
    bound_formula=lambda rate, *, L, K, T, D0, **_: bound_with_logs(
        rate,
        optimization=2 * rate.optimization,
        optimization_log=log_ratio(T**2, K, 2) ** 2,
        potential=L * D0**2,
        variance=(2, 2, 2),
        discrepancy=(1005, 4, 4),
    ),
)
