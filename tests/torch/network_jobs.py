# SPDX-License-Identifier: Apache-2.0
"""What processes do in test_networks.py; `workers.py` runs these jobs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fedac.torch import LocalOptimizer, synchronize


def train(rank: int, problem: str, runs: list[dict[str, Any]]) -> list[dict[str, Tensor]]:
    """Make runs of a network on this client's rows, and return what they end with."""
    given = torch.load(problem, weights_only=False)
    mine = given["owners"] == rank
    X, y = given["X"][mine], given["y"][mine]
    return [train_once(rank, copy.deepcopy(given["module"]), X, y, **run) for run in runs]


def train_once(
    rank: int,
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    *,
    method: str,
    weighting: str,
    lr: float,
    mu: float,
    local_steps: int,
    rounds: int,
) -> dict[str, Tensor]:
    """Make a run with full gradients; return the outputs of all rounds and the last state."""
    with torch.no_grad():
        for p in model.parameters():
            p += rank  # only rank 0 has the right start, which is broadcast
    options: dict[str, Any] = {"weighting": weighting}
    if weighting == "examples":
        options["examples"] = len(y)
    optimizer: Any
    local, *pieces = method.split("+")
    if wrapped := local == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        *state, server = pieces
        options |= {"local_steps": local_steps, "server": server}
        options |= {"state": state[0]} if state else {}
    else:
        settings = {"lr": lr, "mu": mu, "local_steps": local_steps}
        optimizer = LocalOptimizer(model.parameters(), method, **settings)
    averages = synchronize(optimizer, model, **options)

    def output() -> Tensor:
        if wrapped:
            return parameters_to_vector(model.parameters()).detach().clone()
        optimizer.eval()
        found = parameters_to_vector(model.parameters()).detach().clone()
        optimizer.train()
        return found

    outputs = []
    for _ in range(rounds):
        for _ in range(local_steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), y).backward()
            optimizer.step()
        outputs.append(output())
    ours = averages.optimizer
    held = zip(*(ours.snapshot(p) for p in ours.parameters()), strict=True)
    state = [torch.cat([part.reshape(-1) for part in vector]) for vector in held]
    return {"outputs": torch.stack(outputs), "state": torch.stack(state)}
