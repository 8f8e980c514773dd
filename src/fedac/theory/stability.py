"""How far workers drift apart, added up step by step from the paper's stability propositions.

A proposition bounds one step: the difference of two workers grows by a factor at most, and the
noise of one step comes on top. So the bound j steps after a synchronization is zero for j = 0, and
also with one worker. Over a run, every step counts with its own j and with the weight that the
convergence propositions give it (`Drift.mean`). The lemmas ``*_discrepancy`` in
`fedac.theory.lemmas` are for the last step of a round, and bound its sum by K times a power of the
growth.

The propositions are about one pair of workers. The mean of all squared distances to the average is
(M - 1)/(2M) times the mean over all pairs of their squared distances, hence that factor.

>>> drift = fedac_i(eta=0.5, gamma=0.5, mu=1.0, sigma=2.0, M=4)
>>> drift.after(0), round(drift.after(1), 3)  # lemma fedaci:stab:main has 14 for K = 2
(0.0, 2.372)
>>> round(drift.mean(shrink=0.5, K=2, T=4), 3)  # 2 of 4 steps, with weights 1/4 and 1 of 15/8
1.581
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log1p

# Below this, sums of powers are replaced by an upper bound, which is closer than cancellation is.
TINY = 1e-4


@dataclass(frozen=True, slots=True)
class Drift:
    """A bound j steps after a synchronization: size (1 + g + ... + g^(j-1))^power.

    Attributes
    ----------
    size : float
        The bound after one step.
    growth : float
        log g.
    power : 1 or 2
        2 where a fourth moment is bounded.
    """

    size: float
    growth: float = 0.0
    power: int = 1

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


def fedac_i(*, eta: float, gamma: float, mu: float, sigma: float, M: float) -> Drift:
    """Bound FedAc-I's discrepancy (propositions fedaci:stab:bound, fedaci:stab:2, fedaci:stab:3).

    The first two give E X^2 <= 2 gamma^2 sigma^2 times the sum of powers, the third
    sqrt(10) eta/gamma X^2.
    """
    size = 2 * 10**0.5 * eta * gamma * sigma**2 * _pairs(M)
    return Drift(size, _growth(2 * gamma**2 * mu / eta, eta, gamma))


def fedac_ii_a1(*, eta: float, gamma: float, L: float, mu: float, sigma: float, M: float) -> Drift:
    """Bound FedAc-II's discrepancy (fedacii:stab:bound, fedacii:a1:stab:2, fedacii:a1:stab:3)."""
    size = 34 / 9 * (eta * L * sigma) ** 2 * _pairs(M)
    return Drift(size, _growth(gamma**2 * mu / eta, eta, gamma))


def fedac_ii_a2(*, eta: float, gamma: float, mu: float, sigma4: float, Q: float, M: float) -> Drift:
    """Bound FedAc-II's discrepancy under asm2 (fedacii:stab:bound, :stab:2 and :stab:3).

    It is at most Q^2/4 times the square of a mean squared distance, so the factor of pairs is
    squared too.
    """
    size = 289 / 324 * 49 * eta**4 * Q**2 * sigma4**4 * _pairs(M) ** 2
    return Drift(size, _growth(gamma**2 * mu / eta, eta, gamma), power=2)


def fedavg_a1(*, eta: float, sigma: float, M: float) -> Drift:
    """Bound the mean of FedAvg's ||w - w_m||^2 (docs/theory.md, step 2 of its proof)."""
    return Drift(2 * (eta * sigma) ** 2 * _pairs(M))


def fedavg_a2(*, eta: float, sigma4: float, M: float) -> Drift:
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
