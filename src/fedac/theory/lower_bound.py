"""How well any method can do: the min-max lower bound for smooth, general convex objectives.

Woodworth, Bullins, Shamir and Srebro, "The Min-Max Complexity of Distributed Stochastic Convex
Optimization with Intermittent Communication" (COLT 2021, arXiv 2102.01583). It is about M workers
that take K stochastic gradients each between two of T/K rounds, and matches, up to a logarithm,
the better of accelerated minibatch SGD and accelerated SGD on one worker. Its constant is not
known and set to 1 here, so compare its growth with a bound's, not its size. It is the worst case
of asm1, and not a floor for a smaller class: not under asm2, and not for strongly convex
objectives.
"""

from __future__ import annotations

from math import log, sqrt

from fedac.theory.constants import checked


@checked
def min_max_floor(*, L: float, sigma: float, M: float, K: float, T: float, D0: float) -> float:
    """Return L D0^2/T^2 + sigma D0/sqrt(M T) + min(L D0^2/(R (1 + log M))^2, sigma D0/sqrt(T)).

    At most L D0^2/2, which F(w_0) - F* never exceeds.

    Examples
    --------
    1/16 + 1/4 + 1/(1 + log 4)^2

    >>> round(min_max_floor(L=4.0, sigma=2.0, M=4, K=4, T=4, D0=0.5), 6)
    0.488111
    >>> min_max_floor(L=1.0, sigma=100.0, M=4, K=4, T=4, D0=1.0)
    0.5
    """
    R, start = T / K, L * D0**2
    across = min(start / (R * (1 + log(M))) ** 2, sigma * D0 / sqrt(T))
    return min(start / 2, start / T**2 + sigma * D0 / sqrt(M * T) + across)
