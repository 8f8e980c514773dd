"""The constants of a problem that the theorems need."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy.typing as npt

from fedac.objectives import Objective, optimum
from fedac.require import require_nonnegative, require_positive
from fedac.simulation.inputs import start_point
from fedac.theory.potentials import phi, psi


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The paper's letters for one problem and one start.

    Attributes
    ----------
    L, mu : float
        Smoothness and strong convexity; mu = 0 for a general convex objective.
    sigma : float
        Bound on the standard deviation of one gradient.
    D0 : float
        ||w_0 - w*||.
    Q : float or None
        Third-order smoothness, if known.
    Psi0, Phi0 : float
        The potentials at the start; by default L D0^2, an upper bound.

    Examples
    --------
    >>> constants = Constants(L=2.0, mu=0.1, sigma=1.0, D0=3.0)
    >>> constants.Psi0, constants.letters["L"]
    (18.0, 2.0)
    """

    L: float
    mu: float
    sigma: float
    D0: float
    Q: float | None = None
    Psi0: float = math.nan
    Phi0: float = math.nan

    def __post_init__(self) -> None:
        for name in ("Psi0", "Phi0"):
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, self.L * self.D0 * self.D0)
        for name, value in self.letters.items():
            (require_positive if name in ("L", "D0") else require_nonnegative)(name, value)

    @property
    def letters(self) -> dict[str, float]:
        """The known constants by letter."""
        return {name: value for name, value in asdict(self).items() if value is not None}


# How `estimate` computes each constant.
ESTIMATES = {
    "L": "largest curvature of the loss times the top eigenvalue of X'X/n, plus l2",
    "mu": "l2; the curvature of the data is not counted",
    "sigma": "the larger of the gradient noise at the start and at the optimum",
    "D0": "distance from the start to the optimum, which Newton's method finds",
    "Q": "largest third derivative of the loss times the top eigenvalue times the longest row",
    "Psi0": "F(w_0) - F* + mu/2 D0^2, at FedAc-I's start",
    "Phi0": "F(w_0) - F* + mu/6 D0^2, at FedAc-II's start",
}


def estimate(objective: Objective, start: npt.ArrayLike | None = None) -> Constants:
    """Estimate the constants of an objective; the default start is that of the published runs.

    sigma is measured where a run begins and where it ends. Assumption asm1 requires it everywhere,
    which data cannot show.

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> estimate(NoisyQuadratic([2.0, 0.5], sigma=0.1), start=[0.0, 2.0])
    Constants(L=2.0, mu=0.5, sigma=0.1, D0=2.0, Q=0.0, Psi0=2.0, Phi0=1.3333333333333333)
    """
    w_0, best = start_point(objective, start), optimum(objective)
    mu = objective.strong_convexity
    at_start: dict[str, Any] = {
        "suboptimality": objective.value(w_0) - best.value, "w": w_0, "w_star": best.w, "mu": mu,
    }  # fmt: skip
    return Constants(
        L=objective.smoothness,
        mu=mu,
        sigma=math.sqrt(max(objective.noise(w_0), objective.noise(best.w))),
        D0=math.dist(w_0, best.w),
        Q=objective.third_order_smoothness,
        Psi0=psi(**at_start),
        Phi0=phi(**at_start),
    )
