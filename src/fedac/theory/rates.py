"""The paper's rates: every theorem's terms without constants and logarithms (tab:conv:rate).

Step sizes and bounds are both written in terms of these numbers. Arguments are the paper's
letters: L and mu of the objective, sigma and Q of assumptions asm1 and asm2, M workers, K local
steps per round, T steps in all, D0 = ||w_0 - w*||. For R = T/K rounds these are the entries of
the paper's second table.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cbrt, sqrt

from fedac.theory.letters import in_floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The sizes of a bound's terms.

    Attributes
    ----------
    variance : float
        What M workers cannot avoid: the noise of M T gradients.
    discrepancy : float
        The price of rare synchronization: workers drift apart between two rounds.
    accelerated_variance : float
        What acceleration makes of the averaged noise (FedAc-II under assumption asm2).
    optimization : float
        The noiseless part for general convex objectives; zero for strongly convex ones, where
        it decays exponentially and is no power of anything.

    Examples
    --------
    >>> Rate(variance=0.5, discrepancy=2.0).noise
    2.0
    """

    variance: float
    discrepancy: float
    accelerated_variance: float = 0.0
    optimization: float = 0.0

    @property
    def noise(self) -> float:
        """The largest of the terms that noise causes."""
        return max(self.variance, self.discrepancy, self.accelerated_variance)


@in_floats
def fedac_i_a1(*, L: float, mu: float, sigma: float, M: float, K: float, T: float) -> Rate:
    """Return the rate of theorem fedaci:full.

    Examples
    --------
    >>> fedac_i_a1(L=1, mu=1, sigma=2, M=2, K=5, T=10)
    Rate(variance=0.2, discrepancy=0.1, accelerated_variance=0.0, optimization=0.0)
    """
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K**2 * sigma**2 / (mu**2 * T**3),
    )


@in_floats
def fedac_ii_a1(*, L: float, mu: float, sigma: float, M: float, K: float, T: float) -> Rate:
    """Return the rate of theorem fedacii:a1:full.

    Examples
    --------
    >>> fedac_ii_a1(L=1, mu=1, sigma=2, M=2, K=5, T=10).discrepancy
    0.05
    """
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L**2 * K**3 * sigma**2 / (mu**3 * T**4),
    )


@in_floats
def fedac_ii_a2(
    *, L: float, mu: float, sigma: float, Q: float, M: float, K: float, T: float
) -> Rate:
    """Return the rate of theorem fedacii:a2:full.

    Examples
    --------
    >>> fedac_ii_a2(L=1, mu=1, sigma=2, Q=0, M=2, K=5, T=10)
    Rate(variance=0.2, discrepancy=0.0, accelerated_variance=0.05, optimization=0.0)
    """
    return Rate(
        variance=sigma**2 / (mu * M * T),
        accelerated_variance=L * K**2 * sigma**2 / (mu**2 * M * T**3),
        discrepancy=Q**2 * K**6 * sigma**4 / (mu**5 * T**8),
    )


@in_floats
def fedavg_a1(*, L: float, mu: float, sigma: float, M: float, K: float, T: float) -> Rate:
    """Return the rate of proposition fedavg:a1.

    Examples
    --------
    >>> fedavg_a1(L=1, mu=1, sigma=2, M=2, K=5, T=10).discrepancy
    0.2
    """
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=L * K * sigma**2 / (mu**2 * T**2),
    )


@in_floats
def fedavg_a2(*, L: float, mu: float, sigma: float, Q: float, M: float, K: float, T: float) -> Rate:
    """Return the rate of theorem fedavg:a2:full.

    Examples
    --------
    >>> fedavg_a2(L=1, mu=1, sigma=1, Q=2, M=2, K=5, T=10).discrepancy
    0.01
    """
    return Rate(
        variance=sigma**2 / (mu * M * T),
        discrepancy=Q**2 * K**2 * sigma**4 / (mu**5 * T**4),
    )


@in_floats
def mb_sgd(*, L: float, mu: float, sigma: float, M: float, K: float, T: float) -> Rate:
    """Return the rate of minibatch SGD: its workers never drift apart.

    Examples
    --------
    >>> mb_sgd(L=1, mu=1, sigma=2, M=2, K=5, T=10).discrepancy
    0.0
    """
    return Rate(variance=sigma**2 / (mu * M * T), discrepancy=0.0)


mb_ac_sgd = mb_sgd


@in_floats
def fedac_i_a1_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Rate:
    """Return the rate of theorem fedaci:a1:gcvx.

    Examples
    --------
    >>> fedac_i_a1_convex(L=1, sigma=1, M=4, K=1, T=100, D0=1).variance
    0.05
    """
    return Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(L * K**2 * sigma**2 * D0**4) / T,
    )


@in_floats
def fedac_ii_a1_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Rate:
    """Return the rate of theorem fedacii:a1:gcvx.

    Examples
    --------
    >>> fedac_ii_a1_convex(L=1, sigma=1, M=4, K=16, T=100, D0=1).discrepancy
    0.08
    """
    return Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=sqrt(L * sigma * D0**3) * K**0.75 / T,
    )


@in_floats
def fedac_ii_a2_convex(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Rate:
    """Return the rate of theorem fedacii:a2:gcvx.

    Examples
    --------
    >>> fedac_ii_a2_convex(L=1, sigma=1, Q=1, M=8, K=8, T=1000, D0=1).discrepancy
    0.0008
    """
    return Rate(
        optimization=L * K * D0**2 / T**2,
        variance=sigma * D0 / sqrt(M * T),
        accelerated_variance=cbrt(L * K**2 * sigma**2 * D0**4 / M) / T,
        discrepancy=cbrt(Q * sigma**2 * D0**5 / T) * K / T,
    )


@in_floats
def fedavg_a2_convex(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Rate:
    """Return the rate of theorem fedavg:a2:gcvx.

    Examples
    --------
    >>> fedavg_a2_convex(L=1, sigma=1, Q=1, M=8, K=8, T=1000, D0=1).discrepancy
    0.02
    """
    return Rate(
        optimization=L * D0**2 / T,
        variance=sigma * D0 / sqrt(M * T),
        discrepancy=cbrt(Q * K * sigma**2 * D0**5 / T**2),
    )


@in_floats
def mb_sgd_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Rate:
    """Return the rate of minibatch SGD for general convex objectives.

    Examples
    --------
    >>> mb_sgd_convex(L=1, sigma=1, M=4, K=4, T=100, D0=1).optimization
    0.04
    """
    return Rate(optimization=L * K * D0**2 / T, variance=sigma * D0 / sqrt(M * T), discrepancy=0.0)


@in_floats
def mb_ac_sgd_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Rate:
    """Return the rate of accelerated minibatch SGD for general convex objectives.

    Examples
    --------
    >>> mb_ac_sgd_convex(L=1, sigma=1, M=4, K=4, T=100, D0=1).optimization
    0.0016
    """
    return Rate(
        optimization=L * (K * D0) ** 2 / T**2, variance=sigma * D0 / sqrt(M * T), discrepancy=0.0
    )
