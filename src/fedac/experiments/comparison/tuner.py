"""Tuning: which settings of a method are tried, every method with the same number of tries.

A setting is the clients' step size and, where a method has them, the server's step and momentum and
the estimate mu of its coupling. The first tries are a coarse grid of step sizes. Then come the
neighbours of the best setting so far, in every number. Where the best lies at an edge, they lie
beyond it; where all neighbours were tried, the next are nearer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import couple, needs_mu
from fedac.algorithms.parsing import is_adaptive, server_momentum, server_step, with_server_step
from fedac.errors import InputError
from fedac.experiments.plugins import find_algorithm

# The coarse grid, in units of 1/L: beyond 1/L the theory ends, but larger ones often do better.
SMALLEST, LARGEST = 2.0**-9, 2.0**3
# That of an adaptive server's step, in units of the distance to the optimum, per coordinate.
SMALLEST_MOVE, LARGEST_MOVE = 2.0**-10, 2.0**2
BETAS = (0.3, 0.6, 0.8, 0.9, 0.95)
MUS = (1.0, 10.0, 100.0)
FEWEST_TRIES = 4
# The neighbours of a setting get nearer so many times: a factor of 4, 2, 1.4, 1.2, ...
LEVELS = 8


@dataclass(frozen=True)
class Setting:
    """The numbers of a method that are tuned; None for those that it does not have."""

    eta: float
    step: float | None = None
    beta: float | None = None
    mu: float = 1.0  # times that of the objective


@dataclass(frozen=True)
class Try:
    """A method with a setting."""

    method: str  # as the user named it
    setting: Setting
    record: Algorithm  # with the numbers of its server rule

    @property
    def algorithm(self) -> str:
        """The name of the record."""
        return self.record.name

    @property
    def eta(self) -> float:
        """The step size of the clients."""
        return self.setting.eta


@dataclass(frozen=True)
class Tuner:
    """Proposes tries.

    Parameters
    ----------
    tries : int
        For every method, K and wire.
    smoothness, mu : float
        L and mu of the objective.
    distance : float
        From the start to the optimum, per coordinate (root mean square).

    Examples
    --------
    >>> tuner = Tuner(tries=12, smoothness=1.0, mu=1e-3, distance=1.0)
    >>> tuner.stages
    (4, 3, 3, 2)
    >>> coarse = tuner.coarse("fedavg", K=4)
    >>> [round(one.eta, 4) for one in coarse]
    [0.002, 0.0312, 0.5, 8.0]
    >>> [round(one.eta, 4) for one in tuner.near(coarse[2], coarse, 3, K=4)]
    [2.0, 0.125, 1.0]
    >>> coarse = tuner.coarse("diloco", K=4)
    >>> [(one.algorithm, round(one.eta, 3)) for one in tuner.near(coarse[2], coarse, 3, K=4)]
    [('fedavg+nesterov(2.8,0.9)', 0.5), ('fedavg+nesterov(0.175,0.9)', 0.5), \
('fedavg+nesterov(1.4,0.8)', 0.5)]
    """

    tries: int
    smoothness: float
    mu: float
    distance: float

    @property
    def stages(self) -> tuple[int, ...]:
        """How many tries each stage of the search has: the coarse grid, then around the best."""
        first = max(3, math.ceil(self.tries / 3))
        left = self.tries - first
        return (first, *(n for n in (len(range(i, left, 3)) for i in range(3)) if n))

    def coarse(self, method: str, K: int) -> list[Try]:
        """Return the first tries of a method; without those that it refuses."""
        own = ":" in method
        step = None if own else server_step(method)
        usual = Setting(1 / self.smoothness, step, None if own else server_momentum(method))
        n = self.stages[0]
        if step is not None and is_adaptive(method):
            # What counts is the server's step; that of the clients hardly changes the direction.
            steps = np.geomspace(SMALLEST_MOVE, LARGEST_MOVE, n) * self.distance
            usual = replace(usual, eta=usual.eta / 8)
            settings = [replace(usual, step=_short(value)) for value in steps.tolist()]
        else:
            etas = np.geomspace(SMALLEST, LARGEST, n) / self.smoothness
            settings = [replace(usual, eta=eta) for eta in etas.tolist()]
        tries = (self.make(method, setting) for setting in settings)
        return [one for one in tries if self._works(one, K)]

    def near(self, best: Try, tried: Collection[Try], count: int, K: int) -> list[Try]:
        """Return so many untried settings near the best one, the farther first."""
        known = {_rounded(one.setting) for one in tried}
        found: list[Try] = []
        for setting in self._neighbours(best, K):
            if len(found) == count:
                break
            if _rounded(setting) not in known:
                known.add(_rounded(setting))
                one = self.make(best.method, setting)
                if self._works(one, K):
                    found.append(one)
        return found

    def make(self, method: str, setting: Setting) -> Try:
        """Return the try of a setting."""
        record = find_algorithm(method)
        usual = setting.step is None or (
            setting.step == server_step(method) and setting.beta == server_momentum(method)
        )
        if not usual and setting.step is not None:
            record = with_server_step(method, setting.step, setting.beta)
        return Try(method, setting, record)

    def _neighbours(self, best: Try, K: int) -> Iterator[Setting]:
        """Yield the settings around one, level by level."""
        now = best.setting
        for level in range(LEVELS):
            far = 4.0 ** (0.5**level)  # the coarse grid is a factor of four, or more
            if level == 0 and needs_mu(best.record, eta=best.eta, K=K):
                place = MUS.index(now.mu)
                yield from (replace(now, mu=mu) for mu in _beside(MUS, place))
            if now.step is not None:
                for factor in (far, 1 / far):
                    yield replace(now, step=_short(now.step * factor))
                if level == 0 and now.beta is not None:
                    yield from _other_momentum(now)
                # A longer step of the server wants shorter ones of the clients, and the reverse.
                for factor in (far, 1 / far):
                    yield replace(now, step=_short(now.step * factor), eta=now.eta / factor)
            for factor in (far, 1 / far):
                yield replace(now, eta=now.eta * factor)

    def _works(self, one: Try, K: int) -> bool:
        """Say whether a method accepts a setting."""
        try:
            couple(one.record, eta=one.eta, mu=self.mu * one.setting.mu, K=K)
        except InputError:
            return False
        return True


def _other_momentum(setting: Setting) -> Iterator[Setting]:
    """Yield the next momenta of the list, with the same sum of steps, step / (1 - beta)."""
    assert setting.step is not None
    assert setting.beta is not None
    above = [beta for beta in BETAS if beta > setting.beta]
    below = [beta for beta in BETAS if beta < setting.beta]
    for beta in (*below[-1:], *above[:1]):
        same = setting.step * (1 - beta) / (1 - setting.beta)
        yield replace(setting, beta=beta, step=_short(same))


def _beside(values: tuple[float, ...], place: int) -> tuple[float, ...]:
    return values[place + 1 : place + 2] + values[max(place - 1, 0) : place]


def _short(value: float) -> float:
    """Round to four digits: server steps are part of a method's name."""
    return float(f"{value:.4g}")


def _rounded(setting: Setting) -> tuple[float | None, ...]:
    """Return the numbers of a setting to three digits, so that sqrt(2)^2 is 2."""
    numbers = (setting.eta, setting.step, setting.beta, setting.mu)
    return tuple(None if value is None else float(f"{value:.3g}") for value in numbers)
