"""How well any method can do: the min-max lower bound for smooth, general convex objectives.

Woodworth, Bullins, Shamir and Srebro, "The Min-Max Complexity of Distributed Stochastic Convex
Optimization with Intermittent Communication" (COLT 2021, arXiv 2102.01583). It is about M workers
that take K stochastic gradients each between two of T/K rounds, and matches, up to a logarithm,
the better of accelerated minibatch SGD and accelerated SGD on one worker. Its constant is not
known and set to 1 here, so compare its growth with a bound's, not its size. It is not a floor for
strongly convex objectives.
"""

from __future__ import annotations

from math import log, sqrt

from fedac.theory.letters import checked, divide


@checked
def min_max_floor(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> float:
    """Return L D0^2/T^2 + sigma D0/sqrt(M T) + min(L D0^2/(R^2 log^2 M), sigma D0/sqrt(T)).

    One worker has sigma D0/sqrt(T) for the last term: with log M = 0 that is the minimum.

    Examples
    --------
    1/16 + 1/2 + min(1/log^2 4, 1)

    >>> round(min_max_floor(L=1.0, sigma=2.0, M=4, K=4, T=4, D0=1.0), 6)
    1.082842
    """
    R = T / K
    across = divide(L * D0**2, (R * log(M)) ** 2)
    return L * D0**2 / T**2 + sigma * D0 / sqrt(M * T) + min(across, sigma * D0 / sqrt(T))
