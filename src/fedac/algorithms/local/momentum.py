# SPDX-License-Identifier: Apache-2.0
"""Local rules with two sequences: momenta, generalized primal averaging, dual averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm, ClientWork, RoundInfo, State, Vector
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.local.fedac import output, start
from fedac.algorithms.local.fedavg import last_iterate, query
from fedac.validate import require_fraction, require_nonnegative


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
class _MimeLite:
    beta: float

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        _, u = local
        return w_md - hp.eta * ((1 - self.beta) * g + self.beta * u), u

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        w, u = local
        return (w, (1 - self.beta) * done.gradient + self.beta * u), memory


def make_mimelite(beta: float = 0.9) -> Algorithm:
    """Return MimeLite with SGD and momentum: the momentum is the server's, fixed during a round.

    w <- w - eta ((1 - beta) g + beta u). The server then updates u with the clients' gradients of
    all their rows at the start of the round: u <- (1 - beta) mean(G_m) + beta u (arXiv 2008.03606).

    >>> rule = make_mimelite(0.5)
    >>> hp = rule.couple(eta=0.5, mu=1.0, K=1)
    >>> local = rule.update((3.0, 2.0), 3.0, 1.0, hp)
    >>> rule.leave(local, (3.0, 2.0), (), hp, ClientWork(steps=1, gradient=4.0))
    ((2.25, 3.0), ())
    """
    rule = _MimeLite(require_fraction("beta", beta))
    return Algorithm(
        name="mimelite",
        label="MimeLite",
        sequences=("w", "u"),
        couple=hyperparameters.fedavg,
        start=lambda w_0: (w_0, 0 * w_0),
        query=query,
        update=rule.update,
        output=last_iterate,
        leave=rule.leave,
        means=("u",),
        asks=("gradient",),
    )


@dataclass(frozen=True)
class _DualAveraging:
    l1: float

    def query(self, local: State, hp: Hyperparameters) -> Vector:
        z, threshold = local
        return (z - threshold) * (z > threshold) + (z + threshold) * (z < -threshold)

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        z, threshold = local
        return z - hp.eta * g, threshold + hp.eta * self.l1

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        return local[:1], memory

    def serve(
        self, message: State, sequences: State, server: State, hp: Any, this: RoundInfo
    ) -> tuple[State, State]:
        return (message[0], sequences[1] + this.steps * hp.eta * self.l1), server

    def output(self, state: State, hp: Any, t: int) -> Vector:
        return self.query(state, hp)


def make_dualavg(l1: float = 1e-3) -> Algorithm:
    """Return federated dual averaging, which minimizes F + l1 |w|_1 (arXiv 2011.08474).

    Clients step in the dual space, z <- z - eta g, with g at the sparse point w = soft(z, l1 s),
    where s is the sum of all step sizes so far. Without l1 it is FedAvg. The server's step size
    of the paper is 1.

    >>> rule = make_dualavg(l1=2.0)
    >>> hp = rule.couple(eta=0.5, mu=1.0, K=1)
    >>> rule.query((3.0, 1.0), hp), rule.query((0.5, 1.0), hp), rule.query((-3.0, 1.0), hp)
    (2.0, 0.0, -2.0)
    >>> rule.update((3.0, 1.0), 2.0, 4.0, hp)
    (1.0, 2.0)
    """
    rule = _DualAveraging(require_nonnegative("l1", l1))
    return Algorithm(
        name="dualavg",
        label="FedDualAvg",
        sequences=("z", "threshold"),
        couple=hyperparameters.fedavg,
        start=lambda w_0: (w_0, 0 * w_0),
        query=rule.query,
        update=rule.update,
        output=rule.output,
        leave=rule.leave,
        serve=rule.serve,
        broadcast_only=("threshold",),
        asks=("steps",),
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
