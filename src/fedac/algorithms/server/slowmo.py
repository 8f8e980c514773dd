"""SlowMo: momentum in units of the clients' step size (arXiv 1910.00643)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms.record import State, Vector
from fedac.algorithms.server.rule import ServerRule
from fedac.require import require_fraction, require_positive


@dataclass(frozen=True)
class SlowMo(ServerRule):
    """u <- beta u + delta/eta, x <- x - alpha eta u.

    With a constant step size it is FedAvgM; where eta falls, the momentum falls with it.

    Examples
    --------
    >>> from fedac.algorithms.couplings import Hyperparameters
    >>> SlowMo(alpha=1.0, beta=0.5).step(3.0, 0.5, (2.0,), Hyperparameters(eta=0.25), 0)
    (2.25, (3.0,))
    """

    alpha: float = 1.0
    beta: float = 0.7
    keeps = ("u",)

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)
        require_fraction("beta", self.beta)

    def step(self, x: Vector, delta: Vector, kept: State, hp: Any, r: int) -> tuple[Vector, State]:
        """Keep the momentum as a sum of gradients."""
        u = self.beta * kept[0] + delta / hp.eta
        return x - self.alpha * hp.eta * u, (u,)
