"""Convergence of FedAvg.

Proposition fedavg:a1 and theorem fedavg:a2:full (strongly convex), theorem fedavg:a2:gcvx (convex).
The two theorems are about the weighted average of the iterates, algorithm fedavg-weighted.
"""

from __future__ import annotations

from math import cbrt, exp, sqrt

from fedac.algorithms import couplings
from fedac.theory.letters import log_ratio
from fedac.theory.terms import Bound, Rate, bound_with_logs
from fedac.theory.theorems.record import StepSize, Theorem

FEDAVG_A1 = Theorem(
    label="fedavg:a1",
    name="fedavg_a1",
    algorithm="fedavg",
    # The paper omits constants and logarithms. Ours are 1, and the logarithms that balance the
    # terms.
    paper_constants=False,
    rate_formula=lambda *, L, mu, sigma, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K * sigma**2 / (mu**2 * T**2),
    ),
    step_size_formula=lambda rate, *, L, mu, T, D0, **_: StepSize(
        couplings.fedavg(eta=min(1 / L, log_ratio(L * D0**2, rate.noise) / (mu * T)))
    ),
    # of E[F] - F* for the weighted average
    bound_formula=lambda rate, *, L, mu, T, D0, **_: bound_with_logs(
        rate,
        optimization=exp(-mu * T / L) * (L * D0**2),
        potential=L * D0**2,
        variance=(1, 1),
        discrepancy=(1, 2),
    ),
)

FEDAVG_A2_FULL = Theorem(
    label="fedavg:a2:full",
    short_version="fedavg:a2",
    name="fedavg_a2",
    algorithm="fedavg-weighted",
    assumption=2,
    rate_formula=lambda *, mu, sigma, Q, M, K, T, **_: Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=Q**2 * K**2 * sigma**4 / (mu**5 * T**4),
    ),
    step_size_formula=lambda rate, *, L, mu, T, D0, **_: StepSize(
        couplings.fedavg_weighted(
            eta=min(1 / (4 * L), 2 / (mu * T) * log_ratio(mu * T * D0**2, rate.noise)), mu=mu
        )
    ),
    # of E[F] - F* for the weighted average, plus mu/2 E||w_T - w*||^2
    bound_formula=lambda rate, *, L, mu, T, D0, **_: bound_with_logs(
        rate,
        optimization=exp(-mu * T / (8 * L)) * 4 * L * D0**2,
        potential=mu * T * D0**2,
        variance=(3, 1),
        discrepancy=(3073, 4),
    ),
)


def _gcvx_step_size(
    rate: Rate, *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> StepSize:
    lam = max(rate.noise / D0**2, 16 * L / T * log_ratio(T, 1))
    noise = FEDAVG_A2_FULL.rate_formula(mu=lam, sigma=sigma, Q=Q, M=M, K=K, T=T).noise
    eta = min(1 / (4 * (L + lam)), 2 / (lam * T) * log_ratio(lam * T * D0**2, noise))
    return StepSize(couplings.fedavg_weighted(eta=eta, mu=lam), lam)


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
    rate_formula=lambda *, L, sigma, Q, M, K, T, D0: Rate(
        optimization=L * D0**2 / T,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(Q * K * sigma**2 * D0**5 / T**2),
    ),
    step_size_formula=_gcvx_step_size,
    bound_formula=_gcvx_bound,
)
