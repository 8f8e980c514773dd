"""The algorithms of the paper, by name."""

from __future__ import annotations

from fedac.algorithms.general import fedac
from fedac.algorithms.local.fedac import FEDAC_I, FEDAC_II, FEDAC_VANILLA
from fedac.algorithms.local.fedavg import FEDAVG, FEDAVG_WEIGHTED
from fedac.algorithms.minibatch import MB_AC_SGD, MB_SGD
from fedac.algorithms.record import Algorithm, State, Vector
from fedac.errors import look_up

__all__ = [
    "ALGORITHMS",
    "FEDAC_I",
    "FEDAC_II",
    "FEDAC_VANILLA",
    "FEDAVG",
    "FEDAVG_WEIGHTED",
    "MB_AC_SGD",
    "MB_SGD",
    "Algorithm",
    "State",
    "Vector",
    "fedac",
    "get",
]

ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (FEDAC_I, FEDAC_II, FEDAC_VANILLA, FEDAVG, FEDAVG_WEIGHTED, MB_SGD, MB_AC_SGD)
}


def get(algorithm: str | Algorithm) -> Algorithm:
    """Look an algorithm up by its name; an `Algorithm` of your own passes through.

    Examples
    --------
    >>> get("fedac-i").label
    'FedAc-I'
    >>> get("fedac")
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: unknown algorithm 'fedac'; did you mean 'fedac-i'? known: fedac-i, \
fedac-ii, fedac-vanilla, fedavg, fedavg-weighted, mb-ac-sgd, mb-sgd
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    return look_up("algorithm", algorithm, ALGORITHMS)
