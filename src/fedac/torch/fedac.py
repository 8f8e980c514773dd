"""FedAc, and FedAvg's local steps, as PyTorch optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedac.algorithms import FEDAVG, fedac_variant
from fedac.torch.optimizer import LocalOptimizer


class FedAc(LocalOptimizer):
    """Federated Accelerated SGD (label alg:fedac) as an optimizer.

    Parameters
    ----------
    params, lr, mu, local_steps, foreach
        See `LocalOptimizer`.
    variant : "I", "II" or "vanilla"
        The coupling of the hyperparameters.
    gamma, alpha, beta : float, optional
        All three, instead of a coupling.

    Examples
    --------
    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([4.0]))
    >>> optimizer = FedAc([w], lr=0.5, mu=0.5, local_steps=4)
    >>> for _ in range(60):
    ...     optimizer.zero_grad()
    ...     (w**2 / 2).sum().backward()
    ...     optimizer.step()
    >>> optimizer.eval()
    >>> round(w.item(), 3)
    0.0
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        mu: float,
        local_steps: int,
        *,
        variant: str = "I",
        gamma: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        foreach: bool = True,
    ) -> None:
        algorithm = fedac_variant(variant, gamma=gamma, alpha=alpha, beta=beta)
        super().__init__(params, algorithm, lr=lr, mu=mu, local_steps=local_steps, foreach=foreach)


class LocalSGD(LocalOptimizer):
    """FedAvg's local steps: plain SGD, to be synchronized every `local_steps`.

    Examples
    --------
    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([4.0]))
    >>> optimizer = LocalSGD([w], lr=0.5, local_steps=4)
    >>> (w**2 / 2).sum().backward()
    >>> optimizer.step()
    >>> w.data
    tensor([2.])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        local_steps: int,
        *,
        foreach: bool = True,
    ) -> None:
        super().__init__(params, FEDAVG, lr=lr, mu=1.0, local_steps=local_steps, foreach=foreach)
