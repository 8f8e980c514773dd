"""Tuning: proposes settings, the same number for every method.

The search starts with a coarse grid of step sizes. Then it tries the neighbours of the best setting
so far, in every number that the method has: beyond the grid if the best lies at its edge, and
closer once all neighbours were tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import couple, needs_mu
from fedac.algorithms.parsing import (
    find_algorithm,
    server_numbers,
    split_server_rule,
    with_server_numbers,
)
from fedac.algorithms.server import Adaptive
from fedac.errors import InputError

# Coarse grid of step sizes, in units of 1/L. The theory ends at 1/L, but larger ones often do
# better.
SMALLEST, LARGEST = 2.0**-9, 2.0**3
# Coarse grid of an adaptive server's step, in units of the distance to the optimum per coordinate.
SMALLEST_MOVE, LARGEST_MOVE = 2.0**-10, 2.0**2
MOMENTA = (0.3, 0.6, 0.8, 0.9, 0.95)
MU_FACTORS = (1.0, 10.0, 100.0)
# How often neighbours move closer: a factor of 4, 2, 1.4, 1.2, ...
LEVELS = 8


@dataclass(frozen=True)
class Setting:
    """A method with its tuned numbers; None where it has no such number."""

    method: str  # as the user named it
    eta: float
    server_step: float | None = None
    momentum: float | None = None
    mu_factor: float = 1.0  # times mu of the objective

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method with this server step and momentum."""
        if self.server_step is None:
            return find_algorithm(self.method)
        if (self.server_step, self.momentum) == server_numbers(self.method):
            return find_algorithm(self.method)
        return with_server_numbers(self.method, self.server_step, self.momentum)


@dataclass(frozen=True)
class Tuner:
    """Proposes settings.

    Parameters
    ----------
    tries : int
        Settings for every method, K and wire.
    smoothness, mu : float
        L and mu of the objective.
    distance : float
        From the start to the optimum, per coordinate (root mean square).

    Examples
    --------
    >>> tuner = Tuner(tries=12, smoothness=1.0, mu=1e-3, distance=1.0)
    >>> tuner.stages
    (4, 3, 3, 2)
    >>> coarse = tuner.propose("diloco", 4)
    >>> [round(setting.eta, 4) for setting in coarse]
    [0.002, 0.0312, 0.5, 8.0]
    >>> [new.algorithm.name for new in tuner.propose("diloco", 4, coarse, coarse[2], 3)]
    ['fedavg+nesterov(2.8,0.9)', 'fedavg+nesterov(0.175,0.9)', 'fedavg+nesterov(1.4,0.8)']
    """

    tries: int
    smoothness: float
    mu: float
    distance: float

    @property
    def stages(self) -> tuple[int, ...]:
        """Number of tries in each stage: the coarse grid, then around the best."""
        first = max(3, math.ceil(self.tries / 3))
        left = self.tries - first
        return (first, *(n for n in (len(range(i, left, 3)) for i in range(3)) if n))

    def propose(
        self,
        method: str,
        K: int,
        tried: Collection[Setting] = (),
        best: Setting | None = None,
        count: int = 0,
    ) -> list[Setting]:
        """Return the coarse grid at first, then `count` untried settings near the best one."""
        if best is None:
            coarse = [] if tried else self._coarse_grid(method)
            return [setting for setting in coarse if self._accepts(setting, K)]
        known = {_rounded(setting) for setting in tried}
        found: list[Setting] = []
        for setting in _neighbours(best, K):
            if len(found) == count:
                break
            if _rounded(setting) not in known:
                known.add(_rounded(setting))
                if self._accepts(setting, K):
                    found.append(setting)
        return found

    def _coarse_grid(self, method: str) -> list[Setting]:
        n, eta = self.stages[0], 1 / self.smoothness
        etas = (np.geomspace(SMALLEST, LARGEST, n) / self.smoothness).tolist()
        if ":" in method:  # user-defined: its server rule is not known here
            return [Setting(method, eta) for eta in etas]
        step, momentum = server_numbers(method)
        if step is None or not isinstance(split_server_rule(method)[1], Adaptive):
            return [Setting(method, eta, step, momentum) for eta in etas]
        # The clients' step size hardly changes the direction: tune the server's step.
        steps = (np.geomspace(SMALLEST_MOVE, LARGEST_MOVE, n) * self.distance).tolist()
        return [Setting(method, eta / 8, _short(step), momentum) for step in steps]

    def _accepts(self, setting: Setting, K: int) -> bool:
        mu = self.mu * setting.mu_factor
        try:
            couple(setting.algorithm, eta=setting.eta, mu=mu, K=K)
        except InputError:
            return False
        return True


def _neighbours(best: Setting, K: int) -> Iterator[Setting]:
    """Yield the settings around one, the farthest first."""
    step, momentum = best.server_step, best.momentum
    for level in range(LEVELS):
        factor = 4.0 ** (0.5**level)  # the coarse grid is a factor of four, or more
        if level == 0 and needs_mu(best.algorithm, eta=best.eta, K=K):
            for mu in reversed(_adjacent(MU_FACTORS, best.mu_factor)):
                yield replace(best, mu_factor=mu)
        if step is not None:
            for times in (factor, 1 / factor):
                yield replace(best, server_step=_short(step * times))
            if level == 0 and momentum is not None:
                for other in _adjacent(MOMENTA, momentum):
                    # Keeps the sum of steps, step / (1 - momentum).
                    same = step * (1 - other) / (1 - momentum)
                    yield replace(best, momentum=other, server_step=_short(same))
            # A longer server step wants shorter client steps, and the reverse.
            for times in (factor, 1 / factor):
                yield replace(best, server_step=_short(step * times), eta=best.eta / times)
        for times in (factor, 1 / factor):
            yield replace(best, eta=best.eta * times)


def _adjacent(values: Sequence[float], now: float) -> list[float]:
    """Return the next smaller and the next larger of some values, where they exist."""
    smaller = [value for value in values if value < now]
    larger = [value for value in values if value > now]
    return smaller[-1:] + larger[:1]


def _short(value: float) -> float:
    """Round to four digits: server steps are part of a method's name."""
    return float(f"{value:.4g}")


def _rounded(setting: Setting) -> tuple[float | None, ...]:
    """Return the numbers to three digits, so that sqrt(2)^2 is 2."""
    numbers = (setting.eta, setting.server_step, setting.momentum, setting.mu_factor)
    return tuple(None if value is None else float(f"{value:.3g}") for value in numbers)
