# SPDX-License-Identifier: Apache-2.0
"""What overlapping communication with training costs in accuracy.

Four processes fit a logistic regression on the embedded data set. With a delay of s steps an
average is applied s steps after it was started, plus the local progress since. If all workers draw
from the same rows this costs nothing; if rows are split by label, workers drift apart, and waiting
longer for the average costs more. Beside it, what DistributedDataParallel with accumulated
gradients reaches with the bytes of FedAc:

    python examples/torch_overlap.py

It takes up to a minute on two idle cores, and needs no network.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import logsigmoid

import fedac
from fedac.federation.sampling import sample_index
from fedac.torch import LocalOptimizer, synchronize

WORKERS, K, T, BATCH, L2 = 4, 16, 512, 64, 1e-3
DELAYS = (0, 1, 2, 4, 8, 15)
# Each lr is the best of seven (FedAvg: nine) without overlap, by the value printed.
ROWS = [("same", "fedac-i", 0.5), ("same", "fedavg", 2.0),
        ("by label", "fedac-i", 0.1), ("by label", "fedavg", 0.3)]  # fmt: skip
# Steps of SGD with Nesterov's momentum, each with the gradients of 8 batches: FedAc sends two
# vectors every 16. Each lr is the best of seven.
ACCUMULATED = 8
ACCUMULATING_ROWS = [("same", 2.0), ("by label", 1.5)]


def train(
    algorithm: str, lr: float, X: torch.Tensor, y: torch.Tensor, *, delay: int, steps: int
) -> np.ndarray:
    """Train as one of four processes; return the averaged model."""
    w = nn.Parameter(torch.from_numpy(np.random.RandomState(1).randn(X.shape[1])))
    optimizer = LocalOptimizer([w], algorithm, lr=lr, mu=L2, local_steps=K)
    averages = synchronize(optimizer, overlap=delay > 0, delay_steps=delay or None)
    draws = dist.get_rank() * BATCH + np.arange(BATCH)
    for t in range(steps):
        rows = sample_index(1, draws, t, len(y))
        optimizer.zero_grad()
        (L2 / 2 * (w @ w) - logsigmoid(y[rows] * (X[rows] @ w)).mean()).backward()
        optimizer.step()
    averages.synchronize()
    optimizer.eval()
    return w.detach().numpy()


def accumulate(lr: float, X: torch.Tensor, y: torch.Tensor, *, steps: int) -> np.ndarray:
    """Train as DistributedDataParallel does, with gradients of several batches at a time."""
    w = nn.Parameter(torch.from_numpy(np.random.RandomState(1).randn(X.shape[1])))
    optimizer = torch.optim.SGD([w], lr=lr, momentum=0.9, nesterov=True)
    draws = dist.get_rank() * BATCH + np.arange(BATCH)
    for t in range(steps):
        rows = sample_index(1, draws, t, len(y))
        loss = L2 / 2 * (w @ w) - logsigmoid(y[rows] * (X[rows] @ w)).mean()
        (loss / ACCUMULATED / WORKERS).backward()
        if (t + 1) % ACCUMULATED == 0:
            dist.all_reduce(w.grad)
            optimizer.step()
            optimizer.zero_grad()
    return w.detach().numpy()


def work(rank: int, folder: str) -> None:
    """Run one of the four processes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORKERS,
        timeout=timedelta(minutes=10),
    )  # fmt: skip
    work_together(T)
    dist.destroy_process_group()


def work_together(steps: int) -> None:
    """Train with every delay; rank 0 prints the table."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    data = fedac.load("synthetic")
    X, y = torch.from_numpy(data.X.toarray()), torch.from_numpy(data.y)
    mine = {
        "same": np.arange(len(y)),
        "by label": np.array_split(np.argsort(data.y, kind="stable"), WORKERS)[rank],
    }
    F = fedac.LogisticRegression(data.X, data.y, l2=L2)
    best = fedac.optimum(F).value if rank == 0 else 0.0
    if rank == 0:
        print(f"F - F* after {steps} steps, synchronized every {K}, by steps of delay")
        print(f"{'rows':9} {'':9} {'lr':>4}" + "".join(f"{delay:>9}" for delay in DELAYS))
    for rows, algorithm, lr in ROWS:
        x, labels = X[mine[rows]], y[mine[rows]]
        models = [train(algorithm, lr, x, labels, delay=delay, steps=steps) for delay in DELAYS]
        if rank == 0:
            values = "".join(f"{F.value(w) - best:9.4f}" for w in models)
            print(f"{rows:9} {algorithm:9} {lr:4g}{values}", flush=True)
    for rows, lr in ACCUMULATING_ROWS:
        w = accumulate(lr, X[mine[rows]], y[mine[rows]], steps=steps)
        if rank == 0:
            print(f"{rows:9} {'DDP':9} {lr:4g}{F.value(w) - best:9.4f}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder,), nprocs=WORKERS)


if __name__ == "__main__":
    main()
