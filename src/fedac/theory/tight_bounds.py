"""Bounds for any step size: progress and discrepancy together, summed step by step.

The planner minimizes these over eta, and over lam for general convex objectives. Each is the
``_perturbed`` lemma of its algorithm with the discrepancy of `fedac.theory.stability`, but for the
last step of the lemma's proof: the paper's one-step propositions are summed exactly, each step
with the discrepancy that it can have so long after a synchronization, where the lemma has exp, a
sum over infinitely many steps and the largest discrepancy. So each is at most the ``_general_eta``
lemma, whose constants are rounded up. FedAvg under asm1 and minibatch SGD have no constants in the
paper; docs/theory.md proves theirs, for an average of the iterates.

No letters are checked here: `Theorem.at` and `Theorem.best` do that, once for many step sizes.

>>> letters = dict(eta=0.01, L=1.0, mu=0.1, sigma=1.0, M=4, T=64, Psi0=1.0)
>>> fedac_i(K=1, **letters) == mb_ac_sgd(K=1, **letters)
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import unwrap
from math import exp, expm1, inf, log1p, sqrt

from fedac.algorithms.hyperparameters import stable_gamma
from fedac.theory import lemmas, stability
from fedac.theory.bounds import Bound
from fedac.theory.constants import require_small

AnyStep = Callable[..., Bound]

_fedac_i_perturbed: AnyStep = unwrap(lemmas.fedac_i_perturbed)
_fedac_ii_perturbed: AnyStep = unwrap(lemmas.fedac_ii_perturbed)
_fedavg_a2_perturbed: AnyStep = unwrap(lemmas.fedavg_a2_perturbed)


def fedac_i(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, T: float, Psi0: float
) -> Bound:
    """Bound E[Psi_T] of FedAc-I (lemma fedaci:conv:main, propositions fedaci:conv:1 and :2)."""
    if K == 1:  # one worker with the averaged gradient, whose noise is sigma^2/M
        sigma, M = sigma / sqrt(M), 1
    gamma = stable_gamma(eta, mu, K)
    drift = stability.fedac_i(eta=eta, gamma=gamma, mu=mu, sigma=sigma, M=M)
    apart = drift.mean(shrink=gamma * mu, K=K, T=T)
    lemma = _fedac_i_perturbed(
        eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M, T=T, Psi0=Psi0, discrepancy=apart
    )
    return _summed(lemma, gamma * mu, T, Psi0)


def fedac_ii_a1(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, T: float, Phi0: float
) -> Bound:
    """Bound E[Phi_T] of FedAc-II (lemma fedacii:conv:main, fedacii:conv:1 and :2)."""
    gamma = stable_gamma(eta, mu, K)
    drift = stability.fedac_ii_a1(eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M)
    apart = drift.mean(shrink=gamma * mu / 3, K=K, T=T)
    return _fedac_ii(apart, eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M, T=T, Phi0=Phi0)


def fedac_ii_a2(
    *,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    sigma4: float,
    Q: float,
    M: float,
    K: float,
    T: float,
    Phi0: float,
) -> Bound:
    """Bound E[Phi_T] of FedAc-II under asm2 (as above, with another discrepancy)."""
    gamma = stable_gamma(eta, mu, K)
    drift = stability.fedac_ii_a2(eta=eta, gamma=gamma, mu=mu, sigma4=sigma4, Q=Q, M=M)
    apart = drift.mean(shrink=gamma * mu / 3, K=K, T=T)
    return _fedac_ii(apart, eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M, T=T, Phi0=Phi0)


def _fedac_ii(
    apart: float, *, gamma: float, mu: float, T: float, Phi0: float, **letters: float
) -> Bound:
    """Bound E[Phi_T] of FedAc-II, given how far workers are apart on average."""
    lemma = _fedac_ii_perturbed(gamma=gamma, mu=mu, T=T, Phi0=Phi0, discrepancy=apart, **letters)
    return _summed(lemma, gamma * mu / 3, T, Phi0)


def fedavg_a2(
    *,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    sigma4: float,
    Q: float,
    M: float,
    K: float,
    T: float,
    D0: float,
) -> Bound:
    """Bound FedAvg's weighted average under asm2 (fedavg:a2:conv:main, :onestep).

    The lemma has 1/eta for the inverse of the sum of weights.
    """
    apart = stability.fedavg_a2(eta=eta, sigma4=sigma4, M=M).mean(shrink=eta * mu / 2, K=K, T=T)
    lemma = _fedavg_a2_perturbed(
        eta=eta, L=L, mu=mu, sigma=sigma, Q=Q, M=M, T=T, D0=D0, discrepancy=apart
    )
    return replace(lemma, optimization=_start_of_average(eta, mu / 2, T) * D0**2)


def mb_ac_sgd(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, T: float, Psi0: float
) -> Bound:
    """Bound accelerated minibatch SGD: FedAc on one worker, T/K steps with noise sigma^2/(M K)."""
    noise = sigma / sqrt(M * K)
    return fedac_i(eta=eta, L=L, mu=mu, sigma=noise, M=1, K=1, T=T / K, Psi0=Psi0)


def ac_sgd(*, M: float, K: float, **letters: float) -> Bound:
    """Bound accelerated SGD on one worker; M and K do not matter."""
    return fedac_i(M=1, K=1, **letters)


def fedavg_a1(
    *, eta: float, L: float, sigma: float, M: float, K: float, T: float, D0: float, mu: float = 0.0
) -> Bound:
    """Bound the average of FedAvg's iterates with weights (1 - eta mu)^-t (docs/theory.md)."""
    require_small(eta, 1 / (4 * L))
    apart = stability.fedavg_a1(eta=eta, sigma=sigma, M=M).mean(shrink=eta * mu, K=K, T=T)
    return Bound(
        optimization=_start_of_average(eta, mu, T) * D0**2,
        variance=eta * sigma**2 / M,
        discrepancy=1.5 * L * apart,
    )


