# SPDX-License-Identifier: Apache-2.0
"""FedAc for PyTorch: optimizers, and a synchronizer that averages processes every K steps.

Examples
--------
>>> import torch
>>> from fedac.torch import FedAc, synchronize
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = FedAc(model.parameters(), lr=0.1, mu=0.01, local_steps=16)
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError("fedac.torch needs PyTorch: pip install torch") from error

from fedac.torch._communication import NonFiniteStateError, WorkerLostError
from fedac.torch._costs import round_seconds, traffic
from fedac.torch._optimizer import FedAc, LocalOptimizer, LocalSGD
from fedac.torch._synchronizer import Synchronizer, synchronize

__all__ = [
    "FedAc",
    "LocalOptimizer",
    "LocalSGD",
    "NonFiniteStateError",
    "Synchronizer",
    "WorkerLostError",
    "round_seconds",
    "synchronize",
    "traffic",
]
