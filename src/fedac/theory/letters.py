"""The paper's letters: which values make sense, and the logarithms taken of their ratios."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import exp, inf, log, log1p
from typing import Any, ParamSpec, TypeVar

from fedac.errors import InputError
from fedac.require import require_nonnegative, require_positive

P = ParamSpec("P")
R = TypeVar("R")

# From how many steps on a theorem for general convex objectives holds.
LEAST_STEPS = {
    "fedac_i_a1_convex": 24,
    "fedac_ii_a1_convex": 1000,
    "fedac_ii_a2_convex": 1000,
    "fedavg_a2_convex": 100,
}


def check(*, K: float, T: float, M: float = 1, mu: float | None = None, **letters: float) -> None:
    """Refuse constants for which a theorem says nothing.

    Examples
    --------
    >>> check(K=8, T=4)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: K (local steps) must be at most T (steps), got K=8 and T=4
    """
    for name, value in letters.items():
        (require_positive if name in ("L", "eta", "D0") else require_nonnegative)(name, value)
    for name, value in {"M": M, "K": K, "T": T}.items():
        if require_positive(name, value) < 1:
            raise InputError(f"{name} must be at least 1, got {value!r}")
    if K > T:
        raise InputError(f"K (local steps) must be at most T (steps), got K={K:g} and T={T:g}")
    if mu is not None and require_positive("mu", mu) > letters.get("L", inf) * (1 + 1e-12):
        raise InputError(f"mu must be at most L, got mu={mu:g} and L={letters['L']:g}")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function of the paper's letters refuse what `check` does, and compute with floats.

    Examples
    --------
    >>> @checked
    ... def square(*, L: float) -> float:
    ...     return L**2
    >>> square(L=3)
    9.0
    """

    @wraps(function)
    def call(*nothing: P.args, **letters: P.kwargs) -> R:
        known: dict[str, Any] = dict(letters)
        check(**({"K": 1, "T": known.get("K", 1)} | known))
        return in_floats(function)(*nothing, **letters)

    return call


def in_floats(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function of the paper's letters compute with floats.

    NumPy's whole numbers would overflow in the eighth power of T without a word.
    """

    @wraps(function)
    def call(*nothing: P.args, **letters: P.kwargs) -> R:
        known: dict[str, Any] = dict(letters)
        try:
            exact: Any = {name: float(value) for name, value in known.items()}
            return function(*nothing, **exact)
        except (OverflowError, ZeroDivisionError):
            told = ", ".join(f"{name}={value!r:.20}" for name, value in known.items())
            raise InputError(f"these numbers are too large or too small together: {told}") from None

    return call


def require_steps(T: float, theorem: str) -> None:
    """Refuse fewer steps than a theorem asks for.

    Examples
    --------
    >>> require_steps(23, "fedac_i_a1_convex")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: this theorem needs T (steps) of at least 24, got 23
    """
    least = LEAST_STEPS[theorem]
    if least > T:
        raise InputError(f"this theorem needs T (steps) of at least {least}, got {T:g}")


def log_ratio(numerator: float, denominator: float, shift: float = 1.0) -> float:
    """Return log(e^shift + numerator/denominator), whatever the sizes of the two.

    The ratio of something to nothing is infinite; of nothing to nothing, nothing.

    Examples
    --------
    >>> log_ratio(0.0, 1.0), log_ratio(1.0, 0.0), log_ratio(0.0, 0.0)
    (1.0, inf, 1.0)
    >>> round(log_ratio(1e300, 1e-300) / log(10))
    600
    """
    if numerator == 0:
        return shift
    if denominator == 0:
        return inf
    x = log(numerator) - log(denominator)
    return max(x, shift) + log1p(exp(-abs(x - shift)))
