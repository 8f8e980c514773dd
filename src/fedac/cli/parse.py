"""Option values that are more than one number."""

from __future__ import annotations

from fedac.errors import InputError


def numbers(text: str, *, option: str) -> list[float]:
    """Read comma-separated numbers.

    Examples
    --------
    >>> numbers("0.1,0.2", option="--eta")
    [0.1, 0.2]
    >>> numbers("0.1;0.2", option="--eta")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: --eta takes numbers separated by commas, got '0.1;0.2'
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers separated by commas, got '{text}'") from None
