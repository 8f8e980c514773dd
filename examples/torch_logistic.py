# SPDX-License-Identifier: Apache-2.0
"""Logistic regression in four processes, equal to the simulator step for step.

The workers draw the same rows as the simulator's workers, so that the results can be compared.
Uses a9a if $FEDAC_DATA has it, else the embedded data set:

    python examples/torch_logistic.py

or `torchrun --nproc-per-node=4 examples/torch_logistic.py`. It takes up to a minute on two idle
cores, and needs no network.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import logsigmoid

import fedac
from fedac.federation.sampling import sample_index
from fedac.torch import LocalOptimizer, synchronize

WORKERS, K, T, SEED = 4, 64, 1024, 1
L2 = 1e-3
# The best of eight step sizes each, by the simulator.
STEP_SIZES = {"fedac-i": 0.1, "fedac-ii": 0.2, "fedac-vanilla": 0.005, "fedavg": 0.2}


def load() -> fedac.Dataset:
    folder = os.environ.get("FEDAC_DATA")
    return fedac.load("a9a" if folder and (Path(folder) / "a9a").exists() else "synthetic")


def train(algorithm: str, data: fedac.Dataset) -> dict[str, object]:
    """Train as one of four processes."""
    rank = dist.get_rank()
    w = nn.Parameter(torch.from_numpy(np.random.RandomState(1).randn(data.X.shape[1])))
    optimizer = LocalOptimizer([w], algorithm, lr=STEP_SIZES[algorithm], mu=L2, local_steps=K)
    averages = synchronize(optimizer)

    rows = sample_index(SEED, rank, np.arange(T), len(data.y))
    X, y = torch.from_numpy(data.X[rows].toarray()), torch.from_numpy(data.y[rows])
    for x, label in zip(X, y, strict=True):
        optimizer.zero_grad()
        loss = L2 / 2 * (w @ w) - logsigmoid(label * (x @ w))
        loss.backward()
        optimizer.step()
    return {
        "state": torch.stack(optimizer.sequences(w)).detach().numpy(),
        "kilobytes": averages.bytes / 1e3,
        "rounds": averages.rounds,
    }


def compare(data: fedac.Dataset, results: dict[str, dict]) -> None:
    """Print how far the processes end from the simulator's workers."""
    F = fedac.LogisticRegression(data.X, data.y, l2=L2)
    best = fedac.optimum(F).value
    print(f"{data.name}: {WORKERS} processes, {T} steps each, synchronized every {K}")
    print(f"{'':14} {'rounds':>7} {'kB sent':>8} {'F - F*':>9}   distance to the simulator")
    for algorithm, result in results.items():
        (run,) = fedac.simulate(
            F, algorithm, M=WORKERS, K=K, T=T, eta=STEP_SIZES[algorithm], mu=L2, seed=SEED,
            engine="reference",
        ).runs  # fmt: skip
        distance = np.abs(result["state"] - np.stack(list(run.state.values()))).max()
        print(
            f"{algorithm:14} {result['rounds']:7} {result['kilobytes']:8.1f} "
            f"{F.value(result['state'][0]) - best:9.2e}   {distance:.1e}"
        )


def work(rank: int, folder: str) -> None:
    """Run one of the four processes that this program starts."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORKERS,
        timeout=timedelta(minutes=10),
    )  # fmt: skip
    work_together()
    dist.destroy_process_group()


def work_together() -> None:
    """Train with all algorithms; rank 0 prints the comparison."""
    torch.set_num_threads(1)
    data = load()
    results = {algorithm: train(algorithm, data) for algorithm in STEP_SIZES}
    if dist.get_rank() == 0:
        compare(data, results)


def main() -> None:
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo", timeout=timedelta(minutes=10))
        work_together()
        dist.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, (folder,), nprocs=WORKERS)


if __name__ == "__main__":
    main()
