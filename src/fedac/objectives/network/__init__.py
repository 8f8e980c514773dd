# SPDX-License-Identifier: Apache-2.0
"""Networks: any `torch.nn.Module` with its data and loss, as an objective on flat parameters."""

from importlib.util import find_spec

from fedac.errors import MissingPackageError

if find_spec("torch") is None:
    raise MissingPackageError("networks need PyTorch: pip install torch")

from fedac.objectives.network.losses import LOSSES
from fedac.objectives.network.objective import Network
from fedac.objectives.network.placed import Placed

__all__ = ["LOSSES", "Network", "Placed"]
