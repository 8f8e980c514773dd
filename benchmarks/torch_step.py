# SPDX-License-Identifier: Apache-2.0
"""Cost of a FedAc step and of a round, compared with PyTorch, on a CPU or a GPU.

The yardstick of a step is SGD with Nesterov momentum, on many large tensors and on very many
small ones. The optimizers take turns, because on a noisy machine ratios mean more than times. The
yardstick of a round is a bare all-reduce of the same size; the excess is counted in copies of the
parameters, in total and for each vector that is sent: LocalSGD sends one, FedAc two
(w and w_ag) and sets w_md. Takes about two minutes: python benchmarks/torch_step.py
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from fedac.torch import FedAc, LocalOptimizer, LocalSGD, synchronize

NUMBERS = {"lr": 0.1, "mu": 0.01, "local_steps": 16}
SELDOM = {"lr": 0.1, "local_steps": 10**6}  # rounds end on request
SHAPES = ((100, 100_000), (1_000, 1_000))
YARDSTICK = "SGD, Nesterov, foreach"


def parameters(tensors: int, size: int, device: str) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.randn(size, device=device)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn(size, device=device) * 1e-3
    return params


def seconds(function: Callable[[], object], device: str) -> float:
    before = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - before


def in_turns(
    functions: dict[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, list[float]]:
    """Call all functions again and again; return the seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + 3):
        for name, function in functions.items():
            taken = seconds(function, device)
            if repeat >= 3:  # the first ones make their state
                times[name].append(taken)
    return times


def median_ratio(mine: list[float], yardstick: list[float]) -> float:
    """Return the median of ratios of what happened at the same time: load comes and goes."""
    return statistics.median(a / b for a, b in zip(mine, yardstick, strict=True))


# -- steps -------------------------------------------------------------------------------------


def compare_steps(tensors: int, size: int, options: argparse.Namespace) -> None:
    def new() -> list[nn.Parameter]:
        return parameters(tensors, size, options.device)

    def sgd(*, foreach: bool) -> torch.optim.Optimizer:
        return torch.optim.SGD(new(), lr=0.1, momentum=0.9, nesterov=True, foreach=foreach)

    contenders = {
        YARDSTICK: sgd(foreach=True),
        "SGD, Nesterov, plain": sgd(foreach=False),
        "FedAc": FedAc(new(), **NUMBERS),
        "FedAc, weight decay": FedAc(new(), **NUMBERS, weight_decay=0.01),
        "FedAc, plain": FedAc(new(), **NUMBERS, foreach=False),
        "LocalSGD": LocalSGD(new(), lr=0.1, local_steps=16),
    }
    steps = {name: optimizer.step for name, optimizer in contenders.items()}
    times = in_turns(steps, options.steps, options.device)
    print(f"{tensors:,} x {size:,} float32, {options.device}, {options.threads} threads")
    print(f"{'':24} {'median ms':>10} {'ratio':>7}")
    for name, mine in times.items():
        ratio = median_ratio(mine, times[YARDSTICK])
        print(f"{name:24} {1e3 * statistics.median(mine):10.1f} {ratio:7.2f}", flush=True)


# -- rounds ------------------------------------------------------------------------------------


def copies_per_round(
    optimizer: LocalOptimizer, sequences: int, options: argparse.Namespace
) -> float:
    """Return the median of what rounds cost beyond the all-reduce, in copies of the parameters."""
    params = optimizer.parameters()
    averages = synchronize(optimizer)
    buffer = torch.zeros(sequences * sum(p.numel() for p in params), device=options.device)
    copies = [torch.empty_like(p) for p in params]

    functions: dict[str, Callable[[], object]] = {
        "step": optimizer.step,  # a round without steps sends nothing
        "round": averages.synchronize,
        "all-reduce": lambda: dist.all_reduce(buffer),
        "copy": lambda: torch._foreach_copy_(copies, params),
    }
    times = in_turns(functions, options.rounds, options.device)
    rounds = zip(times["round"], times["all-reduce"], times["copy"], strict=True)
    return statistics.median((whole - reduced) / copied for whole, reduced, copied in rounds)


def rounds_of_rank(rank: int, meeting: str, options: argparse.Namespace) -> None:
    """Measure as one of several processes; the first one prints."""
    torch.set_num_threads(options.threads)
    dist.init_process_group(
        "nccl" if options.device == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=options.workers,
    )
    for tensors, size in SHAPES:
        new = functools.partial(parameters, tensors, size, options.device)
        fedac = copies_per_round(FedAc(new(), **SELDOM, mu=1e-8), 2, options)
        local_sgd = copies_per_round(LocalSGD(new(), **SELDOM), 1, options)
        if rank == 0:
            print(
                f"{tensors:,} x {size:,}, {options.workers} workers: copies of the parameters that "
                f"a round costs beyond its all-reduce: FedAc {fedac:.1f} ({fedac / 2:.1f} per "
                f"vector sent), LocalSGD {local_sgd:.1f}",
                flush=True,
            )
    dist.destroy_process_group()


def compare_rounds(options: argparse.Namespace) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            rounds_of_rank, (f"{folder}/meeting", options), nprocs=options.workers
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1, help="processes that end rounds together")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for tensors, size in SHAPES:
        compare_steps(tensors, size, options)
    compare_rounds(options)


if __name__ == "__main__":
    main()
