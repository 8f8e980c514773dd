"""FedAc, the algorithm of the paper (label alg:fedac), with its three couplings."""

from __future__ import annotations

from functools import partial

from fedac.algorithms.base import Algorithm, State, Vector, start_everywhere
from fedac.errors import InputError, unknown_name
from fedac.theory import couplings
from fedac.theory.couplings import Hyperparameters


def query(state: State, hp: Hyperparameters) -> Vector:
    """Return w_md = w / beta + (1 - 1/beta) w_ag (alg:fedac, line 5).

    Examples
    --------
    >>> hp = Hyperparameters(eta=0.1, gamma=0.2, alpha=2.0, beta=4.0)
    >>> query((8.0, 4.0), hp)
    7.0
    """
    w_ag, w = state
    return (1 / hp.beta) * w + (1 - 1 / hp.beta) * w_ag


def update(state: State, w_md: Vector, g: Vector, hp: Hyperparameters) -> State:
    """Return (v_ag, v), the candidates for the next iterates (alg:fedac, lines 7 and 8).

    Examples
    --------
    >>> hp = Hyperparameters(eta=0.5, gamma=1.0, alpha=2.0, beta=4.0)
    >>> update((8.0, 4.0), 7.0, 2.0, hp)
    (6.0, 3.5)
    """
    _, w = state
    v_ag = w_md - hp.eta * g
    v = (1 - 1 / hp.alpha) * w + (1 / hp.alpha) * w_md - hp.gamma * g
    return v_ag, v


def output(state: State, hp: Hyperparameters, t: int) -> Vector:
    """Return w_ag, the sequence the theorems bound.

    Examples
    --------
    >>> output((8.0, 4.0), couplings.fedavg(eta=1.0), 3)
    8.0
    """
    return state[0]


def _fedac(name: str, label: str, couple: couplings.Coupling) -> Algorithm:
    return Algorithm(
        name=name,
        label=label,
        sequences=("w_ag", "w"),
        couple=couple,
        start=start_everywhere(2),
        query=query,
        update=update,
        output=output,
    )


FEDAC_I = _fedac("fedac-i", "FedAc-I", couplings.fedac_i)
FEDAC_II = _fedac("fedac-ii", "FedAc-II", couplings.fedac_ii)
FEDAC_VANILLA = _fedac("fedac-vanilla", "vanilla FedAc", couplings.vanilla)

VARIANTS = {"I": FEDAC_I, "II": FEDAC_II, "vanilla": FEDAC_VANILLA}


def fedac(*, gamma: float, alpha: float, beta: float, name: str = "fedac") -> Algorithm:
    """General FedAc with hyperparameters of your own; only ``eta`` is left to choose.

    Examples
    --------
    With ``alpha = beta = 1`` and ``gamma = eta`` FedAc is FedAvg:

    >>> algorithm = fedac(gamma=0.5, alpha=1.0, beta=1.0)
    >>> hp = algorithm.couple(eta=0.5, mu=1.0, K=8)
    >>> algorithm.update((3.0, 3.0), 3.0, 2.0, hp)
    (2.0, 2.0)
    """
    couple = partial(_uncoupled, gamma=gamma, alpha=alpha, beta=beta)
    couple(eta=1.0, mu=1.0, K=1)  # refuse impossible values here, not in the first run
    return _fedac(name, "FedAc", couple)


def _uncoupled(
    *, eta: float, mu: float, K: int, gamma: float, alpha: float, beta: float
) -> Hyperparameters:
    return Hyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=beta)


def fedac_variant(
    variant: str,
    *,
    gamma: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Algorithm:
    """Return FedAc by the paper's name of its coupling, or with coefficients of your own.

    Examples
    --------
    >>> fedac_variant("II").name
    'fedac-ii'
    >>> fedac_variant("I", gamma=0.5)
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: give all of gamma, alpha and beta, or none of them
    """
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise unknown_name("variant", str(variant), VARIANTS)
    if gamma is None and alpha is None and beta is None:
        return VARIANTS[variant]
    if gamma is None or alpha is None or beta is None:
        raise InputError("give all of gamma, alpha and beta, or none of them")
    if variant != "I":
        raise InputError(
            f"variant={variant!r} chooses gamma, alpha and beta: give one or the other"
        )
    return fedac(gamma=gamma, alpha=alpha, beta=beta)
