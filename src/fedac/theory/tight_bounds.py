# SPDX-License-Identifier: Apache-2.0
"""Tight bounds for any step size: the paper's one-step propositions, summed exactly.

The planner minimizes these over eta, and over lam for general convex objectives. Each combines the
``_perturbed`` lemma of its algorithm with the drift of the workers. The lemmas simplify the last
step of their proofs: they bound sums of powers by exp and infinite sums, and use the largest
discrepancy at every step. Here the sums are exact, and every step counts with the discrepancy
possible at its distance from the last synchronization. So no bound exceeds the one of its
``_general_eta`` lemma. FedAvg under asm1 and minibatch SGD have no constants in the paper;
docs/theory.md proves theirs, for an average of the iterates.

Nothing is checked here: `Theorem.at` and `Theorem.best` do that, once for many step sizes.

>>> letters = dict(eta=0.01, L=1.0, mu=0.1, sigma=1.0, M=4, T=64, Psi0=1.0)
>>> fedac_i(K=1, **letters) == mb_ac_sgd(K=1, **letters)
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import unwrap
from math import exp, expm1, inf, log1p, sqrt

from fedac.algorithms.hyperparameters import stable_gamma
from fedac.theory import lemmas
from fedac.theory.bounds import Bound, require_small

BoundFormula = Callable[..., Bound]

_fedac_i_perturbed: BoundFormula = unwrap(lemmas.fedac_i_perturbed)
_fedac_ii_perturbed: BoundFormula = unwrap(lemmas.fedac_ii_perturbed)
_fedavg_a2_perturbed: BoundFormula = unwrap(lemmas.fedavg_a2_perturbed)

# Below this, sums of powers are replaced by an upper bound, which is more accurate than a
# difference of nearly equal numbers.
TINY = 1e-4


def fedac_i(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, T: float, Psi0: float
) -> Bound:
    """Bound E[Psi_T] of FedAc-I (lemma fedaci:conv:main, propositions fedaci:conv:1 and :2)."""
    if K == 1:  # one worker with the averaged gradient, whose noise is sigma^2/M
        sigma, M = sigma / sqrt(M), 1
    gamma = stable_gamma(eta, mu, K)
    drift = fedac_i_drift(eta=eta, gamma=gamma, mu=mu, sigma=sigma, M=M)
    discrepancy = drift.mean(shrink=gamma * mu, K=K, T=T)
    lemma = _fedac_i_perturbed(
        eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M, T=T, Psi0=Psi0, discrepancy=discrepancy
    )
    return _summed(lemma, gamma * mu, T, Psi0)


def mb_ac_sgd(*, sigma: float, M: float, K: float, T: float, **letters: float) -> Bound:
    """Bound accelerated minibatch SGD: FedAc on one worker, T/K steps with noise sigma^2/(M K)."""
    return fedac_i(sigma=sigma / sqrt(M * K), M=1, K=1, T=T / K, **letters)


def fedac_ii_a1(
    *, eta: float, L: float, mu: float, sigma: float, M: float, K: float, **letters: float
) -> Bound:
    """Bound E[Phi_T] of FedAc-II (lemma fedacii:conv:main, fedacii:conv:1 and :2)."""
    gamma = stable_gamma(eta, mu, K)
    drift = fedac_ii_a1_drift(eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M)
    return _fedac_ii(drift, eta=eta, gamma=gamma, L=L, mu=mu, sigma=sigma, M=M, K=K, **letters)


def fedac_ii_a2(
    *, eta: float, mu: float, sigma4: float, Q: float, M: float, K: float, **letters: float
) -> Bound:
    """Bound E[Phi_T] of FedAc-II under asm2 (as above, with a different discrepancy)."""
    gamma = stable_gamma(eta, mu, K)
    drift = fedac_ii_a2_drift(eta=eta, gamma=gamma, mu=mu, sigma4=sigma4, Q=Q, M=M)
    return _fedac_ii(drift, eta=eta, gamma=gamma, mu=mu, M=M, K=K, **letters)


def _fedac_ii(
    drift: Drift, *, gamma: float, mu: float, K: float, T: float, Phi0: float, **letters: float
) -> Bound:
    shrink = gamma * mu / 3
    apart = drift.mean(shrink=shrink, K=K, T=T)
    lemma = _fedac_ii_perturbed(gamma=gamma, mu=mu, T=T, Phi0=Phi0, discrepancy=apart, **letters)
    return _summed(lemma, shrink, T, Phi0)


def fedavg_a1(
    *, eta: float, L: float, sigma: float, M: float, K: float, T: float, D0: float, mu: float = 0.0
) -> Bound:
    """Bound the average of FedAvg's iterates with weights (1 - eta mu)^-t (docs/theory.md)."""
    require_small(eta, 1 / (4 * L))
    drift = fedavg_a1_drift(eta=eta, sigma=sigma, M=M)
    return Bound(
        optimization=_start_of_average(eta, mu, T) * D0**2,
        variance=eta * sigma**2 / M,
        discrepancy=1.5 * L * drift.mean(shrink=eta * mu, K=K, T=T),
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


def fedavg_a2(
    *, eta: float, mu: float, sigma4: float, M: float, K: float, T: float, D0: float, **of: float
) -> Bound:
    """Bound FedAvg's weighted average under asm2 (fedavg:a2:conv:main, :onestep).

    The lemma has 1/eta for the inverse of the sum of weights.
    """
    drift = fedavg_a2_drift(eta=eta, sigma4=sigma4, M=M)
    apart = drift.mean(shrink=eta * mu / 2, K=K, T=T)
    lemma = _fedavg_a2_perturbed(eta=eta, mu=mu, M=M, T=T, D0=D0, discrepancy=apart, **of)
    return replace(lemma, optimization=_start_of_average(eta, mu / 2, T) * D0**2)


def augmented(bound: BoundFormula, *, start: str) -> BoundFormula:
    """Return a bound of E[F] - F* for an algorithm that runs on F + lam/2 ||w - w_0||^2 (eq:aug).

    That objective is lam-strongly convex and (L + lam)-smooth. `start` is the letter of the start:
    both potentials are at most F(w_0) - F*, which is at most L D0^2/2 (proofs of propositions
    fedaci:gcvx:0 and fedacii:gcvx:0), and the optimum is at most D0 away. `gap` is F(w_0) - F* or
    a bound on it, if known. A bound for the augmented objective plus lam D0^2/2 is one for F: these
    are lemmas fedaci:gcvx:1, fedacii:a1:gcvx:1 and fedacii:a2:gcvx:1, for any lam and eta.
    """

    def on_augmented(
        *, eta: float, lam: float, L: float, D0: float, gap: float = inf, **letters: float
    ) -> Bound:
        letters[start] = D0 if start == "D0" else min(L * D0**2 / 2, gap)
        found = bound(eta=eta, L=L + lam, mu=lam, **letters)
        return Bound(  # not dataclasses.replace, which is slow: the planner calls this often
            optimization=found.optimization + lam * D0**2 / 2,
            variance=found.variance,
            accelerated_variance=found.accelerated_variance,
            discrepancy=found.discrepancy,
        )

    return on_augmented


def _left_and_gone(shrink: float, T: float) -> tuple[float, float]:
    """Return (1 - shrink)^T, the share of the start that is left after T steps, and 1 minus it."""
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


@dataclass(frozen=True, slots=True)
class Drift:
    """A bound on the workers' discrepancy j steps after a synchronization.

    It is size (1 + g + ... + g^(j-1))^power. A stability proposition of the paper bounds one step:
    the difference of two workers grows at most by a factor, and the noise of one step is added.

    The propositions are about one pair of workers. The mean squared distance to the average is
    (M - 1)/(2M) times the mean over all pairs of their squared distances, hence that factor in
    `size`, which is 0 for one worker.
    """

    size: float
    growth: float = 0.0  # log g
    power: int = 1  # 2 where a fourth moment is bounded

    def after(self, j: float) -> float:
        """Return the bound j steps after a synchronization."""
        if self.size == 0 or j == 0:
            return 0.0
        if self.power * self.growth * j > 700:  # overflow: the bound says nothing
            return inf
        return self.size * _powers(self.growth, j) ** self.power

    def mean(self, *, shrink: float, K: float, T: float) -> float:
        """Return the mean over T steps, where step t has the weight (1 - shrink)^(T-1-t)."""
        if self.size == 0 or K == 1:
            return 0.0
        if self.power * self.growth * K > 700:
            return inf
        decay = log1p(-min(shrink, 1 - 2.0**-53))
        rounds, rest = divmod(T, K)
        total = exp(decay * rest) * self._round(K, decay) * _powers(decay * K, rounds)
        return self.size * (total + self._round(rest, decay)) / _powers(decay, T)

    def _round(self, n: float, decay: float) -> float:
        """Return the sum of e^(decay (n-1-j)) (1 + g + ... + g^(j-1))^power for j < n."""
        if self.growth * n < TINY:
            return exp(self.power * self.growth * n) * _polynomials(n, decay, self.power)
        g, ones = self.growth, _powers(decay, n)
        once = _products(g, decay, n) - ones
        if self.power == 1:
            return once / expm1(g)
        return (_products(2 * g, decay, n) - ones - 2 * once) / expm1(g) ** 2


def fedac_i_drift(*, eta: float, gamma: float, mu: float, sigma: float, M: float) -> Drift:
    """Bound FedAc-I's discrepancy (propositions fedaci:stab:bound, fedaci:stab:2, fedaci:stab:3).

    The first two give E X^2 <= 2 gamma^2 sigma^2 times the sum of powers, the third
    sqrt(10) eta/gamma X^2.
    """
    size = 2 * 10**0.5 * eta * gamma * sigma**2 * _pairs(M)
    return Drift(size, _growth(2 * gamma**2 * mu / eta, eta, gamma))


def fedac_ii_a1_drift(
    *, eta: float, gamma: float, L: float, mu: float, sigma: float, M: float
) -> Drift:
    """Bound FedAc-II's discrepancy (fedacii:stab:bound, fedacii:a1:stab:2, fedacii:a1:stab:3)."""
    size = 34 / 9 * (eta * L * sigma) ** 2 * _pairs(M)
    return Drift(size, _growth(gamma**2 * mu / eta, eta, gamma))


def fedac_ii_a2_drift(
    *, eta: float, gamma: float, mu: float, sigma4: float, Q: float, M: float
) -> Drift:
    """Bound FedAc-II's discrepancy under asm2 (fedacii:stab:bound, :stab:2 and :stab:3).

    It is at most Q^2/4 times the square of a mean squared distance, so the factor of pairs is
    squared too.
    """
    size = 289 / 324 * 49 * eta**4 * Q**2 * sigma4**4 * _pairs(M) ** 2
    return Drift(size, _growth(gamma**2 * mu / eta, eta, gamma), power=2)


def fedavg_a1_drift(*, eta: float, sigma: float, M: float) -> Drift:
    """Bound the mean of FedAvg's ||w - w_m||^2 (docs/theory.md, step 2 of its proof)."""
    return Drift(2 * (eta * sigma) ** 2 * _pairs(M))


def fedavg_a2_drift(*, eta: float, sigma4: float, M: float) -> Drift:
    """Bound the square of the mean of FedAvg's ||w - w_m||^2 (proposition fedavg:a2:stab:1)."""
    return Drift(192 * eta**4 * sigma4**4 * _pairs(M) ** 2, power=2)


def _pairs(M: float) -> float:
    return (M - 1) / (2 * M)


def _growth(rate: float, eta: float, gamma: float) -> float:
    """Return log (1 + rate)^2; without acceleration differences do not grow."""
    return 2 * log1p(rate) if gamma > eta else 0.0


def _powers(log_of: float, n: float) -> float:
    """Return 1 + z + ... + z^(n-1) for z = e^log_of."""
    return expm1(n * log_of) / expm1(log_of) if log_of else n


def _products(log_of: float, decay: float, n: float) -> float:
    """Return the sum of z^j q^(n-1-j) for j < n, z = e^log_of > 1 and q = e^decay <= 1."""
    return (expm1(n * log_of) - expm1(n * decay)) / (expm1(log_of) - expm1(decay))


def _polynomials(n: float, decay: float, power: int) -> float:
    """Return the sum of e^(decay (n-1-j)) j^power for j < n."""
    if -decay * n < TINY:
        return n * (n - 1) / 2 if power == 1 else n * (n - 1) * (2 * n - 1) / 6
    s, gone = -1 / expm1(decay), -expm1(n * decay)
    if power == 1:
        return s * (n - s * gone)
    return s * (n * (n - 2 * s) + s * (2 * s - 1) * gone)