def mb_sgd(
    *, eta: float, L: float, sigma: float, M: float, K: float, T: float, D0: float, mu: float = 0.0
) -> Bound:
    """Bound the same average of minibatch SGD's T/K iterates (docs/theory.md)."""
    require_small(eta, 1 / (2 * L))
    return Bound(
        optimization=_start_of_average(eta, mu, T / K) * D0**2,
        variance=eta * sigma**2 / (M * K),
    )


def augmented(bound: AnyStep, *, start: str) -> AnyStep:
    """Return a bound of E[F] - F* for an algorithm that runs on F + lam/2 ||w - w_0||^2 (eq:aug).

    That objective is lam-strongly convex and (L + lam)-smooth. `start` is the letter of the start:
    both potentials are at most F(w_0) - F*, which is at most L D0^2/2 (proofs of propositions
    fedaci:gcvx:0 and fedacii:gcvx:0), and the optimum is at most D0 away. `gap` is F(w_0) - F* or
    a bound on it, if known. What is proven for it is proven for F with lam D0^2/2 on top, so
    this is lemmas fedaci:gcvx:1, fedacii:a1:gcvx:1 and fedacii:a2:gcvx:1, for any lam and eta.
    """

    def on_augmented(
        *, eta: float, lam: float, L: float, D0: float, gap: float = inf, **letters: float
    ) -> Bound:
        letters[start] = D0 if start == "D0" else min(L * D0**2 / 2, gap)
        found = bound(eta=eta, L=L + lam, mu=lam, **letters)
        return Bound(
            optimization=found.optimization + lam * D0**2 / 2,
            variance=found.variance,
            accelerated_variance=found.accelerated_variance,
            discrepancy=found.discrepancy,
        )

    return on_augmented


def _left_and_gone(shrink: float, T: float) -> tuple[float, float]:
    """Return (1 - shrink)^T, what T steps leave of the start, and 1 minus that."""
    if shrink >= 1:
        return 0.0, 1.0
    exponent = T * log1p(-shrink)
    return exp(exponent), -expm1(exponent)


def _start_of_average(eta: float, mu: float, T: float) -> float:
    """Return q^T/(eta (1 + q + ... + q^(T-1))) for q = 1 - eta mu."""
    if mu == 0:
        return 1 / (eta * T)
    left, gone = _left_and_gone(eta * mu, T)
    return mu * left / gone


def _summed(lemma: Bound, shrink: float, T: float, start: float) -> Bound:
    """Sum ``after <= (1 - shrink) before + noise`` over T steps; the lemma has noise/shrink."""
    left, gone = _left_and_gone(shrink, T)
    return Bound(
        optimization=left * start,
        variance=gone * lemma.variance,
        accelerated_variance=gone * lemma.accelerated_variance,
        discrepancy=gone * lemma.discrepancy,
    )
