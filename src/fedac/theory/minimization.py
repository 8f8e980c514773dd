"""Find the step size that minimizes a bound."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt
from operator import itemgetter
from typing import TypeVar

Value = TypeVar("Value")

# Step sizes are found to 5%. A bound is flat around its minimum, so it is then much closer.
PRECISION = 0.05
GOLDEN = (sqrt(5) - 1) / 2


def least(
    evaluate: Callable[[float], tuple[float, Value]], low: float, high: float
) -> tuple[float, Value]:
    """Return the least number between two arguments, and what comes with it.

    `evaluate` returns a pair. Its number must fall and then rise, or only one of the two; the
    search is by golden sections of the ratio of the two arguments. The end `high` counts too.

    Examples
    --------
    >>> number, x = least(lambda x: (x + 4 / x, x), 1e-6, 1e6)
    >>> round(number, 2), round(x)
    (4.0, 2)
    >>> least(lambda x: (1 / x, x), 1e-6, 8.0)
    (0.125, 8.0)
    """
    a, b = log(low), log(high)
    x, y = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_x, at_y, at_end = evaluate(exp(x)), evaluate(exp(y)), evaluate(high)
    while b - a > PRECISION:
        if at_x[0] <= at_y[0]:
            b, y, at_y = y, x, at_x
            x = b - GOLDEN * (b - a)
            at_x = evaluate(exp(x))
        else:
            a, x, at_x = x, y, at_y
            y = a + GOLDEN * (b - a)
            at_y = evaluate(exp(y))
    return min(at_end, at_x, at_y, key=itemgetter(0))
