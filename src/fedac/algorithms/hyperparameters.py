# SPDX-License-Identifier: Apache-2.0
"""Couplings: from the step size eta to all hyperparameters of an algorithm.

FedAc has four numbers. A coupling chooses ``(gamma, alpha, beta)`` from ``eta``, the
strong-convexity estimate ``mu`` and the synchronization interval ``K``, so that ``eta`` alone is
left to tune.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from fedac.errors import InputError
from fedac.validate import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Base hyperparameters: the step size, sufficient for FedAvg.

    Algorithms with more hyperparameters declare them in a subclass; all must be above 0.
    """

    eta: float

    def __post_init__(self) -> None:
        for field in fields(self):
            require_positive(field.name, getattr(self, field.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAcHyperparameters(Hyperparameters):
    """The four hyperparameters of algorithm FedAc (label alg:fedac).

    ``w_ag`` has step size ``eta`` and ``w`` has ``gamma``; ``alpha`` and ``beta`` couple ``w``,
    ``w_md`` and ``w_ag``.
    """

    gamma: float
    alpha: float
    beta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedHyperparameters(Hyperparameters):
    """Hyperparameters of FedAvg with the averaged output of theorem fedavg:a2."""

    rho: float  # ratio of the weights of successive iterates


def as_fedac(hp: Hyperparameters) -> FedAcHyperparameters:
    """Return FedAc hyperparameters: FedAvg is FedAc with gamma = eta and alpha = beta = 1."""
    if isinstance(hp, FedAcHyperparameters):
        return hp
    return FedAcHyperparameters(eta=hp.eta, gamma=hp.eta, alpha=1.0, beta=1.0)


class Coupling(Protocol):
    """Choose all hyperparameters from the step size."""

    def __call__(self, *, eta: float, mu: float, K: int) -> Hyperparameters:
        """Return the hyperparameters for step size `eta`."""
        ...


def fedac_i(*, eta: float, mu: float, K: float) -> FedAcHyperparameters:
    """Couple as FedAc-I (equation fedaci): alpha = 1/(gamma mu), beta = alpha + 1.

    gamma = max(sqrt(eta/(mu K)), eta) trades acceleration for stability.
    """
    gamma = _checked_gamma(eta, mu, K)
    alpha = 1 / (gamma * mu)
    return FedAcHyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=alpha + 1)


def fedac_ii(*, eta: float, mu: float, K: float) -> FedAcHyperparameters:
    """Couple as FedAc-II (equation fedacii), with the gamma of FedAc-I.

    alpha = 3/(2 gamma mu) - 1/2, beta = (2 alpha^2 - 1)/(alpha - 1). Needs alpha > 1, that is
    gamma mu < 1.
    """
    gamma = _checked_gamma(eta, mu, K)
    alpha = 3 / (2 * gamma * mu) - 1 / 2
    if alpha <= 1:
        raise InputError(
            f"FedAc-II needs alpha > 1, that is gamma*mu < 1; eta={eta:g} with mu={mu:g}, K={K} "
            f"gives alpha={alpha:.4g}. Use eta < 1/mu = {1 / mu:.4g}"
        )
    return FedAcHyperparameters(
        eta=eta, gamma=gamma, alpha=alpha, beta=(2 * alpha**2 - 1) / (alpha - 1)
    )


def vanilla(*, eta: float, mu: float, K: int = 1) -> FedAcHyperparameters:
    """Couple without the acceleration-stability trade-off: gamma = sqrt(eta/mu) for any K.

    This is the direct acceleration that the paper warns against ("vanilla FedAc", section on
    experiments). MB-AC-SGD uses it for its one step per round.
    """
    gamma = math.sqrt(require_positive("eta", eta) / require_positive("mu", mu))
    alpha = 1 / (gamma * mu)
    return FedAcHyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=alpha + 1)


def fedavg(*, eta: float, mu: float = 1.0, K: int = 1) -> Hyperparameters:
    """Keep the step size: FedAvg has nothing to couple."""
    return Hyperparameters(eta=eta)


def fedavg_weighted(*, eta: float, mu: float, K: int = 1) -> AveragedHyperparameters:
    """Couple as FedAvg and average with rho_t = (1 - eta mu/2)^(T-t-1) (theorem fedavg:a2:full)."""
    rho = 1 - require_positive("eta", eta) * require_positive("mu", mu) / 2
    if rho <= 0:
        raise InputError(
            f"the weighted average of FedAvg needs eta < 2/mu = {2 / mu:.4g}, got eta={eta:g}"
        )
    return AveragedHyperparameters(eta=eta, rho=rho)


def stable_gamma(eta: float, mu: float, K: float) -> float:
    """Return gamma = max(sqrt(eta/(mu K)), eta), as FedAc-I and FedAc-II have it."""
    return max(math.sqrt(eta / (mu * K)), eta)


def largest_mu(*, eta: float, K: int) -> float:
    """Return the mu below which FedAc-I and FedAc-II accelerate; at or above it, gamma = eta.

    Examples
    --------
    >>> largest_mu(eta=0.1, K=100)
    0.1
    """
    return 1 / (eta * K)


def _checked_gamma(eta: float, mu: float, K: float) -> float:
    require_positive("eta", eta)
    require_positive("mu", mu)
    if not math.isfinite(eta / mu):
        raise InputError(f"eta={eta:g} is too large for mu={mu:g}: eta/mu must be finite")
    if K < 1:
        raise InputError(f"K must be at least 1, got {K}")
    return stable_gamma(eta, mu, K)
