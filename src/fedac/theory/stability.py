"""How far workers drift apart, added up step by step from the paper's stability propositions.

A proposition bounds one step: the difference of two workers grows by a factor at most, and the
noise of one step comes on top. A query is at most K - 1 steps away from the last synchronization,
so with K = 1, or with one worker, there is no discrepancy. The lemmas ``*_discrepancy`` in
`fedac.theory.lemmas` bound the same sums by K times a power of the growth. That is simpler and, for
FedAc-I, from 4.5 (large K) to 35 (K = 2) times as large.

>>> fedac_i(eta=0.5, gamma=0.5, mu=1.0, sigma=2.0, M=4, K=1)
0.0
>>> round(fedac_i(eta=0.5, gamma=0.5, mu=1.0, sigma=2.0, M=4, K=2), 3)  # the lemma has 14
6.325
"""

from __future__ import annotations

from math import expm1, inf, log1p, sqrt


def fedac_i(*, eta: float, gamma: float, mu: float, sigma: float, M: float, K: float) -> float:
    """Bound FedAc-I's discrepancy (propositions fedaci:stab:bound, fedaci:stab:2, fedaci:stab:3).

    The first two give E X^2 <= 2 gamma^2 sigma^2 times the sum of powers, the third
    sqrt(10) eta/gamma X^2.
    """
    size = 2 * sqrt(10) * eta * gamma * sigma**2
    return _times(size, _powers(2 * gamma**2 * mu / eta if gamma > eta else 0.0, K), M)


def fedac_ii_a1(
    *, eta: float, gamma: float, L: float, mu: float, sigma: float, M: float, K: float
) -> float:
    """Bound FedAc-II's discrepancy (fedacii:stab:bound, fedacii:a1:stab:2, fedacii:a1:stab:3)."""
    size = 34 / 9 * (eta * L * sigma) ** 2
    return _times(size, _powers(gamma**2 * mu / eta if gamma > eta else 0.0, K), M)


def fedac_ii_a2(
    *, eta: float, gamma: float, mu: float, sigma4: float, Q: float, M: float, K: float
) -> float:
    """Bound FedAc-II's discrepancy under asm2 (fedacii:stab:bound, :stab:2 and :stab:3)."""
    size = 289 / 324 * 49 * eta**4 * Q**2 * sigma4**4
    return _times(size, _powers(gamma**2 * mu / eta if gamma > eta else 0.0, K) ** 2, M)


def fedavg_a2(*, eta: float, sigma4: float, M: float, K: float) -> float:
    """Bound the mean of FedAvg's ||w - w_m||^4 (proposition fedavg:a2:stab:1)."""
    return _times(192 * eta**4 * sigma4**4, (K - 1) ** 2, M)


def _powers(rate: float, K: float) -> float:
    """Return the sum of (1 + rate)^(2j) for j = 0..K-2."""
    if rate == 0:
        return K - 1
    step = 2 * log1p(rate)
    # Full acceleration over long rounds overflows: the bound says nothing.
    return inf if (K - 1) * step > 350 else expm1((K - 1) * step) / expm1(step)


def _times(size: float, steps: float, M: float) -> float:
    """Return the product; nothing drifts without noise, or with one worker."""
    return 0.0 if size == 0 or M == 1 else size * steps
