"""The paper's algorithms as Flower strategies."""

from __future__ import annotations

from typing import Any

from fedac.algorithms import FEDAVG, fedac_variant
from fedac.algorithms.local.fedac import VARIANTS
from fedac.errors import InputError, unknown_name
from fedac.flower.strategy import LocalStrategy


class FedAc(LocalStrategy):
    """Federated Accelerated SGD (label alg:fedac) as a Flower strategy.

    Parameters
    ----------
    variant : "I", "II", "vanilla" or "fedavg"
        The coupling of the hyperparameters.
    eta, mu, local_steps
        See `LocalStrategy`, also for all other options.
    gamma, alpha, beta : float, optional
        All three, instead of a coupling.

    Examples
    --------
    >>> strategy = FedAc(variant="I", eta=0.5, mu=0.5, local_steps=4, min_nodes=8, quorum=6)
    >>> strategy.hp.gamma, strategy.quorum
    (0.5, 6)
    """

    def __init__(
        self,
        *,
        variant: str = "I",
        eta: float,
        mu: float,
        local_steps: int,
        gamma: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        **options: Any,
    ) -> None:
        # One switch for both is what an app's configuration wants.
        own = {"gamma": gamma, "alpha": alpha, "beta": beta}
        names = (*VARIANTS, "fedavg")
        if not isinstance(variant, str) or variant not in names:
            raise unknown_name("variant", str(variant), names)
        fedavg = variant == "fedavg"
        if fedavg and any(value is not None for value in own.values()):
            raise InputError("variant='fedavg' has no gamma, alpha and beta to choose")
        algorithm = FEDAVG if fedavg else fedac_variant(variant, **own)
        super().__init__(algorithm, eta=eta, mu=mu, local_steps=local_steps, **options)


class FedAvg(LocalStrategy):
    """FedAvg with K local steps (label alg:fedavg), through the same path as `FedAc`.

    Examples
    --------
    >>> FedAvg(eta=0.5, local_steps=4).algorithm.name
    'fedavg'
    """

    def __init__(self, *, eta: float, local_steps: int, **options: Any) -> None:
        super().__init__(FEDAVG, eta=eta, mu=1.0, local_steps=local_steps, **options)
