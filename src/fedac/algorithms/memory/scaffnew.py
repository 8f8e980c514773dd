"""Scaffnew, also known as ProxSkip for local steps (arXiv 2202.09357).

Client m keeps a control variate h_m and the point y_m it sent. When the next round shows it the
new x, it learns from how far its own point was off: h_m <- h_m + (x - y_m)/(K eta). So all clients
must take part in every round: who stays away would see an x of a later round. Where the step size
falls, eta is that of the new round.
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
    """A step size and the length of a round: 1/K is ProxSkip's probability to communicate."""

    K: float


def with_scaffnew(rule: Algorithm) -> Algorithm:
    """Feed SGD g - h_m in place of g.

    Examples
    --------
    >>> scaffnew = with_scaffnew(FEDAVG)
    >>> hp = scaffnew.couple(eta=0.5, mu=1.0, K=4)
    >>> scaffnew.enter((3.0,), (0.5, 2.0), hp)  # 0.5 + (3 - 2)/(4 * 0.5)
    (3.0, 1.0)
    >>> scaffnew.update((3.0, 1.0), 3.0, 2.0, hp)
    (2.5, 1.0)
    """
    if rule is not FEDAVG:
        raise InputError(
            f"'scaffnew' is for the local rule fedavg with the plain average, not for "
            f"'{rule.name}'; 'cv' works with every rule"
        )
    return replace(
        FEDAVG,
        couple=couple,
        update=update,
        local=("w", "h"),
        memory=("h", "y"),
        enter=enter,
        leave=leave,
        first_memory=first_memory,
        everybody=True,
        echoes=(("w", "y"),),  # else the mean of all h_m would drift away from zero
    )


def couple(*, eta: float, mu: float = 1.0, K: int = 1) -> ScaffnewHyperparameters:
    """Leave the step size as it is."""
    return ScaffnewHyperparameters(eta=eta, K=K)


def first_memory(sequences: State) -> State:
    """Begin without a control variate: as if the client had sent the point it now gets."""
    return 0 * sequences[0], sequences[0]


def enter(sequences: State, memory: State, hp: ScaffnewHyperparameters) -> State:
    """Learn from the point that came of the last round."""
    (x,), (h, y) = sequences, memory
    return x, h + (x - y) / (hp.K * hp.eta)


def update(local: State, w_md: Vector, g: Vector, hp: ScaffnewHyperparameters) -> State:
    """Take a step of SGD with the corrected gradient."""
    w, h = local
    return (*FEDAVG.update((w,), w_md, g - h, hp), h)


def leave(
    local: State, sequences: State, memory: State, hp: Any, done: ClientWork
) -> tuple[State, State]:
    """Send the point, and keep it until the new one is known."""
    w, h = local
    return (w,), (h, w)
