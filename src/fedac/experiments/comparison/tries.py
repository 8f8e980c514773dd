"""What is tried to tune a method: a coarse grid of step sizes, then finer around the best.

Every method gets as many tries as every other. One with a server rule spends its second half on
server steps too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedac.algorithms import Algorithm, get
from fedac.algorithms.contract import couple
from fedac.algorithms.server_steps import server_step, with_server_step
from fedac.errors import InputError
from fedac.experiments.plugins import find_algorithm

# The coarse grid, in units of 1/L: beyond 1/L the theory ends, but larger ones often do better.
SMALLEST, LARGEST = 2.0**-9, 2.0**3
FEWEST_TRIES = 4


@dataclass(frozen=True)
class Try:
    """One setting of a method."""

    method: str  # as the user named it
    record: Algorithm  # with its server step
    eta: float

    @property
    def algorithm(self) -> str:
        """The name of the record."""
        return self.record.name


@dataclass(frozen=True)
class Tuner:
    """Proposes tries.

    Parameters
    ----------
    tries : int
        For every method, K and wire.
    smoothness, mu : float
        L and mu of the objective.

    Examples
    --------
    >>> tuner = Tuner(tries=5, smoothness=1.0, mu=1e-3)
    >>> [round(one.eta, 4) for one in tuner.coarse("fedavg", K=4)]
    [0.002, 0.125, 8.0]
    >>> best = tuner.coarse("fedavg", K=4)[1]
    >>> [round(one.eta, 4) for one in tuner.fine(best, K=4)]
    [0.0156, 1.0]
    >>> best = tuner.coarse("diloco", K=4)[1]
    >>> [(one.algorithm, round(one.eta, 4)) for one in tuner.fine(best, K=4)]
    [('fedavg+nesterov(1.4,0.9)', 0.125), ('fedavg+nesterov(0.35,0.9)', 0.125)]
    """

    tries: int
    smoothness: float
    mu: float

    @property
    def _coarse(self) -> int:
        return (self.tries + 1) // 2

    @property
    def _ratio(self) -> float:
        """The factor between two step sizes of the coarse grid."""
        return float((LARGEST / SMALLEST) ** (1 / (self._coarse - 1)))

    def coarse(self, method: str, K: int) -> list[Try]:
        """Return the first half of a method's tries; without those that it refuses."""
        etas = np.geomspace(SMALLEST, LARGEST, self._coarse) / self.smoothness
        record = find_algorithm(method)
        return [Try(method, record, eta) for eta in etas.tolist() if self._works(record, eta, K)]

    def fine(self, best: Try, K: int) -> list[Try]:
        """Return the other half, around the best of the first."""
        tries: dict[Try, None] = {}
        for one in self._around(best):
            if self._works(one.record, one.eta, K):
                tries[one] = None
            if len(tries) == self.tries - self._coarse:
                break
        return list(tries)

    def _around(self, best: Try) -> Iterator[Try]:
        step = None if ":" in best.method else server_step(best.method)
        if step is not None:
            # A longer step of the server may want shorter ones of the clients, and the reverse.
            half = math.sqrt(self._ratio)
            for factor, times in ((2, 1), (1 / 2, 1), (1, half), (1, 1 / half), (2, 1 / half),
                                  (1 / 2, half)):  # fmt: skip
                record = best.record
                if factor != 1:
                    record = get(with_server_step(best.method, step * factor).name)
                yield Try(best.method, record, best.eta * times)
        # Between the neighbours on the coarse grid, from the middle outwards; then beyond them.
        places = (self.tries - self._coarse + 1) // 2 if step is None else 2
        for i in range(1, 4 * (places + 1)):
            for sign in (-1, 1):
                times = self._ratio ** (sign * i / (places + 1))
                yield Try(best.method, best.record, best.eta * times)

    def _works(self, record: Algorithm, eta: float, K: int) -> bool:
        """Say whether a method accepts a step size."""
        try:
            couple(record, eta=eta, mu=self.mu, K=K)
        except InputError:
            return False
        return True
