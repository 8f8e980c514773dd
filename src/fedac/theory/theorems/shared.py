"""Pieces that several theorems' formulas share."""

from __future__ import annotations

from math import exp, inf, sqrt


def accelerated_decay(L: float, mu: float, K: float, T: float) -> float:
    """Return the factor by which FedAc at eta = 1/L shrinks a potential in T steps.

    Examples
    --------
    >>> accelerated_decay(L=1.0, mu=1.0, K=1.0, T=2.0)  # e^-2
    0.1353352832366127
    """
    return exp(-max(mu / L, sqrt(mu / (L * K))) * T)


def over(numerator: float, denominator: float) -> float:
    """Divide; a limit over zero noise is no limit.

    Examples
    --------
    >>> over(1.0, 4.0), over(1.0, 0.0)
    (0.25, inf)
    """
    return numerator / denominator if denominator else inf
