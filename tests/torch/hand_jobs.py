# SPDX-License-Identifier: Apache-2.0
"""What processes do in test_own_steps.py for rounds by hand; `workers.py` runs these jobs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedac.algorithms import get
from fedac.torch import LocalOptimizer, synchronize


def rounds(rank: int, runs: list[dict[str, Any]], **problem: Any) -> list[list[dict[str, float]]]:
    """Make runs on one quadratic per rank; return what the server holds after every round."""
    return [run_once(rank, **problem, **run) for run in runs]


def run_once(
    rank: int, targets: list[float], start: float, eta: float, method: str, steps: list[int],
    count: int,
) -> list[dict[str, float]]:  # fmt: skip
    w = nn.Parameter(torch.tensor([start], dtype=torch.float64))
    algorithm, found = get(method), []

    def backward() -> None:
        ((w - targets[rank]) ** 2 / 2).sum().backward()

    more: dict[str, Any] = {"full_gradient": backward} if "gradient" in algorithm.asks else {}
    optimizer = LocalOptimizer([w], method, lr=eta, mu=1.0, local_steps=max(steps), **more)
    averages = synchronize(optimizer)
    for _ in range(count):
        with averages.join():
            for _ in range(steps[rank]):
                optimizer.zero_grad()
                backward()
                optimizer.step()
        held = (vector.item() for vector in optimizer.snapshot(w))
        found.append(dict(zip(algorithm.state_names, held, strict=True)))
    return found
