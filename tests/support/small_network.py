# SPDX-License-Identifier: Apache-2.0
"""A small network in float64 with four clients that differ, and its runs in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedac import Network, simulate

K, ROUNDS, ETA, MU, SEED = 3, 4, 0.2, 0.3, 7
SIZES = (2, 5, 9, 20)  # rows of the clients
METHODS = (
    "fedavg", "scaffold", "fedac-i", "fedac-i+cv+nesterov(1,0.3)", "fedavg+nesterov(0.7,0.9)",
)  # fmt: skip
SERVER = "nesterov(0.7,0.9)"
DILOCO = f"adamw+{SERVER}"  # in PyTorch: AdamW, synchronized with this server rule


def make_module() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def make_data() -> tuple[torch.Tensor, torch.Tensor, npt.NDArray[np.int64]]:
    """Return rows, labels, which depend on the client, and the client of every row."""
    rng = np.random.default_rng(0)
    owners = rng.permutation(np.repeat(np.arange(4), SIZES))
    labels = (owners + (rng.random(len(owners)) < 0.3)) % 3
    X = rng.standard_normal((len(owners), 4)) + labels[:, None] / 2
    return torch.tensor(X), torch.tensor(labels), owners


@dataclass(frozen=True)
class Simulated:
    """The output after every round, and the last state of the server."""

    outputs: npt.NDArray[Any]
    state: dict[str, npt.NDArray[Any]]  # by name


def simulated(method: str, **options: Any) -> Simulated:
    """Run a method with full gradients."""
    X, y, owners = make_data()
    outputs: list[npt.NDArray[Any]] = []
    result = simulate(
        Network(make_module(), X, y), method, clients=owners, batch="full", K=K, rounds=ROUNDS,
        eta=ETA, mu=MU, seed=SEED, precision="float64", threads=1, record_every=K,
        callbacks=[lambda record: outputs.append(record.w)], **options,
    )  # fmt: skip
    return Simulated(np.stack(outputs[1:]), result.runs[0].state)
