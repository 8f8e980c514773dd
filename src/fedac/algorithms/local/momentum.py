"""SGD with heavy-ball momentum on the client: two sequences, a point and a velocity."""

from __future__ import annotations

from dataclasses import dataclass

from fedac.algorithms import couplings
from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.local.fedavg import last_iterate, query
from fedac.algorithms.record import Algorithm, State, Vector
from fedac.require import require_fraction


@dataclass(frozen=True)
class _Momentum:
    beta: float

    def start(self, w_0: Vector) -> State:
        return w_0, 0 * w_0

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        _, u = local
        u = self.beta * u + g
        return w_md - hp.eta * u, u


def make_momentum(beta: float = 0.9) -> Algorithm:
    """Take steps with momentum: u <- beta u + g, w <- w - eta u; both are averaged.

    Examples
    --------
    >>> rule = make_momentum(0.5)
    >>> hp = rule.couple(eta=0.1, mu=1.0, K=1)
    >>> rule.update((3.0, 4.0), 3.0, 2.0, hp)
    (2.6, 4.0)
    """
    rule = _Momentum(require_fraction("beta", beta))
    return Algorithm(
        name="momentum",
        label="momentum SGD",
        sequences=("w", "u"),
        couple=couplings.fedavg,
        start=rule.start,
        query=query,
        update=rule.update,
        output=last_iterate,
    )
