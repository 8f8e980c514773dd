# SPDX-License-Identifier: Apache-2.0
"""The constants of a problem that the theorems need, how to estimate them, and the potentials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy.typing as npt

from fedac.errors import InputError
from fedac.objectives import ConvexObjective, optimum
from fedac.simulation.problem import start_point
from fedac.validate import Array, require_nonnegative, require_positive

# Default values of omitted constants, explained.
DEFAULTS = {
    "sigma4": "not given: sigma, as if asm2 (b) held with the sigma of asm1 (c)",
    "Psi0": "not given: L D0^2, at least F(w_0) - F* + mu/2 D0^2, FedAc-I's potential",
    "Phi0": "not given: L D0^2, at least F(w_0) - F* + mu/6 D0^2, FedAc-II's potential",
}
# How `estimate` computes each constant.
ESTIMATES = {
    "L": "largest curvature of the loss times the top eigenvalue of X'X/n, plus l2",
    "mu": "l2; the curvature of the data is not counted",
    "sigma": "measured: the larger of the gradient noise at the start and at the optimum",
    "sigma4": "measured: the same for its fourth moment, to the power 1/4",
    "D0": "distance from the start to the optimum, found by Newton's method",
    "Q": "largest third derivative of the loss, times top eigenvalue and longest row",
    "Psi0": "F(w_0) - F* + mu/2 D0^2, FedAc-I's potential at the start",
    "Phi0": "F(w_0) - F* + mu/6 D0^2, FedAc-II's potential at the start",
}
# The same with ``bounded=True``.
BOUNDS = {
    "sigma": "bounded at every w: sqrt(mean ||x_i||^2) for logistic regression",
    "sigma4": "bounded at every w: (8 mean ||x_i||^4)^(1/4) for logistic regression",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The constants of one problem and one starting point, by the paper's letters.

    Attributes
    ----------
    L, mu : float
        Smoothness and strong convexity; mu = 0 for a general convex objective.
    sigma : float
        Bound on the standard deviation of one gradient (asm1 (c)).
    sigma4 : float
        Fourth root of a bound on the fourth central moment (asm2 (b)), at least sigma.
        Default: sigma.
    D0 : float
        ||w_0 - w*||.
    Q : float or None
        Third-order smoothness, if known.
    Psi0, Phi0 : float
        The potentials at the start. Default: L D0^2, an upper bound.
    how : mapping
        How each value was obtained, by letter.

    Examples
    --------
    >>> constants = Constants(L=2.0, mu=0.1, sigma=1.0, D0=3.0)
    >>> constants.Psi0, constants.letters["L"], constants.start
    (18.0, 2.0, 9.0)
    """

    L: float
    mu: float
    sigma: float
    D0: float
    Q: float | None = None
    Psi0: float = math.nan
    Phi0: float = math.nan
    sigma4: float = math.nan
    how: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        most = self.L * self.D0 * self.D0
        defaults = {"sigma4": self.sigma, "Psi0": most, "Phi0": most}
        missing = [name for name in defaults if math.isnan(getattr(self, name))]
        for name in missing:
            object.__setattr__(self, name, defaults[name])
        known = dict.fromkeys(self.letters, "given") | {name: DEFAULTS[name] for name in missing}
        object.__setattr__(self, "how", known | dict(self.how))
        for name, value in self.letters.items():
            (require_positive if name in ("L", "D0") else require_nonnegative)(name, value)
        if self.sigma4 < self.sigma * (1 - 1e-12):
            raise InputError(
                f"sigma4 must be at least sigma={self.sigma:g}, got {self.sigma4:g}: a fourth "
                "moment is at least the square of the second"
            )

    @property
    def letters(self) -> dict[str, float]:
        """The known constants by letter."""
        names = ("L", "mu", "sigma", "sigma4", "D0", "Q", "Psi0", "Phi0")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def start(self) -> float:
        """A bound on F(w_0) - F*: L D0^2/2, or less if the potentials imply less."""
        square = self.D0 * self.D0
        potentials = (self.Psi0 - self.mu / 2 * square, self.Phi0 - self.mu / 6 * square)
        return max(0.0, min(self.L / 2 * square, *potentials))


def estimate(
    objective: ConvexObjective, start: npt.ArrayLike | None = None, *, bounded: bool = False
) -> Constants:
    """Estimate the constants of an objective. Default start: as in the published runs.

    sigma and sigma4 are measured at the start and at the optimum. Assumptions asm1 and asm2
    require them to hold everywhere, which no measurement can show. With `bounded` they are upper
    bounds that hold everywhere; these exist for logistic regression only.

    Examples
    --------
    >>> from fedac.objectives import LogisticRegression, NoisyQuadratic
    >>> constants = estimate(NoisyQuadratic([2.0, 0.5], sigma=0.1), start=[0.0, 2.0])
    >>> constants.L, constants.mu, constants.sigma, constants.D0, constants.Q
    (2.0, 0.5, 0.1, 2.0, 0.0)
    >>> constants.Psi0, round(constants.Phi0, 6), constants.start
    (2.0, 1.333333, 1.0)
    >>> F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> round(estimate(F, bounded=True).sigma ** 2, 6)  # the mean of 1 and 4
    2.5
    """
    w_0, best = start_point(objective, start), optimum(objective)
    mu, above = objective.strong_convexity, objective.value(w_0) - best.value
    second, fourth = objective.noise_bound, objective.fourth_moment_bound
    if not bounded:
        second = max(objective.noise(w_0), objective.noise(best.w))
        fourth = max(objective.fourth_moment(w_0), objective.fourth_moment(best.w))
    elif second is None or fourth is None:
        raise InputError(
            f"the noise of {type(objective).__name__} has no known bound, it can only be measured; "
            "bounds exist for logistic regression"
        )
    sigma = math.sqrt(second)
    return Constants(
        L=objective.smoothness,
        mu=mu,
        sigma=sigma,
        # Rounding may make it slightly less if all gradients are equally far from their mean.
        sigma4=max(sigma, fourth**0.25),
        D0=math.dist(w_0, best.w),
        Q=objective.third_order_smoothness,
        Psi0=psi(above, w_0, best.w, mu),
        Phi0=phi(above, w_0, best.w, mu),
        how=ESTIMATES | BOUNDS if bounded else ESTIMATES,
    )


def psi(suboptimality: float, w: Array, w_star: Array, mu: float) -> float:
    """Return Psi = F(w_ag) - F* + mu/2 ||w - w*||^2 (eq:fedaci:potential), for FedAc-I."""
    return suboptimality + mu / 2 * float((w - w_star) @ (w - w_star))


def phi(suboptimality: float, w: Array, w_star: Array, mu: float) -> float:
    """Return Phi = F(w_ag) - F* + mu/6 ||w - w*||^2 (eq:centralied:potential), for FedAc-II."""
    return suboptimality + mu / 6 * float((w - w_star) @ (w - w_star))
