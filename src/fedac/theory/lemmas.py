# SPDX-License-Identifier: Apache-2.0
"""The lemmas behind the theorems: bounds for any step size, and for the workers' discrepancy.

There are three kinds, distinguished by the suffixes of their names. ``_perturbed`` bounds progress
given the largest discrepancy along the way, ``_discrepancy`` bounds that discrepancy, and
``_general_eta`` combines the two. `fedac.theory.tracing.trace` measures the discrepancies. All
lemmas are as printed; `fedac.theory.tight_bounds` combines them more tightly. Under asm2 the paper
writes sigma for two numbers: the sigma of asm1 (c), in the terms of averaged noise, and a fourth
moment (asm2 (b)) in the discrepancies. The second is `sigma4` here.

Examples
--------
>>> step = dict(eta=0.5, gamma=0.5, mu=1.0, sigma=2.0)
>>> fedac_i_discrepancy(**step, K=2)
14.0
>>> fedac_i_perturbed(**step, L=2.0, M=4, T=8, Psi0=0.0, discrepancy=14.0).discrepancy
28.0
>>> fedac_i_general_eta(eta=1.0, L=1.0, mu=1.0, sigma=0.0, M=1, K=1, T=2, Psi0=1.0).total  # e^-2
0.1353352832366127
"""

from __future__ import annotations

from math import exp, inf, log1p, sqrt

from fedac.errors import InputError
from fedac.theory.bounds import Bound, checked, require_small


@checked
def fedac_i_general_eta(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, T: float, Psi0: float
) -> Bound:
    """Bound E[Psi_T] of FedAc-I for any eta <= 1/L (lemma fedaci:general:eta)."""
    require_small(eta, 1 / L)
    return Bound(
        optimization=exp(-_decay(eta, mu, K) * T) * Psi0,
        variance=sigma**2 / (2 * M) * (sqrt(eta / (mu * K)) + eta),
        discrepancy=L * sigma**2 * (390 * eta * sqrt(eta * K / mu) + 7 * eta**2 * K),
    )


@checked
def fedac_ii_a1_general_eta(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, T: float, Phi0: float
) -> Bound:
    """Bound E[Phi_T] of FedAc-II for any eta <= 1/L (lemma fedacii:a1:general:eta)."""
    require_small(eta, 1 / L)
    return Bound(
        optimization=exp(-_decay(eta, mu, K) * T / 3) * Phi0,
        variance=sqrt(eta / (mu * K)) * sigma**2 / M,
        discrepancy=100 * eta**2 * L**2 * K * sigma**2 / mu,
    )


@checked
def fedac_ii_a2_general_eta(
    *, eta: float, L: float, mu: float, sigma: float, sigma4: float, Q: float, M: float, K: float,
    T: float, Phi0: float,
) -> Bound:  # fmt: skip
    """Bound E[Phi_T] of FedAc-II for any eta <= 1/L under asm2 (lemma fedacii:a2:general:eta)."""
    require_small(eta, 1 / L)
    return Bound(
        optimization=exp(-_decay(eta, mu, K) * T / 3) * Phi0,
        variance=sqrt(eta / (mu * K)) * sigma**2 / M,
        accelerated_variance=2 * eta * sqrt(eta * K / mu) * L * sigma**2 / M,
        discrepancy=exp(9) * eta**4 * Q**2 * K**2 * sigma4**4 / mu,
    )


@checked
def fedavg_a2_general_eta(
    *, eta: float, L: float, mu: float, sigma: float, sigma4: float, Q: float, M: float, K: float,
    T: float, D0: float,
) -> Bound:  # fmt: skip
    """Bound FedAvg's weighted average for any eta <= 1/(4L) (lemma fedavg:a2:general:eta)."""
    require_small(eta, 1 / (4 * L))
    return Bound(
        optimization=exp(-eta * mu * T / 2) * D0**2 / eta,
        variance=eta * sigma**2 / M,
        discrepancy=192 * eta**4 * Q**2 * K**2 * sigma4**4 / mu,
    )


