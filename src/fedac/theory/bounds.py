"""Upper bounds and rates term by term, and the min-max lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import Any

from fedac.theory.constants import checked, log_ratio

TERMS = ("optimization", "variance", "accelerated_variance", "discrepancy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a bound or of its rate.

    Attributes
    ----------
    optimization : float
        The remainder of the initial error; the only term without noise. In a rate for strongly
        convex objectives it is zero, because it decays exponentially instead of as a power. For an
        algorithm that runs on F + lam/2 ||w - w_0||^2 it includes lam/2 D0^2.
    variance : float
        The noise of all M T gradients, which no method with M workers can avoid.
    discrepancy : float
        The overhead of synchronizing only every K steps, between which workers drift apart.
    accelerated_variance : float
        Averaged noise amplified by acceleration (FedAc-II under asm2).
    """

    optimization: float = 0.0
    variance: float
    discrepancy: float = 0.0
    accelerated_variance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Terms):
    """The terms without constants and logarithms (tab:conv:rate)."""

    @property
    def noise(self) -> float:
        """The largest of the terms caused by noise."""
        return max(self.variance, self.discrepancy, self.accelerated_variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Terms):
    """An upper bound: the sum of its terms. `logs` has the logarithmic factor of each term."""

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


def bound_with_logs(
    rate: Rate,
    *,
    optimization: float,
    potential: float,
    optimization_log: float = 1.0,
    **shapes: tuple[float, int] | tuple[float, int, int],
) -> Bound:
    """Return a bound with noise terms ``constant rate log^power(e^shift + potential/rate)``.

    A shape is (constant, power) or (constant, power, shift), by default with shift 1. The first
    term is ``optimization optimization_log``.
    """
    terms, logs = {}, {"optimization": optimization_log}
    for name, (constant, power, *shift) in shapes.items():
        size = getattr(rate, name)
        # A term of size 0 would have an infinite logarithm.
        logs[name] = log_ratio(potential, size, *shift) ** power if size else 1.0
        terms[name] = constant * size * logs[name]
    return Bound(optimization=optimization * optimization_log, logs=logs, **terms)


def augmented_bound_with_logs(
    constant: float, shapes: Any, rate: Rate, *, L: float, K: float, T: float, D0: float, **_: float
) -> Bound:
    """Return the bound of E[F] - F* for FedAc on F + lam/2 ||w - w_0||^2, with shapes as above."""
    return bound_with_logs(
        rate,
        optimization=constant * rate.optimization,
        optimization_log=log_ratio(T**2, K, 2) ** 2,
        potential=L * D0**2,
        **shapes,
    )


def accelerated_decay(L: float, mu: float, K: float, T: float) -> float:
    """Return the factor by which FedAc at eta = 1/L shrinks a potential in T steps."""
    return exp(-max(mu / L, sqrt(mu / (L * K))) * T)


@checked
def min_max_lower_bound(
    *, L: float, sigma: float, M: float, K: float, T: float, D0: float
) -> float:
    """Return L D0^2/T^2 + sigma D0/sqrt(M T) + min(L D0^2/(R (1 + log M))^2, sigma D0/sqrt(T)).

    No method does better on every smooth, general convex problem of asm1 with M workers that take
    K stochastic gradients in each of R = T/K rounds. Up to a logarithm it matches the better of
    accelerated minibatch SGD and accelerated SGD on one worker. The constant is unknown and set
    to 1, so compare how it grows, not its size. It does not hold for smaller classes of problems:
    not under asm2 and not for strongly convex objectives. It is capped at L D0^2/2, which
    F(w_0) - F* never exceeds.

    Source: Woodworth, Bullins, Shamir and Srebro, "The Min-Max Complexity of Distributed Stochastic
    Convex Optimization with Intermittent Communication" (COLT 2021, arXiv 2102.01583).
    """
    R, start = T / K, L * D0**2
    across = min(start / (R * (1 + log(M))) ** 2, sigma * D0 / sqrt(T))
    return min(start / 2, start / T**2 + sigma * D0 / sqrt(M * T) + across)
