# SPDX-License-Identifier: Apache-2.0
"""FedAc, the algorithm of the paper (label alg:fedac): its update, and its three couplings."""

from __future__ import annotations

from fedac.algorithms import hyperparameters
from fedac.algorithms.algorithm import Algorithm, State, Vector
from fedac.algorithms.hyperparameters import FedAcHyperparameters


def start(w_0: Vector) -> State:
    """Start both sequences at w_0 (alg:fedac, line 2)."""
    return w_0, w_0


def query(state: State, hp: FedAcHyperparameters) -> Vector:
    """Return w_md = w / beta + (1 - 1/beta) w_ag (alg:fedac, line 5)."""
    w_ag, w = state
    return (1 / hp.beta) * w + (1 - 1 / hp.beta) * w_ag


def update(state: State, w_md: Vector, g: Vector, hp: FedAcHyperparameters) -> State:
    """Return (v_ag, v), the candidates for the next iterates (alg:fedac, lines 7 and 8).

    Examples
    --------
    >>> hp = FedAcHyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> update((8.0, 4.0), 7.0, 2.0, hp)
    (6.0, 3.5)
    """
    _, w = state
    v_ag = w_md - hp.eta * g
    v = (1 - 1 / hp.alpha) * w + (1 / hp.alpha) * w_md - hp.gamma * g
    return v_ag, v


def output(state: State, hp: FedAcHyperparameters, t: int) -> Vector:
    """Return w_ag, the sequence the theorems bound."""
    return state[0]


def make_fedac(name: str, label: str, couple: hyperparameters.Coupling) -> Algorithm:
    """Return FedAc with the given coupling."""
    return Algorithm(
        name=name,
        label=label,
        sequences=("w_ag", "w"),
        couple=couple,
        start=start,
        query=query,
        update=update,
        output=output,
    )


FEDAC_I = make_fedac("fedac-i", "FedAc-I", hyperparameters.fedac_i)
"""FedAc with the coupling of equation (fedaci)."""
FEDAC_II = make_fedac("fedac-ii", "FedAc-II", hyperparameters.fedac_ii)
"""FedAc with the coupling of equation (fedacii)."""
FEDAC_VANILLA = make_fedac("fedac-vanilla", "vanilla FedAc", hyperparameters.vanilla)
"""FedAc with the coupling of accelerated SGD on one machine, for any K."""