@checked
def fedac_i_perturbed(
    *, eta: float, gamma: float, L: float, mu: float, sigma: float, M: float, T: float, Psi0: float,
    discrepancy: float,
) -> Bound:  # fmt: skip
    """Bound E[Psi_T] given the largest expected discrepancy (lemma fedaci:conv:main)."""
    require_small(eta, 1 / L)
    _require_between(eta, gamma, mu)
    return Bound(
        optimization=exp(-gamma * mu * T) * Psi0,
        variance=gamma * sigma**2 / (2 * M),
        accelerated_variance=eta**2 * L * sigma**2 / (2 * gamma * mu),
        discrepancy=L * discrepancy,
    )


@checked
def fedac_ii_perturbed(
    *, eta: float, gamma: float, L: float, mu: float, sigma: float, M: float, T: float, Phi0: float,
    discrepancy: float,
) -> Bound:  # fmt: skip
    """Bound E[Phi_T] given the largest expected discrepancy (lemma fedacii:conv:main)."""
    require_small(eta, 1 / L)
    _require_between(eta, gamma, mu)
    return Bound(
        optimization=exp(-gamma * mu * T / 3) * Phi0,
        variance=gamma * sigma**2 / (2 * M),
        accelerated_variance=3 * eta**2 * L * sigma**2 / (2 * gamma * mu * M),
        discrepancy=3 / mu * discrepancy,
    )


@checked
def fedavg_a2_perturbed(
    *, eta: float, L: float, mu: float, sigma: float, Q: float, M: float, T: float, D0: float,
    discrepancy: float,
) -> Bound:  # fmt: skip
    """Bound FedAvg's weighted average given the discrepancy (lemma fedavg:a2:conv:main)."""
    require_small(eta, 1 / (4 * L))
    return Bound(
        optimization=exp(-eta * mu * T / 2) * D0**2 / eta,
        variance=eta * sigma**2 / M,
        discrepancy=Q**2 / mu * discrepancy,
    )


@checked
def fedac_i_discrepancy(*, eta: float, gamma: float, mu: float, sigma: float, K: float) -> float:
    """Bound FedAc-I's discrepancy overhead at any step (lemma fedaci:stab:main)."""
    return _amplified(7 * eta * gamma * K * sigma**2, eta, gamma, mu, 2 * mu, 2 * K)


@checked
def fedac_ii_a1_discrepancy(
    *, eta: float, gamma: float, L: float, mu: float, sigma: float, K: float
) -> float:
    """Bound FedAc-II's discrepancy overhead at any step (lemma fedacii:a1:stab:main)."""
    require_small(eta, 1 / L)
    return _amplified(4 * eta**2 * L**2 * K * sigma**2, eta, gamma, mu, mu, 2 * K)


@checked
def fedac_ii_a2_discrepancy(
    *, eta: float, gamma: float, mu: float, sigma4: float, Q: float, K: float
) -> float:
    """Bound FedAc-II's discrepancy overhead at any step under asm2 (lemma fedacii:stab:main)."""
    return _amplified(44 * eta**4 * Q**2 * K**2 * sigma4**4, eta, gamma, mu, mu, 4 * K)


@checked
def fedavg_a2_discrepancy(*, eta: float, sigma4: float, K: float) -> float:
    """Bound the mean of FedAvg's ||w - w_m||^4 at any step (lemma fedavg:a2:stab:main)."""
    return 192 * eta**4 * K**2 * sigma4**4


def _decay(eta: float, mu: float, K: float) -> float:
    """Return gamma mu of the stable coupling, the exponent of one step."""
    return max(eta * mu, sqrt(eta * mu / K))


def _amplified(
    size: float, eta: float, gamma: float, mu: float, rate: float, steps: float
) -> float:
    """Return the discrepancy amplified by acceleration; without acceleration it is unchanged."""
    _require_between(eta, gamma, mu)
    exponent = 0.0 if gamma == eta else steps * log1p(gamma**2 * rate / eta)
    if size == 0 or exponent > 700:  # overflow: the bound says nothing
        return inf if size else 0.0
    return size * exp(exponent)


def _require_between(eta: float, gamma: float, mu: float) -> None:
    if not eta * (1 - 1e-12) <= gamma <= sqrt(eta / mu) * (1 + 1e-12):
        raise InputError(
            f"gamma must be from eta={eta:g} to sqrt(eta/mu)={sqrt(eta / mu):.4g}, got {gamma:g}"
        )
