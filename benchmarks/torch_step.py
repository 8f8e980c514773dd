"""A step of FedAc compared with one of PyTorch's SGD with Nesterov momentum, on a CPU or a GPU.

Ten million float32 parameters in 100 tensors; the optimizers take turns, because on a noisy machine
ratios mean more than times. Takes about a minute: python benchmarks/torch_step.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from fedac.torch import FedAc, LocalSGD

NUMBERS = {"lr": 0.1, "mu": 0.01, "local_steps": 16}


def parameters(tensors: int, size: int, device: str) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.randn(size, device=device)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn(size, device=device) * 1e-3
    return params


def seconds(optimizer: torch.optim.Optimizer, device: str) -> float:
    before = time.perf_counter()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--size", type=int, default=100_000, help="numbers in a tensor")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    def new() -> list[nn.Parameter]:
        return parameters(options.tensors, options.size, options.device)

    contenders = {
        "SGD, Nesterov, foreach": torch.optim.SGD(
            new(), lr=0.1, momentum=0.9, nesterov=True, foreach=True
        ),
        "SGD, Nesterov, plain": torch.optim.SGD(
            new(), lr=0.1, momentum=0.9, nesterov=True, foreach=False
        ),
        "FedAc": FedAc(new(), **NUMBERS),
        "FedAc, plain": FedAc(new(), **NUMBERS, foreach=False),
        "LocalSGD": LocalSGD(new(), lr=0.1, local_steps=16),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for step in range(options.steps + 3):
        for name, optimizer in contenders.items():
            taken = seconds(optimizer, options.device)
            if step >= 3:
                times[name].append(taken)
    yardstick = times["SGD, Nesterov, foreach"]
    print(
        f"{options.tensors} x {options.size:,} float32, {options.device}, {options.threads} threads"
    )
    print(f"{'':24} {'median ms':>10} {'ratio':>7}")
    for name, mine in times.items():
        # Ratios of steps taken at the same time, then their median: load comes and goes.
        ratio = statistics.median(a / b for a, b in zip(mine, yardstick, strict=True))
        print(f"{name:24} {1e3 * statistics.median(mine):10.1f} {ratio:7.2f}")


if __name__ == "__main__":
    main()
