"""Checks of the user's numbers."""

from __future__ import annotations

import math
import operator
from numbers import Real

from fedac.errors import InputError


def require_positive(name: str, value: float) -> float:
    """Return `value` as a float if it is finite and above zero, else raise `InputError`.

    Examples
    --------
    >>> require_positive("eta", -1.0)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: eta must be a finite number above 0, got -1.0
    """
    if not (_is_finite(value) and value > 0):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def require_nonnegative(name: str, value: float) -> float:
    """Return `value` as a float if it is finite and at least zero, else raise `InputError`.

    Examples
    --------
    >>> require_nonnegative("l2", 0)
    0.0
    """
    if not (_is_finite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number, at least 0, got {value!r}")
    return float(value)


def require_fraction(name: str, value: float) -> float:
    """Return `value` as a float if it is at least zero and below one, else raise `InputError`.

    Examples
    --------
    >>> require_fraction("beta", 1.0)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: beta must be a number at least 0 and below 1, got 1.0
    """
    if not (_is_finite(value) and 0 <= value < 1):
        raise InputError(f"{name} must be a number at least 0 and below 1, got {value!r}")
    return float(value)


def require_count(name: str, value: int, *, least: int = 1) -> int:
    """Return `value` if it is a whole number, at least `least`, else raise `InputError`.

    Examples
    --------
    >>> require_count("K", 2.5)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: K must be a whole number, at least 1, got 2.5
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    # bool is an int in Python, but M=True is a mistake.
    if isinstance(value, bool) or number < least:
        raise InputError(f"{name} must be a whole number, at least {least}, got {value!r}")
    return number


def _is_finite(value: object) -> bool:
    # NumPy's scalars are Real too; True is not a number here.
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
