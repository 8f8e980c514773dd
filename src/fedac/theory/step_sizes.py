"""The step size of every theorem, one function each.

Arguments are the paper's letters (see `rates.py`), with Psi0 and Phi0 for the potentials at the
start and D0 for ||w_0 - w*||. The results are the hyperparameters of algorithm FedAc.

>>> hp = fedac_i_a1(L=1.0, mu=0.01, sigma=1.0, M=64, K=16, T=1024, Psi0=1.0)
>>> round(hp.eta, 4), round(hp.gamma, 4)
(0.0558, 0.5904)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import cbrt, inf, sqrt

from fedac.algorithms import couplings
from fedac.algorithms.couplings import FedAcHyperparameters, Hyperparameters, as_fedac
from fedac.require import require_nonnegative
from fedac.theory import rates
from fedac.theory.letters import checked, log_ratio, require_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentedHyperparameters(FedAcHyperparameters):
    """Hyperparameters for the augmented objective F + lam/2 ||w - w_0||^2 (eq:aug).

    Examples
    --------
    >>> AugmentedHyperparameters(eta=0.1, gamma=0.1, alpha=1.0, beta=1.0, lam=0.5).lam
    0.5
    """

    lam: float

    def __post_init__(self) -> None:
        require_nonnegative("lam", self.lam)  # without noise it may be zero


@checked
def fedac_i_a1(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, Psi0: float
) -> Hyperparameters:
    """Return the step size of theorem fedaci:full.

    Examples
    --------
    >>> fedac_i_a1(L=2.0, mu=0.5, sigma=0.0, M=4, K=4, T=64, Psi0=1.0).eta  # no noise: 1/L
    0.5
    """
    rate = rates.fedac_i_a1(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    eta = min(1 / L, K / (mu * T**2) * log_ratio(Psi0, rate.noise) ** 2)
    return couplings.fedac_i(eta=eta, mu=mu, K=K)


@checked
def fedac_ii_a1(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, Phi0: float
) -> Hyperparameters:
    """Return the step size of theorem fedacii:a1:full, the minimum over all listed ratios.

    Examples
    --------
    >>> fedac_ii_a1(L=2.0, mu=0.5, sigma=0.0, M=4, K=4, T=64, Phi0=1.0).eta
    0.5
    """
    rate = rates.fedac_ii_a1(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    eta = min(1 / L, 9 * K / (mu * T**2) * log_ratio(Phi0, rate.noise) ** 2)
    return couplings.fedac_ii(eta=eta, mu=mu, K=K)


@checked
def fedac_ii_a2(
    *, L: float, mu: float, sigma: float, Q: float, M: float, K: float, T: float, Phi0: float
) -> Hyperparameters:
    """Return the step size of theorem fedacii:a2:full, the minimum over all listed ratios.

    Examples
    --------
    >>> fedac_ii_a2(L=2.0, mu=0.5, sigma=0.0, Q=1.0, M=4, K=4, T=64, Phi0=1.0).eta
    0.5
    """
    rate = rates.fedac_ii_a2(L=L, mu=mu, sigma=sigma, Q=Q, M=M, K=K, T=T)
    eta = min(1 / L, 9 * K / (mu * T**2) * log_ratio(Phi0, rate.noise) ** 2)
    return couplings.fedac_ii(eta=eta, mu=mu, K=K)


@checked
def fedavg_a1(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, D0: float
) -> Hyperparameters:
    """Return the step size of proposition fedavg:a1.

    The paper leaves its constant open; we take 1, and the logarithm that balances its terms.

    Examples
    --------
    >>> fedavg_a1(L=2.0, mu=0.5, sigma=0.0, M=4, K=4, T=64, D0=1.0).eta
    0.5
    """
    rate = rates.fedavg_a1(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    eta = min(1 / L, log_ratio(L * D0**2, rate.noise) / (mu * T))
    return couplings.fedavg(eta=eta)


@checked
def fedavg_a2(
    *, L: float, mu: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Hyperparameters:
    """Return the step size of theorem fedavg:a2:full; rho weighs its averaged output.

    Examples
    --------
    >>> hp = fedavg_a2(L=2.0, mu=0.5, sigma=0.0, Q=1.0, M=4, K=4, T=64, D0=1.0)
    >>> hp.eta, hp.rho
    (0.125, 0.96875)
    """
    rate = rates.fedavg_a2(L=L, mu=mu, sigma=sigma, Q=Q, M=M, K=K, T=T)
    eta = min(1 / (4 * L), 2 / (mu * T) * log_ratio(mu * T * D0**2, rate.noise))
    return couplings.fedavg_weighted(eta=eta, mu=mu)


@checked
def mb_sgd(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, D0: float
) -> Hyperparameters:
    """Return a step size for minibatch SGD: FedAvg's, with T/K steps and no discrepancy.

    Examples
    --------
    >>> mb_sgd(L=2.0, mu=0.5, sigma=0.0, M=4, K=4, T=64, D0=1.0).eta
    0.5
    """
    rate = rates.mb_sgd(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    eta = min(1 / L, K / (mu * T) * log_ratio(L * D0**2, rate.noise))
    return couplings.fedavg(eta=eta)


@checked
def mb_ac_sgd(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, D0: float
) -> Hyperparameters:
    """Return a step size for accelerated minibatch SGD: FedAc-I's, with T/K steps of one.

    Examples
    --------
    >>> mb_ac_sgd(L=2.0, mu=0.5, sigma=0.0, M=4, K=4, T=64, D0=1.0).gamma
    1.0
    """
    rate = rates.mb_ac_sgd(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    eta = min(1 / L, K**2 / (mu * T**2) * log_ratio(L * D0**2, rate.noise) ** 2)
    return couplings.vanilla(eta=eta, mu=mu)


@checked
def fedac_i_a1_convex(
    *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> AugmentedHyperparameters:
    """Return lam and the step size of theorem fedaci:a1:gcvx.

    Examples
    --------
    >>> hp = fedac_i_a1_convex(L=1.0, sigma=1.0, M=4, K=4, T=1024, D0=1.0)
    >>> round(hp.lam, 4), round(hp.eta, 4)
    (0.0156, 0.0043)
    """
    require_steps(T, "fedac_i_a1_convex")
    rate = rates.fedac_i_a1_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    lam = max(rate.noise / D0**2, 2 * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = rates.fedac_i_a1(L=L, mu=lam, sigma=sigma, M=M, K=K, T=T).noise
    eta = min(
        1 / (L + lam),
        K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2,
        _over(cbrt(L * K * (D0 / lam) ** 2), T * cbrt(sigma**2)),
        _over((L * K * D0**2 / lam**3) ** 0.25, T * sqrt(sigma)),
    )
    return _augmented(couplings.fedac_i(eta=eta, mu=lam, K=K), lam)


@checked
def fedac_ii_a1_convex(
    *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> AugmentedHyperparameters:
    """Return lam and the step size of theorem fedacii:a1:gcvx.

    Examples
    --------
    >>> hp = fedac_ii_a1_convex(L=1.0, sigma=1.0, M=4, K=4, T=1024, D0=1.0)
    >>> round(hp.lam, 4), round(hp.eta, 4)
    (0.0156, 0.0388)
    """
    require_steps(T, "fedac_ii_a1_convex")
    rate = rates.fedac_ii_a1_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    lam = max(rate.noise / D0**2, 18 * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = rates.fedac_ii_a1(L=L, mu=lam, sigma=sigma, M=M, K=K, T=T).noise
    eta = min(
        1 / (L + lam),
        9 * K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2,
        _over(cbrt(L * (D0 / lam) ** 2), cbrt((T * sigma) ** 2)),
    )
    return _augmented(couplings.fedac_ii(eta=eta, mu=lam, K=K), lam)


@checked
def fedac_ii_a2_convex(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> AugmentedHyperparameters:
    """Return lam and the step size of theorem fedacii:a2:gcvx.

    Examples
    --------
    >>> hp = fedac_ii_a2_convex(L=1.0, sigma=1.0, Q=1.0, M=4, K=4, T=1024, D0=1.0)
    >>> round(hp.lam, 4), round(hp.eta, 4)
    (0.0156, 0.0388)
    """
    require_steps(T, "fedac_ii_a2_convex")
    rate = rates.fedac_ii_a2_convex(L=L, sigma=sigma, Q=Q, M=M, K=K, T=T, D0=D0)
    lam = max(rate.noise / D0**2, 18 * L * K / T**2 * log_ratio(T**2, K, 2) ** 2)
    noise = rates.fedac_ii_a2(L=L, mu=lam, sigma=sigma, Q=Q, M=M, K=K, T=T).noise
    eta = min(
        1 / (L + lam),
        9 * K / (lam * T**2) * log_ratio(L * D0**2, noise) ** 2,
        _over(cbrt(L * K * M * (D0 / lam) ** 2), T * cbrt(sigma**2)),
    )
    return _augmented(couplings.fedac_ii(eta=eta, mu=lam, K=K), lam)


@checked
def fedavg_a2_convex(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> AugmentedHyperparameters:
    """Return lam and the step size of theorem fedavg:a2:gcvx.

    Examples
    --------
    >>> hp = fedavg_a2_convex(L=1.0, sigma=1.0, Q=1.0, M=4, K=4, T=1024, D0=1.0)
    >>> round(hp.lam, 4), round(hp.eta, 4)
    (0.1083, 0.1948)
    """
    require_steps(T, "fedavg_a2_convex")
    rate = rates.fedavg_a2_convex(L=L, sigma=sigma, Q=Q, M=M, K=K, T=T, D0=D0)
    lam = max(rate.noise / D0**2, 16 * L / T * log_ratio(T, 1))
    noise = rates.fedavg_a2(L=L, mu=lam, sigma=sigma, Q=Q, M=M, K=K, T=T).noise
    eta = min(1 / (4 * (L + lam)), 2 / (lam * T) * log_ratio(lam * T * D0**2, noise))
    return _augmented(couplings.fedavg_weighted(eta=eta, mu=lam), lam)


@checked
def mb_sgd_convex(
    *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> AugmentedHyperparameters:
    """Return a step size for minibatch SGD on a general convex objective; lam is zero.

    Examples
    --------
    >>> mb_sgd_convex(L=1.0, sigma=1.0, M=4, K=4, T=1024, D0=1.0).eta
    0.25
    """
    eta = min(1 / L, _over(D0 * K * sqrt(M), sigma * sqrt(T)))
    return _augmented(couplings.fedavg(eta=eta), lam=0.0)


@checked
def mb_ac_sgd_convex(
    *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> AugmentedHyperparameters:
    """Return lam and a step size for accelerated minibatch SGD on a general convex objective.

    Both are FedAc-I's (theorem fedaci:a1:gcvx) for T/K steps of one, without discrepancy.

    Examples
    --------
    >>> hp = mb_ac_sgd_convex(L=1.0, sigma=1.0, M=4, K=4, T=1024, D0=1.0)
    >>> round(hp.lam, 4), round(hp.eta, 4)
    (0.0156, 0.0172)
    """
    R = T / K
    rate = rates.mb_ac_sgd_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    lam = max(rate.noise / D0**2, 2 * L / R**2 * log_ratio(R**2, 1, 2) ** 2)
    noise = rates.mb_ac_sgd(L=L, mu=lam, sigma=sigma, M=M, K=K, T=T).noise
    eta = min(1 / (L + lam), log_ratio(L * D0**2, noise) ** 2 / (lam * R**2))
    return _augmented(couplings.vanilla(eta=eta, mu=lam), lam)


def _over(numerator: float, denominator: float) -> float:
    """Divide; without noise there is no limit."""
    return numerator / denominator if denominator else inf


def _augmented(hp: Hyperparameters, lam: float) -> AugmentedHyperparameters:
    return AugmentedHyperparameters(**asdict(as_fedac(hp)), lam=lam)
