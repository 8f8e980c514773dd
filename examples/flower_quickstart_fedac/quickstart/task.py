# SPDX-License-Identifier: Apache-2.0
"""The model, its data, and what a client does with them."""

from functools import lru_cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HELD_OUT = 300  # images for validation, and the same number for testing


class Net(nn.Sequential):
    """A convolution and a linear layer, 5,450 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip


@lru_cache(maxsize=1)
def load_images() -> dict[str, TensorDataset]:
    """Return "test", "validation" and "train": 1,797 images of 8 by 8 pixels, in a fixed order."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order, None] / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(data.target[order])
    parts = {
        "test": slice(HELD_OUT),
        "validation": slice(HELD_OUT, 2 * HELD_OUT),
        "train": slice(2 * HELD_OUT, None),
    }
    return {name: TensorDataset(images[rows], labels[rows]) for name, rows in parts.items()}


@lru_cache(maxsize=8)
def split_by_label(clients: int, dirichlet: float, seed: int) -> list[torch.Tensor]:
    """Return every client's images: of each digit, shares drawn from a Dirichlet distribution."""
    rng = np.random.default_rng(seed)
    _, labels = load_images()["train"].tensors
    rows: list[list[int]] = [[] for _ in range(clients)]
    for digit in range(10):
        found = rng.permutation(np.flatnonzero(labels == digit))
        shares = rng.dirichlet(np.full(clients, dirichlet))
        cuts = (np.cumsum(shares)[:-1] * len(found)).astype(int)
        for mine, part in zip(rows, np.split(found, cuts), strict=True):
            mine.extend(part.tolist())
    return [torch.tensor(mine) for mine in rows]


def load_data(part: int, parts: int, config: dict) -> tuple[DataLoader, TensorDataset]:
    """Return one client's images: batches to train on, and a fifth held out."""
    rows = split_by_label(parts, float(config["dirichlet"]), int(config["seed"]))[part]
    rows = rows[torch.from_numpy(np.random.default_rng(part).permutation(len(rows)))]
    images, labels = load_images()["train"].tensors
    held_out, mine = (
        TensorDataset(images[some], labels[some])
        for some in (rows[: len(rows) // 5], rows[len(rows) // 5 :])
    )
    return DataLoader(mine, batch_size=int(config["batch-size"]), shuffle=True), held_out


def train(model: nn.Module, loader: DataLoader, epochs: int, optimizer) -> float:
    """Train and return the mean loss."""
    model.train()
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def test(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Return the loss and the accuracy."""
    model.eval()
    images, labels = data.tensors
    scores = model(images)
    right = (scores.argmax(dim=1) == labels).float().mean()
    return nn.functional.cross_entropy(scores, labels).item(), right.item()
