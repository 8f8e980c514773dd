# SPDX-License-Identifier: Apache-2.0
"""How small should mu be for a neural network? FedAvg and FedAc-I at several eta mu K.

Trains the network of examples/torch_digits.py with four workers, all in one process, and prints
the test loss by K, lr and eta mu K, as in the table of docs/algorithms.md. It takes five minutes:
python benchmarks/choosing_mu.py
"""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedac.algorithms import Algorithm, get
from fedac.algorithms.hyperparameters import largest_mu

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "torch_digits.py"))
WORKERS, BATCH, STEPS, SEEDS = 4, 16, 256, 2
DATA = EXAMPLE["digits"]()
NETWORK = EXAMPLE["network"]()
SHAPES = {name: p.shape for name, p in NETWORK.named_parameters()}


def logits(w: Tensor, x: Tensor) -> Tensor:
    """Return what the network says with the parameters of one vector."""
    parts = w.split([shape.numel() for shape in SHAPES.values()])
    named = {n: part.reshape(s) for (n, s), part in zip(SHAPES.items(), parts, strict=True)}
    return functional_call(NETWORK, named, (x,))


gradients = vmap(grad(lambda w, x, y: cross_entropy(logits(w, x), y)))


def test_loss(algorithm: Algorithm, lr: float, mu: float, K: int, seed: int) -> float:
    """Train, and return the loss of the output on the test images."""
    hp = algorithm.couple(eta=lr, mu=mu, K=K)
    torch.manual_seed(seed)
    w_0 = parameters_to_vector(EXAMPLE["network"]().parameters()).detach()
    state = algorithm.start(w_0.expand(WORKERS, -1))
    draw = torch.Generator().manual_seed(1000 + seed)
    rows = len(DATA["y"]) // WORKERS
    for t in range(1, STEPS + 1):
        place = torch.randint(rows, (WORKERS, BATCH), generator=draw)
        batch = place * WORKERS + torch.arange(WORKERS)[:, None]  # every fourth row is a worker's
        w_md = algorithm.query(state, hp)
        g = gradients(w_md, DATA["x"][batch], DATA["y"][batch])
        state = algorithm.update(state, w_md, g, hp)
        if t % K == 0:
            state = tuple(each.mean(0).expand(WORKERS, -1) for each in state)
    w = algorithm.output(state, hp, STEPS)[0]
    return cross_entropy(logits(w, DATA["x_test"]), DATA["y_test"]).item()


def main() -> None:
    """Print a row for every K and lr."""
    torch.set_num_threads(1)  # the tensors are small
    products = (0.3, 0.1, 0.03, 0.01, 0.003)
    print("| K | lr | FedAvg |", " | ".join(f"{product:g}" for product in products), "|")
    for K in (4, 16):
        for lr in (0.05, 0.1, 0.2):
            tries = [(get("fedavg"), 1.0)]
            tries += [(get("fedac-i"), p * largest_mu(eta=lr, K=K)) for p in products]
            losses = [
                sum(test_loss(a, lr, mu, K, seed) for seed in range(SEEDS)) / SEEDS
                for a, mu in tries
            ]
            print(f"| {K} | {lr} |", " | ".join(f"{loss:.3f}" for loss in losses), "|", flush=True)


if __name__ == "__main__":
    main()
