# SPDX-License-Identifier: Apache-2.0
"""A small convolutional net on handwritten digits: accuracy against megabytes sent.

Four processes with a quarter of the images each train with FedAc, LocalSGD, and SGD under
DistributedDataParallel, all with the same number of gradients. Prints a table and draws a figure:

    python examples/torch_digits.py --figure digits.png

It takes up to a minute on two idle cores, and needs no network.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy

from fedac.torch import FedAc, LocalSGD, synchronize

WORKERS, BATCH = 4, 16


class Setting(NamedTuple):
    """One method and its settings; `K` steps between synchronizations."""

    label: str
    method: str
    lr: float
    K: int
    mu: float = 0.0
    momentum: float = 0.0


# The best by test loss (one seed, 512 steps) of lr = 0.05, 0.1, 0.2, 0.4; with momentum of 0.02,
# 0.05, 0.1; for FedAc with mu = 0.01, 0.03, 0.1, and below lr = 0.4 also 0.3 and 1, the most tries.
SETTINGS = [
    Setting("DDP, SGD", "ddp", lr=0.2, K=1),
    Setting("DDP, SGD with momentum", "ddp", lr=0.05, K=1, momentum=0.9),
    Setting("LocalSGD, K=16", "local-sgd", lr=0.2, K=16),
    Setting("FedAc, K=16", "fedac", lr=0.1, K=16, mu=0.03),
]


def digits() -> dict[str, torch.Tensor]:
    """Return images, scaled, and labels; a quarter of them are for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(data.target)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    test = len(labels) // 4
    return {
        "x": images[order[test:]], "y": labels[order[test:]],
        "x_test": images[order[:test]], "y_test": labels[order[:test]],
    }  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(setting: Setting, data: dict[str, torch.Tensor], steps: int, seed: int) -> np.ndarray:
    """Train as one of four processes; return rows of megabytes, accuracy and loss."""
    rank = dist.get_rank()
    torch.manual_seed(seed)
    model = network()
    size = sum(p.nbytes for p in model.parameters())
    if setting.method == "fedac":
        optimizer: Any = FedAc(model.parameters(), setting.lr, setting.mu, setting.K)
    elif setting.method == "local-sgd":
        optimizer = LocalSGD(model.parameters(), setting.lr, setting.K)
    else:
        optimizer = torch.optim.SGD(model.parameters(), setting.lr, momentum=setting.momentum)
    local = setting.method != "ddp"
    averages = synchronize(optimizer) if local else None
    forward = model if local else nn.parallel.DistributedDataParallel(model)

    x, y = (data[name][rank::WORKERS] for name in "xy")
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    rows = []
    for step in range(1, steps + 1):
        batch = torch.randint(len(y), (BATCH,), generator=draw)
        optimizer.zero_grad()
        cross_entropy(forward(x[batch]), y[batch]).backward()
        optimizer.step()
        if step % 16 == 0 and rank == 0:
            sent = averages.bytes if averages else step * size
            if local:
                optimizer.eval()
            rows.append([sent / 1e6, *test(model, data)])
            if local:
                optimizer.train()
    return np.array(rows)


@torch.no_grad()
def test(model: nn.Module, data: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return accuracy and loss on the test images."""
    logits, labels = model(data["x_test"]), data["y_test"]
    accuracy = (logits.argmax(1) == labels).float().mean()
    return accuracy.item(), cross_entropy(logits, labels).item()


def work(rank: int, folder: str, steps: int, seeds: int) -> None:
    """Run one of the four processes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORKERS,
        timeout=timedelta(minutes=10),
    )  # fmt: skip
    work_together(folder, steps, seeds)
    dist.destroy_process_group()


def work_together(folder: str, steps: int, seeds: int) -> None:
    """Train with all methods; rank 0 saves the curves."""
    torch.set_num_threads(1)
    data = digits()
    curves = [[train(setting, data, steps, seed) for seed in range(seeds)] for setting in SETTINGS]
    if dist.get_rank() == 0:
        np.save(f"{folder}/curves.npy", np.array(curves))


def run(steps: int, seeds: int) -> np.ndarray:
    """Return curves: setting, seed, record, then megabytes, accuracy and loss."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, steps, seeds), nprocs=WORKERS)
        return np.load(f"{folder}/curves.npy")


def show(curves: np.ndarray) -> None:
    print(f"{'':24} {'lr':>5} {'MB sent':>8} {'MB to 95 %':>10} {'accuracy':>9} {'test loss':>10}")
    for setting, runs in zip(SETTINGS, curves, strict=True):
        sent, accuracy, loss = runs.mean(axis=0).T
        reached = np.flatnonzero(accuracy >= 0.95)
        first = f"{sent[reached[0]]:.2f}" if len(reached) else "-"
        print(
            f"{setting.label:24} {setting.lr:5g} {sent[-1]:8.2f} {first:>10} "
            f"{accuracy[-1]:9.3f} {loss[-1]:10.4f}"
        )


def draw(curves: np.ndarray, path: Path) -> None:
    from matplotlib.figure import Figure

    from fedac.plotting import style

    looks = {
        ("ddp", 0.0): style("mb-sgd"),
        ("ddp", 0.9): style("mb-ac-sgd"),
        ("local-sgd", 0.0): style("fedavg"),
        ("fedac", 0.0): style("fedac-i"),
    }
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    ax = figure.subplots()
    for setting, runs in zip(SETTINGS, curves, strict=True):
        look = looks[setting.method, setting.momentum]
        sent, accuracy, _ = runs.mean(axis=0).T
        ax.plot(sent, 100 * accuracy, color=look.colour, lw=1.6, label=setting.label,
                marker=look.marker, ms=5, markevery=(3, 4))  # fmt: skip
    ax.set_xscale("log")
    ax.set(
        xlabel="megabytes sent per worker",
        ylabel="test accuracy, %",
        ylim=(50, 101),
        title=f"Digits, {WORKERS} workers, the same number of gradients",
    )
    ax.xaxis.set_major_formatter("{x:g}")
    ax.grid(True, color="0.9")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=384, help="steps of every worker, a multiple of 16"
    )
    parser.add_argument("--seeds", type=int, default=2, help="number of runs to average")
    parser.add_argument(
        "--figure", type=Path, help="file for the figure of accuracy against megabytes"
    )
    options = parser.parse_args()
    curves = run(options.steps, options.seeds)
    show(curves)
    if options.figure:
        draw(curves, options.figure)


if __name__ == "__main__":
    main()
