"""FedProx: SGD that a spring ties to the point where the round began (arXiv 1812.06127)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedac.algorithms.couplings import Hyperparameters
from fedac.algorithms.local.fedavg import FEDAVG, update
from fedac.algorithms.record import Algorithm, State, Vector
from fedac.require import require_nonnegative


@dataclass(frozen=True)
class _Prox:
    mu: float

    def update(self, local: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
        w, anchor = local
        return (*update((w,), w_md, g + self.mu * (w_md - anchor), hp), anchor)


def enter(sequences: State, memory: State, hp: Any) -> State:
    """Remember for the round where it began."""
    return sequences[0], sequences[0]


def leave(
    local: State, sequences: State, memory: State, hp: Any, steps: int
) -> tuple[State, State]:
    """Send the point alone."""
    return local[:1], memory


def make_prox(mu: float) -> Algorithm:
    """Step by w <- w - eta (g + mu (w - x)), x the point where the round began.

    Examples
    --------
    >>> rule = make_prox(0.5)
    >>> hp = rule.couple(eta=0.1, mu=1.0, K=1)
    >>> rule.update(rule.enter((3.0,), (), hp), 3.0, 2.0, hp)
    (2.8, 3.0)
    """
    return replace(
        FEDAVG,
        name="prox",
        label="FedProx",
        local=("w", "anchor"),
        update=_Prox(require_nonnegative("mu", mu)).update,
        enter=enter,
        leave=leave,
    )
