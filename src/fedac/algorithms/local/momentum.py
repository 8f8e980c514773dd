"""Local rules with two sequences: heavy-ball momentum and generalized primal averaging."""

from __future__ import annotations

from dataclasses import dataclass

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm, State, Vector
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.local.fedac import output, start
from fedac.algorithms.local.fedavg import last_iterate, query
from fedac.validate import require_fraction


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
    """Return SGD with momentum: u <- beta u + g, w <- w - eta u; the server averages both."""
    rule = _Momentum(require_fraction("beta", beta))
    return Algorithm(
        name="momentum",
        label="momentum SGD",
        sequences=("w", "u"),
        couple=hyperparameters.fedavg,
        start=rule.start,
        query=query,
        update=rule.update,
        output=last_iterate,
    )


@dataclass(frozen=True)
class _Gpa:
    mu_x: float
    mu_y: float

    def query(self, local: State, hp: Hyperparameters) -> Vector:
        x, z = local
        return self.mu_y * x + (1 - self.mu_y) * z

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        x, z = local
        z = z - hp.eta * g
        return self.mu_x * x + (1 - self.mu_x) * z, z


def make_gpa(mu_x: float, mu_y: float) -> Algorithm:
    """Return generalized primal averaging (arXiv 2512.17131).

    g at mu_y x + (1 - mu_y) z; z <- z - eta g; x <- mu_x x + (1 - mu_x) z. With mu_x = mu_y it is
    FedAc with 1/alpha = 0, beta = 1/(1 - mu_x) and eta = gamma/beta.
    """
    rule = _Gpa(require_fraction("mu_x", mu_x), require_fraction("mu_y", mu_y))
    return Algorithm(
        name="gpa",
        label="GPA",
        sequences=("x", "z"),
        couple=hyperparameters.fedavg,
        start=start,
        query=rule.query,
        update=rule.update,
        output=output,
    )
