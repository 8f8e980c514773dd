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


def _a1_rate(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, **_: float
) -> Rate:
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K * sigma**2 / (mu**2 * T**2),
    )


def _a1_step_size(rate: Rate, *, L: float, mu: float, T: float, D0: float, **_: float) -> StepSize:
    # The paper leaves the constant open; we use 1, and the logarithm that balances the terms.
    eta = min(1 / L, log_ratio(L * D0**2, rate.noise) / (mu * T))
    return StepSize(couplings.fedavg(eta=eta))


def _a1_bound(rate: Rate, *, L: float, mu: float, T: float, D0: float, **_: float) -> Bound:
    """Bound E[F] - F* of the weighted average.

    The paper gives no constants and logarithms. Here all constants are 1, and the logarithms
    follow from the step size.
    """
    start = L * D0**2
    return bound_with_logs(
        rate,
        optimization=exp(-mu * T / L) * start,
        potential=start,
        variance=(1, 1),
        discrepancy=(1, 2),
    )


FEDAVG_A1 = Theorem(
    label="fedavg:a1",
    name="fedavg_a1",
    algorithm="fedavg",
    assumption=1,
    strongly_convex=True,
    start="D0",
    paper_constants=False,
    rate_formula=_a1_rate,
    step_size_formula=_a1_step_size,
    bound_formula=_a1_bound,
)


def _a2_full_rate(
    *, mu: float, sigma: float, Q: float, M: float, K: float, T: float, **_: float
) -> Rate:
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=Q**2 * K**2 * sigma**4 / (mu**5 * T**4),
    )


def _a2_full_step_size(
    rate: Rate, *, L: float, mu: float, T: float, D0: float, **_: float
) -> StepSize:
    eta = min(1 / (4 * L), 2 / (mu * T) * log_ratio(mu * T * D0**2, rate.noise))
    return StepSize(couplings.fedavg_weighted(eta=eta, mu=mu))


def _a2_full_bound(rate: Rate, *, L: float, mu: float, T: float, D0: float, **_: float) -> Bound:
    """Bound E[F] - F* of the weighted average plus mu/2 E||w_T - w*||^2."""
    return bound_with_logs(
        rate,
        optimization=exp(-mu * T / (8 * L)) * 4 * L * D0**2,
        potential=mu * T * D0**2,
        variance=(3, 1),
        discrepancy=(3073, 4),
    )


FEDAVG_A2_FULL = Theorem(
    label="fedavg:a2:full",
    short_version="fedavg:a2",
    name="fedavg_a2",
    algorithm="fedavg-weighted",
    assumption=2,
    strongly_convex=True,
    start="D0",
    rate_formula=_a2_full_rate,
    step_size_formula=_a2_full_step_size,
    bound_formula=_a2_full_bound,
)


def _a2_gcvx_rate(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Rate:
    return Rate(
        optimization=L * D0**2 / T,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(Q * K * sigma**2 * D0**5 / T**2),
    )


def _a2_gcvx_step_size(
    rate: Rate, *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> StepSize:
    lam = max(rate.noise / D0**2, 16 * L / T * log_ratio(T, 1))
    noise = _a2_full_rate(mu=lam, sigma=sigma, Q=Q, M=M, K=K, T=T).noise
    eta = min(1 / (4 * (L + lam)), 2 / (lam * T) * log_ratio(lam * T * D0**2, noise))
    return StepSize(couplings.fedavg_weighted(eta=eta, mu=lam), lam)


def _a2_gcvx_bound(rate: Rate, *, T: float, **_: float) -> Bound:
    """Bound E[F] - F* of the weighted average; the only bound with logarithms of T alone."""
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
    start="D0",
    least_steps=100,
    rate_formula=_a2_gcvx_rate,
    step_size_formula=_a2_gcvx_step_size,
    bound_formula=_a2_gcvx_bound,
)
