"""The terms of a convergence theorem: its rate, without constants and logarithms, and its bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, sqrt

from fedac.theory.constants import log_ratio

TERMS = ("optimization", "variance", "accelerated_variance", "discrepancy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a bound or of its rate.

    Attributes
    ----------
    optimization : float
        What remains of the initial error; the only term without noise. It is zero in a rate for
        strongly convex objectives, where it decays exponentially instead of as a power. For an
        algorithm that runs on F + lam/2 ||w - w_0||^2 it includes lam/2 D0^2.
    variance : float
        The noise of all M T gradients, which no method with M workers can avoid.
    discrepancy : float
        The overhead of synchronizing every K steps, in between which workers drift apart.
    accelerated_variance : float
        Averaged noise as amplified by acceleration (FedAc-II under assumption asm2).
    """

    optimization: float = 0.0
    variance: float
    discrepancy: float = 0.0
    accelerated_variance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Terms):
    """The terms without constants and logarithms (tab:conv:rate).

    Examples
    --------
    >>> Rate(variance=0.5, discrepancy=2.0).noise
    2.0
    """

    @property
    def noise(self) -> float:
        """The largest of the terms caused by noise."""
        return max(self.variance, self.discrepancy, self.accelerated_variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Terms):
    """An upper bound: the sum of its terms. `logs` has the logarithmic factor of each term.

    Examples
    --------
    >>> bound = Bound(optimization=0.5, variance=0.25)
    >>> bound.total, bound.dominant
    (0.75, 'optimization')
    """

    logs: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def terms(self) -> dict[str, float]:
        """The terms by name."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def total(self) -> float:
        """The bound itself."""
        # Spelled out: the planner asks for it thousands of times.
        return self.optimization + self.variance + self.accelerated_variance + self.discrepancy

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda name: self.terms[name])


def accelerated_decay(L: float, mu: float, K: float, T: float) -> float:
    """Return the factor by which FedAc at eta = 1/L shrinks a potential in T steps."""
    return exp(-max(mu / L, sqrt(mu / (L * K))) * T)


def bound_with_logs(
    rate: Rate,
    *,
    optimization: float,
    potential: float,
    optimization_log: float = 1.0,
    **shapes: tuple[float, int] | tuple[float, int, int],
) -> Bound:
    """Return a bound with noise terms ``constant rate log^power(e^shift + potential/rate)``.

    A shape is (constant, power) or (constant, power, shift); the shift is 1 by default. The first
    term is ``optimization optimization_log``.

    Examples
    --------
    >>> bound_with_logs(Rate(variance=1.0), optimization=0.5, potential=0.0, variance=(3, 2)).total
    3.5
    """
    terms, logs = {}, {"optimization": optimization_log}
    for name, (constant, power, *shift) in shapes.items():
        size = getattr(rate, name)
        # A term of size 0 would have an infinite logarithm.
        logs[name] = log_ratio(potential, size, *shift) ** power if size else 1.0
        terms[name] = constant * size * logs[name]
    return Bound(optimization=optimization * optimization_log, logs=logs, **terms)
