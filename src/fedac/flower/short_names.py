"""Short names for the usual strategies."""

from __future__ import annotations

from typing import Any

from fedac.flower.strategy import LocalStrategy


class FedAc(LocalStrategy):
    """FedAc-I (label alg:fedac), short for ``LocalStrategy("fedac-i", ...)``.

    Parameters are those of `LocalStrategy`.

    Examples
    --------
    >>> strategy = FedAc(eta=0.5, mu=0.5, local_steps=4, min_nodes=8, quorum=6)
    >>> strategy.algorithm.name, strategy.hp.gamma
    ('fedac-i', 0.5)
    """

    def __init__(self, *, eta: float, mu: float, local_steps: int, **options: Any) -> None:
        super().__init__("fedac-i", eta=eta, mu=mu, local_steps=local_steps, **options)


class FedAvg(LocalStrategy):
    """FedAvg with K local steps (label alg:fedavg), short for ``LocalStrategy("fedavg", ...)``.

    Examples
    --------
    >>> FedAvg(eta=0.5, local_steps=4).algorithm.name
    'fedavg'
    """

    def __init__(self, *, eta: float, local_steps: int, **options: Any) -> None:
        super().__init__("fedavg", eta=eta, mu=1.0, local_steps=local_steps, **options)
