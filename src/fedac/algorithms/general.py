"""FedAc with coefficients of your own."""

from __future__ import annotations

from functools import partial

from fedac.algorithms.couplings import FedAcHyperparameters
from fedac.algorithms.local.fedac import make_fedac
from fedac.algorithms.record import Algorithm


def fedac(*, gamma: float, alpha: float, beta: float, name: str | None = None) -> Algorithm:
    """General FedAc with hyperparameters of your own; only ``eta`` is left to choose.

    Examples
    --------
    With ``alpha = beta = 1`` and ``gamma = eta`` FedAc is FedAvg:

    >>> algorithm = fedac(gamma=0.5, alpha=1.0, beta=1.0)
    >>> algorithm.name
    'fedac(gamma=0.5,alpha=1,beta=1)'
    >>> hp = algorithm.couple(eta=0.5, mu=1.0, K=8)
    >>> algorithm.update((3.0, 3.0), 3.0, 2.0, hp)
    (2.0, 2.0)
    """
    couple = partial(_uncoupled, gamma=gamma, alpha=alpha, beta=beta)
    couple(eta=1.0, mu=1.0, K=1)  # refuse impossible values here, not in the first run
    coefficients = f"gamma={gamma:.12g},alpha={alpha:.12g},beta={beta:.12g}"
    label = f"FedAc ({coefficients.replace(',', ', ')})"
    return make_fedac(name or f"fedac({coefficients})", label if name is None else name, couple)


def _uncoupled(
    *, eta: float, mu: float, K: int, gamma: float, alpha: float, beta: float
) -> FedAcHyperparameters:
    return FedAcHyperparameters(eta=eta, gamma=gamma, alpha=alpha, beta=beta)
