# SPDX-License-Identifier: Apache-2.0
"""Upper bounds and rates term by term, the values they accept, and the min-max lower bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from math import exp, inf, log, log1p, sqrt
from typing import TypeVar

from fedac.errors import InputError
from fedac.validate import require_nonnegative, require_positive

R = TypeVar("R")

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


@contextmanager
def valid(letters: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Check the letters of a formula, and explain a failure caused by very large or small ones.

    Yields them as floats: NumPy's integers would silently overflow in the eighth power of T.
    """
    for name, value in letters.items():
        if name in ("M", "K", "T") and require_positive(name, value) < 1:
            raise InputError(f"{name} must be at least 1, got {value!r}")
        (require_positive if name in ("L", "mu", "eta", "D0") else require_nonnegative)(name, value)
    K, T = letters.get("K", 1), letters.get("T", inf)
    if K > T:
        raise InputError(f"K (local steps) must be at most T (steps), got K={K:g} and T={T:g}")
    mu, L = letters.get("mu", 0), letters.get("L", inf)
    if mu > L * (1 + 1e-12):
        raise InputError(f"mu must be at most L, got mu={mu:g} and L={L:g}")
    try:
        yield {name: float(value) for name, value in letters.items()}
    except InputError:
        raise
    except (ArithmeticError, ValueError):  # for example the logarithm of a number that underflowed
        given = ", ".join(f"{name}={value!r:.20}" for name, value in letters.items())
        raise InputError(f"these numbers are too large or too small together: {given}") from None


def checked(formula: Callable[..., R]) -> Callable[..., R]:
    """Decorate a formula so that it checks its letters."""

    @wraps(formula)
    def call(**letters: float) -> R:
        with valid(letters) as values:
            return formula(**values)

    return call


def require_small(eta: float, largest: float) -> None:
    """Raise InputError for a step size for which nothing is proven."""
    if eta > largest * (1 + 1e-12):
        raise InputError(f"this bound needs eta of at most {largest:.4g}, got {eta:g}")


def log_ratio(numerator: float, denominator: float, shift: float = 1.0) -> float:
    """Return log(e^shift + numerator/denominator) without overflow, where 0/0 is 0."""
    if numerator == 0:
        return shift
    if denominator == 0:
        return inf
    x = log(numerator) - log(denominator)
    return max(x, shift) + log1p(exp(-abs(x - shift)))


def divide(numerator: float, denominator: float) -> float:
    """Divide; x/0 is infinite."""
    return numerator / denominator if denominator else inf


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
