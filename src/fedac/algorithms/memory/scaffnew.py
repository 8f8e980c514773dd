# SPDX-License-Identifier: Apache-2.0
"""Scaffnew, also known as ProxSkip for local steps (arXiv 2202.09357).

Client m keeps a control variate h_m and the point y_m that it sent. At the next broadcast x it
updates h_m <- h_m + (x - y_m)/(K eta). So all clients must participate in every round: an absent
client would miss an x. If the step size decays, eta is the step size of the new round.

If clients take different numbers of steps, K is the largest of them, the same for all: only then
does the mean of all h_m stay zero. Divided by each client's own number, the method would end at the
optimum of a loss in which clients count by their steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedac.algorithms.algorithm import Algorithm, ClientWork, State, Vector
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.algorithms.local.fedavg import FEDAVG
from fedac.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffnewHyperparameters(Hyperparameters):
    """Step size and round length: 1/K is ProxSkip's communication probability."""

    K: float


def with_scaffnew(rule: Algorithm) -> Algorithm:
    """Return SGD that steps with g - h_m instead of g."""
    if rule is not FEDAVG:
        raise InputError(
            f"'scaffnew' works only with the local rule fedavg and the plain average, not with "
            f"'{rule.name}'; 'cv' works with every rule"
        )
    return replace(
        FEDAVG,
        couple=_couple,
        update=_update,
        local=("w", "h"),
        memory=("h", "y"),
        enter=_enter,
        leave=_leave,
        first_memory=_first_memory,
        everybody=True,
        echoes=(("w", "y"),),  # otherwise the mean of h_m would drift away from zero
    )


def _couple(*, eta: float, mu: float = 1.0, K: int = 1) -> ScaffnewHyperparameters:
    return ScaffnewHyperparameters(eta=eta, K=K)


def _first_memory(sequences: State) -> State:
    (x,) = sequences
    return 0 * x, x  # as if the client had sent the broadcast point


def _enter(sequences: State, memory: State, hp: ScaffnewHyperparameters) -> State:
    (x,), (h, y) = sequences, memory
    return x, h + (x - y) / (hp.K * hp.eta)


def _update(local: State, w_md: Vector, g: Vector, hp: ScaffnewHyperparameters) -> State:
    w, h = local
    return (*FEDAVG.update((w,), w_md, g - h, hp), h)


def _leave(
    local: State, sequences: State, memory: State, hp: Any, done: ClientWork
) -> tuple[State, State]:
    w, h = local
    return (w,), (h, w)
