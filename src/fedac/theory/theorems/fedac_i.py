"""Convergence of FedAc-I: theorems fedaci:full (strongly convex) and fedaci:a1:gcvx (convex)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import cbrt, sqrt

from fedac.algorithms import hyperparameters
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.theory import tight_bounds
from fedac.theory.bounds import Rate, accelerated_decay, bound_with_logs
from fedac.theory.constants import divide, log_ratio
from fedac.theory.theorems.base import StepSize, Theorem

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
    step_size_formula=lambda rate, *, L, mu, K, T, Psi0, **_: StepSize(
        hyperparameters.fedac_i(
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
    any_step=tight_bounds.fedac_i,
)


def gcvx_step_size(
    rate: Rate,
    *,
    full: Theorem,
    couple: Callable[..., Hyperparameters],
    constant: float,
    caps: Callable[..., tuple[float, ...]],
    **letters: float,
) -> StepSize:
    """Return the step size of FedAc-I or II on F + lam/2 ||w - w_0||^2 (eq:aug).

    It is that of the theorem `full` with mu = lam and this constant, limited by `caps`.
    """
    L, K, T, D0 = (letters[letter] for letter in ("L", "K", "T", "D0"))
    lam = max(rate.noise / D0**2, 2 * constant * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = full.rate_formula(mu=lam, **letters).noise
    eta = constant * K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2
    eta = min(1 / (L + lam), eta, *caps(lam, **letters))
    return StepSize(couple(eta=eta, mu=lam, K=K), lam)


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
    step_size_formula=partial(
        gcvx_step_size,
        full=FEDACI_FULL,
        couple=hyperparameters.fedac_i,
        constant=1,
        caps=lambda lam, *, L, sigma, K, T, D0, **_: (
            divide(cbrt(L * K * (D0 / lam) ** 2), T * cbrt(sigma**2)),
            divide((L * K * D0**2 / lam**3) ** 0.25, T * sqrt(sigma)),
        ),
    ),
    # of E[F] - F*
    bound_formula=lambda rate, *, L, K, T, D0, **_: bound_with_logs(
        rate,
        optimization=2 * rate.optimization,
        optimization_log=log_ratio(T**2, K, 2) ** 2,
        potential=L * D0**2,
        variance=(2, 2, 2),
        discrepancy=(1005, 4, 4),
    ),
    any_step=tight_bounds.augmented(tight_bounds.fedac_i, start="Psi0"),
    augmented=True,
)
