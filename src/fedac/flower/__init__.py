# SPDX-License-Identifier: Apache-2.0
"""FedAc in a Flower federation: a strategy that survives bad clients, and a client factory.

Examples
--------
>>> from fedac.flower import LocalStrategy, client_app
>>> strategy = LocalStrategy("fedac-i", eta=0.1, mu=1e-3, local_steps=16, min_nodes=8, quorum=6)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError(
        "fedac.flower needs Flower: pip install 'flwr[simulation]>=1.41,<1.42'"
    ) from error

from fedac.flower._client.app import Model, client_app, tell_number
from fedac.flower._client.round import Step, local_steps
from fedac.flower._grid import InProcessGrid
from fedac.flower._server.aggregate import Aggregation
from fedac.flower._server.checkpoint import Checkpoint
from fedac.flower._server.replies import check_reply
from fedac.flower._server.result import FederationResult, History, QuorumError
from fedac.flower._server.strategy import FedAc, FedAvg, LocalStrategy
from fedac.flower._task import Task

if TYPE_CHECKING:
    from fedac.flower._client.torch_model import (
        TorchModel,
        load_torch_arrays,
        local_training,
        torch_arrays,
    )

__all__ = [
    "Aggregation",
    "Checkpoint",
    "FedAc",
    "FedAvg",
    "FederationResult",
    "History",
    "InProcessGrid",
    "LocalStrategy",
    "Model",
    "QuorumError",
    "Step",
    "Task",
    "TorchModel",
    "check_reply",
    "client_app",
    "load_torch_arrays",
    "local_steps",
    "local_training",
    "tell_number",
    "torch_arrays",
]


# Imported when first used, because a NumPy federation should not need PyTorch.
NEED_TORCH = ("TorchModel", "load_torch_arrays", "local_training", "torch_arrays")


def __getattr__(name: str) -> Any:
    if name in NEED_TORCH:
        return getattr(import_module("fedac.flower._client.torch_model"), name)
    raise AttributeError(f"module 'fedac.flower' has no attribute '{name}'")
