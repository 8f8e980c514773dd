# SPDX-License-Identifier: Apache-2.0
"""FedAvg, also known as Local SGD (label alg:fedavg), with its two outputs, and FedProx."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector, override
from fedac.algorithms.hyperparameters import AveragedHyperparameters, Hyperparameters
from fedac.validate import require_nonnegative


def start(w_0: Vector) -> State:
    """Start at w_0 (alg:fedavg, line 2)."""
    return (w_0,)


def query(state: State, hp: Hyperparameters) -> Vector:
    """Return w itself: FedAvg takes its gradient at its iterate (alg:fedavg, line 5)."""
    return state[0]


def update(state: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
    """Return v = w - eta g (alg:fedavg, line 6)."""
    return (w_md - hp.eta * g,)


def last_iterate(state: State, hp: Hyperparameters, t: int) -> Vector:
    """Return w_t, the point that the paper's experiments evaluate."""
    return state[0]


def weighted_update(state: State, w_md: Vector, g: Vector, hp: AveragedHyperparameters) -> State:
    """Step ``w`` and add it to the weighted sum: p' = (1 - eta mu/2) p + w.

    After T steps p is the sum of rho_t w_t with rho_t = (1 - eta mu/2)^(T-t-1)
    (theorem fedavg:a2:full).
    """
    w, p = state
    return (*update((w,), w_md, g, hp), hp.rho * p + w)


def weighted_average(state: State, hp: AveragedHyperparameters, t: int) -> Vector:
    """Return p / S_t with S_t = sum of rho_t (theorem fedavg:a2:full); w_0 before any step."""
    w, p = state
    if t == 0:
        return w
    if hp.rho == 1:  # eta mu below rounding: all weights are equal
        return p / t
    # S_t = (1 - rho^t)/(1 - rho), without cancellation when eta mu is tiny.
    total = -math.expm1(t * math.log(hp.rho)) / (1 - hp.rho)
    return p / total


FEDAVG = Algorithm(
    name="fedavg",
    label="FedAvg",
    sequences=("w",),
    couple=hyperparameters.fedavg,
    start=start,
    query=query,
    update=update,
    output=last_iterate,
)
"""FedAvg, or Local SGD: K steps of SGD, then the mean (alg:fedavg)."""

FEDAVG_WEIGHTED = replace(
    FEDAVG,
    name="fedavg-weighted",
    label="FedAvg, weighted average",
    sequences=("w", "p"),
    couple=hyperparameters.fedavg_weighted,
    start=lambda w_0: (w_0, 0 * w_0),
    update=weighted_update,
    output=weighted_average,
)
"""FedAvg whose output is the weighted average of theorem fedavg:a2:full."""


@dataclass(frozen=True)
class _Prox:
    mu: float

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        w, anchor = local
        return (*update((w,), w_md, g + self.mu * (w_md - anchor), hp), anchor)

    def enter(self, sequences: State, memory: State, hp: Any) -> State:
        (x,) = sequences
        return x, x

    def leave(
        self, local: State, sequences: State, memory: State, hp: Any, done: ClientWork
    ) -> tuple[State, State]:
        return local[:1], memory


def make_prox(mu: float) -> Algorithm:
    """Return FedProx: w <- w - eta (g + mu (w - x)), x the round's start (arXiv 1812.06127)."""
    prox = _Prox(require_nonnegative("mu", mu))
    return override(FEDAVG, prox, name="prox", label="FedProx", local=("w", "anchor"))
