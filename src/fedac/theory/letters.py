"""The paper's letters: which values are valid, and arithmetic that allows zero noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from math import exp, inf, log, log1p
from typing import Any, ParamSpec, TypeVar

from fedac.errors import InputError
from fedac.require import require_nonnegative, require_positive

P = ParamSpec("P")
R = TypeVar("R")


def check(*, K: float, T: float, M: float = 1, mu: float | None = None, **letters: float) -> None:
    """Refuse constants that no theorem covers.

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


def evaluate(formula: Callable[..., R], letters: Mapping[str, float]) -> R:
    """Check the letters and call a formula with them, as floats.

    NumPy's integers would silently overflow in the eighth power of T.
    """
    check(**({"K": 1, "T": letters.get("K", 1)} | dict(letters)))
    try:
        return formula(**{name: float(value) for name, value in letters.items()})
    except InputError:
        raise
    except (ArithmeticError, ValueError):  # such as the logarithm of a number that became 0
        given = ", ".join(f"{name}={value!r:.20}" for name, value in letters.items())
        raise InputError(f"these numbers are too large or too small together: {given}") from None


def checked(formula: Callable[P, R]) -> Callable[P, R]:
    """Decorate a formula so that every call goes through `evaluate`."""

    @wraps(formula)
    def call(*args: P.args, **letters: P.kwargs) -> R:
        numbers: dict[str, Any] = dict(letters)
        return evaluate(partial(formula, *args), numbers)

    return call


def require_small(eta: float, largest: float) -> None:
    """Refuse a step size for which nothing is proven."""
    if eta > largest * (1 + 1e-12):
        raise InputError(f"this bound needs eta of at most {largest:.4g}, got {eta:g}")


def log_ratio(numerator: float, denominator: float, shift: float = 1.0) -> float:
    """Return log(e^shift + numerator/denominator) without overflow; x/0 is infinite and 0/0 is 0.

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


def divide(numerator: float, denominator: float) -> float:
    """Divide; x/0 is infinite.

    Examples
    --------
    >>> divide(1.0, 4.0), divide(1.0, 0.0)
    (0.25, inf)
    """
    return numerator / denominator if denominator else inf
