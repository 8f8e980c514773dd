"""Couplings: from the step size eta to all four hyperparameters of FedAc.

Every algorithm of the paper is one update with four numbers. A coupling chooses
``(gamma, alpha, beta)`` from ``eta``, the strong-convexity estimate ``mu`` and the
synchronization interval ``K``, so that ``eta`` alone is left to tune.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from fedac.errors import InputError
from fedac.require import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """The four hyperparameters of algorithm FedAc (label alg:fedac).

    Parameters
    ----------
    eta : float
        Step size of ``w_ag``.
    gamma : float
        Step size of ``w``.
    alpha, beta : float
        Coupling coefficients between ``w``, ``w_md`` and ``w_ag``.
    rho : float
        Ratio of the weights of two successive iterates in the averaged output of
        theorem fedavg:a2; 1 where no average is kept.

    Examples
    --------
    >>> Hyperparameters(eta=0.5, gamma=0.5, alpha=1.0, beta=1.0).rho
    1.0
    """

    eta: float
    gamma: float
    alpha: float
    beta: float
    rho: float = 1.0

    def __post_init__(self) -> None:
        for name in ("eta", "gamma", "alpha", "beta", "rho"):
            require_positive(name, getattr(self, name))


class Coupling(Protocol):
    """Choose all hyperparameters from the step size."""

    def __call__(self, *, eta: float, mu: float, K: int) -> Hyperparameters:
        """Return the hyperparameters for step size `eta`."""
        ...


def fedac_i(*, eta: float, mu: float, K: float) -> Hyperparameters:
    """Couple as FedAc-I: gamma = max(sqrt(eta/(mu K)), eta), alpha = 1/(gamma mu), beta = alpha+1.

    Paper: equation (fedaci).

    Examples
    --------
    >>> fedac_i(eta=0.5, mu=0.5, K=4)
    Hyperparameters(eta=0.5, gamma=0.5, alpha=4.0, beta=5.0, rho=1.0)
    """
    gamma = _stable_gamma(eta, mu, K)
    alpha = 1 / (gamma * mu)
    return Hyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=alpha + 1)


def fedac_ii(*, eta: float, mu: float, K: float) -> Hyperparameters:
    """Couple as FedAc-II: alpha = 3/(2 gamma mu) - 1/2, beta = (2 alpha^2 - 1)/(alpha - 1).

    ``gamma`` is that of FedAc-I. Needs alpha > 1, that is gamma mu < 1.
    Paper: equation (fedacii).

    Examples
    --------
    >>> hp = fedac_ii(eta=0.25, mu=1.0, K=1)
    >>> hp.gamma, hp.alpha, round(hp.beta, 6)
    (0.5, 2.5, 7.666667)
    """
    gamma = _stable_gamma(eta, mu, K)
    alpha = 3 / (2 * gamma * mu) - 1 / 2
    if alpha <= 1:
        raise InputError(
            f"FedAc-II needs alpha > 1, that is gamma*mu < 1; eta={eta:g} with mu={mu:g}, K={K} "
            f"gives alpha={alpha:.4g}. Use eta < 1/mu = {1 / mu:.4g}"
        )
    return Hyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=(2 * alpha**2 - 1) / (alpha - 1))


def vanilla(*, eta: float, mu: float, K: int = 1) -> Hyperparameters:
    """Couple without the acceleration-stability trade-off: gamma = sqrt(eta/mu), whatever K.

    This is the direct acceleration that the paper warns of ("vanilla FedAc", section on
    experiments), and what MB-AC-SGD does with its one step per round.

    Examples
    --------
    >>> vanilla(eta=0.5, mu=0.5, K=64)
    Hyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=3.0, rho=1.0)
    """
    gamma = math.sqrt(require_positive("eta", eta) / require_positive("mu", mu))
    alpha = 1 / (gamma * mu)
    return Hyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=alpha + 1)


def fedavg(*, eta: float, mu: float = 1.0, K: int = 1) -> Hyperparameters:
    """Couple as FedAvg: gamma = eta and alpha = beta = 1 make the two sequences one.

    Examples
    --------
    >>> fedavg(eta=0.5)
    Hyperparameters(eta=0.5, gamma=0.5, alpha=1.0, beta=1.0, rho=1.0)
    """
    return Hyperparameters(eta=eta, gamma=eta, alpha=1.0, beta=1.0)


def fedavg_weighted(*, eta: float, mu: float, K: int = 1) -> Hyperparameters:
    """Couple as FedAvg and average with rho_t = (1 - eta mu/2)^(T-t-1).

    Paper: theorem fedavg:a2:full.

    Examples
    --------
    >>> fedavg_weighted(eta=0.5, mu=1.0).rho
    0.75
    """
    rho = 1 - require_positive("eta", eta) * require_positive("mu", mu) / 2
    if rho <= 0:
        raise InputError(
            f"the weighted average of FedAvg needs eta < 2/mu = {2 / mu:.4g}, got eta={eta:g}"
        )
    return Hyperparameters(eta=eta, gamma=eta, alpha=1.0, beta=1.0, rho=rho)


def _stable_gamma(eta: float, mu: float, K: float) -> float:
    """Trade acceleration for stability: gamma = max(sqrt(eta/(mu K)), eta)."""
    require_positive("eta", eta)
    require_positive("mu", mu)
    if not math.isfinite(eta / mu):
        raise InputError(f"eta={eta:g} is too large for mu={mu:g}: eta/mu must be finite")
    if K < 1:
        raise InputError(f"K must be at least 1, got {K}")
    return max(math.sqrt(eta / (mu * K)), eta)
