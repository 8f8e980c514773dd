"""The bound of every theorem, one function each, named like its step size.

Arguments are the paper's letters (see `rates.py`). A bound holds in the worst case over all
problems with these constants; real runs are usually far below it.

>>> bound = fedac_i_a1(L=1.0, mu=0.01, sigma=1.0, M=64, K=16, T=2**20, Psi0=1.0)
>>> f"{bound.variance:.2g}", f"{bound.discrepancy:.2g}", bound.dominant
('0.00054', '0.00046', 'variance')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, sqrt

from fedac.theory import rates
from fedac.theory.letters import checked, log_ratio, require_steps

TERMS = ("optimization", "variance", "accelerated_variance", "discrepancy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An upper bound, term by term.

    Attributes
    ----------
    optimization : float
        What is left of the start: the only term without noise.
    variance : float
        The noise of all M T gradients.
    discrepancy : float
        The overhead of synchronizing every K steps instead of every step.
    accelerated_variance : float
        What acceleration makes of the averaged noise (FedAc-II under assumption asm2).
    logs : mapping
        By term, the logarithmic factor that is in it.

    Examples
    --------
    >>> bound = Bound(optimization=0.5, variance=0.25, discrepancy=0.0)
    >>> bound.total, bound.dominant
    (0.75, 'optimization')
    """

    optimization: float
    variance: float
    discrepancy: float
    accelerated_variance: float = 0.0
    logs: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def terms(self) -> dict[str, float]:
        """The terms by name."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def total(self) -> float:
        """The bound itself."""
        return sum(self.terms.values())

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda name: self.terms[name])


@checked
def fedac_i_a1(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, Psi0: float
) -> Bound:
    """Bound E[Psi_T] as theorem fedaci:full does.

    Examples
    --------
    >>> fedac_i_a1(L=1.0, mu=1.0, sigma=0.0, M=1, K=1, T=2, Psi0=1.0).total  # e^-2
    0.1353352832366127
    """
    rate = rates.fedac_i_a1(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    return _noisy(
        _accelerated_decay(L, mu, K, T) * Psi0, Psi0, rate, variance=(2, 2), discrepancy=(400, 4)
    )


@checked
def fedac_ii_a1(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, Phi0: float
) -> Bound:
    """Bound E[Phi_T] as theorem fedacii:a1:full does.

    Examples
    --------
    >>> fedac_ii_a1(L=1.0, mu=1.0, sigma=0.0, M=1, K=1, T=3, Phi0=1.0).total  # 1/e
    0.36787944117144233
    """
    rate = rates.fedac_ii_a1(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    return _noisy(
        _accelerated_decay(L, mu, K, T / 3) * Phi0,
        Phi0,
        rate,
        variance=(4, 1),
        discrepancy=(8101, 4),
    )


@checked
def fedac_ii_a2(
    *, L: float, mu: float, sigma: float, Q: float, M: float, K: float, T: float, Phi0: float
) -> Bound:
    """Bound E[Phi_T] as theorem fedacii:a2:full does.

    Examples
    --------
    >>> fedac_ii_a2(L=1.0, mu=1.0, sigma=1.0, Q=0.0, M=1, K=1, T=99, Phi0=1.0).discrepancy
    0.0
    """
    rate = rates.fedac_ii_a2(L=L, mu=mu, sigma=sigma, Q=Q, M=M, K=K, T=T)
    return _noisy(
        _accelerated_decay(L, mu, K, T / 3) * Phi0,
        Phi0,
        rate,
        variance=(4, 1),
        accelerated_variance=(55, 3),
        discrepancy=(exp(18), 8),
    )


@checked
def fedavg_a1(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, D0: float
) -> Bound:
    """Bound E[F] - F* of the weighted average as proposition fedavg:a1 does.

    The paper states it up to constants and logarithms. Here every constant is 1, and the
    logarithms are those that its step size brings in.

    Examples
    --------
    >>> fedavg_a1(L=1.0, mu=1.0, sigma=0.0, M=1, K=1, T=1, D0=1.0).total  # 1/e
    0.36787944117144233
    """
    rate = rates.fedavg_a1(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    start = L * D0**2
    return _noisy(exp(-mu * T / L) * start, start, rate, variance=(1, 1), discrepancy=(1, 2))


@checked
def fedavg_a2(
    *, L: float, mu: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Bound:
    """Bound E[F] - F* of the weighted average plus mu/2 E||w_T - w*||^2 (theorem fedavg:a2:full).

    Examples
    --------
    >>> fedavg_a2(L=1.0, mu=1.0, sigma=0.0, Q=1.0, M=1, K=1, T=8, D0=0.5).total  # 1/e
    0.36787944117144233
    """
    rate = rates.fedavg_a2(L=L, mu=mu, sigma=sigma, Q=Q, M=M, K=K, T=T)
    return _noisy(
        exp(-mu * T / (8 * L)) * 4 * L * D0**2,
        mu * T * D0**2,
        rate,
        variance=(3, 1),
        discrepancy=(3073, 4),
    )


@checked
def mb_sgd(*, L: float, mu: float, sigma: float, M: float, K: float, T: float, D0: float) -> Bound:
    """Bound E[F] - F* of minibatch SGD, for comparison; all constants are 1.

    Examples
    --------
    >>> mb_sgd(L=1.0, mu=1.0, sigma=0.0, M=1, K=8, T=8, D0=1.0).total  # 1/e
    0.36787944117144233
    """
    rate = rates.mb_sgd(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    start = L * D0**2
    return _noisy(exp(-mu * T / (K * L)) * start, start, rate, variance=(1, 1))


@checked
def mb_ac_sgd(
    *, L: float, mu: float, sigma: float, M: float, K: float, T: float, D0: float
) -> Bound:
    """Bound E[F] - F* of accelerated minibatch SGD, for comparison; all constants are 1.

    Examples
    --------
    >>> mb_ac_sgd(L=4.0, mu=1.0, sigma=0.0, M=1, K=8, T=16, D0=0.5).total  # 1/e
    0.36787944117144233
    """
    rate = rates.mb_ac_sgd(L=L, mu=mu, sigma=sigma, M=M, K=K, T=T)
    start = L * D0**2
    return _noisy(exp(-sqrt(mu / L) * T / K) * start, start, rate, variance=(1, 1))


@checked
def fedac_i_a1_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Bound:
    """Bound E[F] - F* as theorem fedaci:a1:gcvx does.

    Examples
    --------
    >>> fedac_i_a1_convex(L=1.0, sigma=0.0, M=1, K=1, T=100, D0=1.0).dominant
    'optimization'
    """
    require_steps(T, "fedac_i_a1_convex")
    rate = rates.fedac_i_a1_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    log = log_ratio(T**2, K, 2) ** 2
    return _noisy(
        2 * rate.optimization * log,
        L * D0**2,
        rate,
        optimization_log=log,
        variance=(2, 2, 2),
        discrepancy=(1005, 4, 4),
    )


@checked
def fedac_ii_a1_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Bound:
    """Bound E[F] - F* as theorem fedacii:a1:gcvx does.

    Examples
    --------
    >>> fedac_ii_a1_convex(L=1.0, sigma=0.0, M=1, K=1, T=1000, D0=1.0).dominant
    'optimization'
    """
    require_steps(T, "fedac_ii_a1_convex")
    rate = rates.fedac_ii_a1_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    log = log_ratio(T**2, K, 2) ** 2
    return _noisy(
        10 * rate.optimization * log,
        L * D0**2,
        rate,
        optimization_log=log,
        variance=(5, 1),
        discrepancy=(16411, 4, 4),
    )


@checked
def fedac_ii_a2_convex(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Bound:
    """Bound E[F] - F* as theorem fedacii:a2:gcvx does.

    Examples
    --------
    >>> fedac_ii_a2_convex(L=1.0, sigma=1.0, Q=0.0, M=1, K=1, T=1000, D0=1.0).discrepancy
    0.0
    """
    require_steps(T, "fedac_ii_a2_convex")
    rate = rates.fedac_ii_a2_convex(L=L, sigma=sigma, Q=Q, M=M, K=K, T=T, D0=D0)
    log = log_ratio(T**2, K, 2) ** 2
    return _noisy(
        10 * rate.optimization * log,
        L * D0**2,
        rate,
        optimization_log=log,
        variance=(5, 1),
        accelerated_variance=(139, 3, 3),
        discrepancy=(exp(19), 8, 8),
    )


@checked
def fedavg_a2_convex(
    *, L: float, sigma: float, Q: float, M: float, K: float, T: float, D0: float
) -> Bound:
    """Bound E[F] - F* of the weighted average as theorem fedavg:a2:gcvx does.

    Examples
    --------
    >>> fedavg_a2_convex(L=1.0, sigma=1.0, Q=0.0, M=1, K=1, T=1000, D0=1.0).discrepancy
    0.0
    """
    require_steps(T, "fedavg_a2_convex")
    rate = rates.fedavg_a2_convex(L=L, sigma=sigma, Q=Q, M=M, K=K, T=T, D0=D0)
    # The only theorem whose logarithms are of T alone.
    logs = {
        "optimization": log_ratio(T, 1),
        "variance": log_ratio(T, 1, 2),
        "discrepancy": log_ratio(T, 1, 5) ** 4,
    }
    return Bound(
        optimization=50 * rate.optimization * logs["optimization"],
        variance=6 * rate.variance * logs["variance"],
        discrepancy=3076 * rate.discrepancy * logs["discrepancy"],
        logs=logs,
    )


@checked
def mb_sgd_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Bound:
    """Bound E[F] - F* of minibatch SGD, for comparison; all constants are 1.

    Examples
    --------
    >>> mb_sgd_convex(L=1.0, sigma=0.0, M=1, K=1, T=4, D0=1.0).total
    0.25
    """
    rate = rates.mb_sgd_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    return Bound(optimization=rate.optimization, variance=rate.variance, discrepancy=0.0)


@checked
def mb_ac_sgd_convex(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> Bound:
    """Bound E[F] - F* of accelerated minibatch SGD, for comparison; all constants are 1.

    Examples
    --------
    >>> mb_ac_sgd_convex(L=1.0, sigma=0.0, M=1, K=1, T=4, D0=1.0).total
    0.0625
    """
    rate = rates.mb_ac_sgd_convex(L=L, sigma=sigma, M=M, K=K, T=T, D0=D0)
    return Bound(optimization=rate.optimization, variance=rate.variance, discrepancy=0.0)


def _accelerated_decay(L: float, mu: float, K: float, T: float) -> float:
    """Return what FedAc at eta = 1/L leaves of a potential after T steps."""
    return exp(-max(mu / L, sqrt(mu / (L * K))) * T)


def _noisy(
    optimization: float,
    potential: float,
    rate: rates.Rate,
    *,
    optimization_log: float = 1.0,
    **shapes: tuple[float, int] | tuple[float, int, int],
) -> Bound:
    """Return a bound whose noise terms are ``constant rate log^power(e^shift + potential/rate)``.

    Shapes give the constant, the power and, unless it is 1, the shift.
    """
    terms, logs = {"discrepancy": 0.0}, {"optimization": optimization_log}
    for name, (constant, power, *shift) in shapes.items():
        size = getattr(rate, name)
        # No noise, no term: its logarithm would be infinite.
        logs[name] = log_ratio(potential, size, *shift) ** power if size else 1.0
        terms[name] = constant * size * logs[name]
    return Bound(optimization=optimization, logs=logs, **terms)
