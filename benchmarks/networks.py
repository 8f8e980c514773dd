# SPDX-License-Identifier: Apache-2.0
"""Networks: the network engine against a plain PyTorch loop over clients, as ratios of one run.

    python benchmarks/networks.py [softmax mlp mlp-sweep cnn gpt memory]

FedAvg with 100 clients, K=10, batch 16, float32, one thread; client-steps per second over those of
the plain loop, medians of interleaved repeats. ``compiled`` uses `torch.compile`.
"""

from __future__ import annotations

import argparse
import copy
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedac import Network, models, simulate

CLIENTS, K, BATCH = 100, 10, 16
REPEATS = 5


def images(pixels: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 50 * CLIENTS
    X = rng.standard_normal((n, pixels)).astype(np.float32)
    return X, rng.integers(0, classes, n), np.arange(n) % CLIENTS


def sequences(context: int, letters: int) -> tuple[np.ndarray, None, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 20 * CLIENTS
    return rng.integers(0, letters, (n, context + 1)), None, np.arange(n) % CLIENTS


def plain_loop(module: nn.Module, X, y, owner, members: int, rounds: int) -> float:
    """Return client-steps per second of FedAvg as people write it."""
    rows = [np.flatnonzero(owner == m) for m in range(CLIENTS)]
    inputs = torch.as_tensor(X)
    targets = None if y is None else torch.as_tensor(y)
    server = copy.deepcopy(module)
    client = copy.deepcopy(module)
    optimizer = torch.optim.SGD(client.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    begun = time.process_time()
    for _ in range(rounds):
        total = {name: torch.zeros_like(v) for name, v in server.state_dict().items()}
        for m in rng.choice(CLIENTS, members, replace=False):
            client.load_state_dict(server.state_dict())
            client.train()
            for _ in range(K):
                which = torch.as_tensor(rng.choice(rows[m], BATCH))
                x = inputs[which]
                optimizer.zero_grad()
                if targets is None:
                    loss = functional.cross_entropy(
                        client(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()
                    )
                else:
                    loss = functional.cross_entropy(client(x), targets[which])
                loss.backward()
                optimizer.step()
            for name, value in client.state_dict().items():
                total[name] += value / members
        server.load_state_dict(total)
    return rounds * members * K / (time.process_time() - begun)


def ours(task: Network, owner, members: int, rounds: int, etas: list[float], **how) -> float:
    def run(rounds: int) -> float:
        begun = time.process_time()
        simulate(task, "fedavg", clients=owner, participation=members, K=K, batch=BATCH,
                 rounds=rounds, eta=etas, record_every=K * rounds, threads=1, **how)  # fmt: skip
        return time.process_time() - begun

    # Start-up and the two records cost the same in both runs.
    return rounds * members * K * len(etas) / (run(rounds + 1) - run(1))


CASES = {
    # name: module, data, loss, clients in a round, rounds of the loop and of ours, step sizes
    "softmax": (lambda: nn.Linear(64, 10), images(64, 10), "cross-entropy", 100, 4, 60, 1),
    "mlp": (lambda: models.mlp(128)((64,), 10), images(64, 10), "cross-entropy", 100, 4, 30, 1),
    "mlp-sweep": (
        lambda: models.mlp(128)((64,), 10),
        images(64, 10),
        "cross-entropy",
        10,
        30,
        20,
        13,
    ),
    "cnn": (lambda: models.cnn((784,), 10), images(784, 10), "cross-entropy", 10, 5, 5, 1),
    "gpt": (
        lambda: models.char_gpt(2, 64, 64)((64,), 65),
        sequences(64, 65),
        "next-token",
        4,
        3,
        3,
        1,
    ),
}


def compare(name: str, compiled: bool) -> None:
    make, (X, y, owner), loss, members, slow, fast, lanes = CASES[name]
    torch.manual_seed(0)
    module = make()
    task = Network(module, X, y, loss=loss)
    etas = list(np.geomspace(1e-3, 1e-2, lanes))
    how: dict = {"backend": "batched", "compile": True} if compiled else {}
    ratios, backend = [], ""
    if not how:
        chosen = simulate(task, "fedavg", clients=owner, participation=members, K=K, batch=BATCH,
                          rounds=1, eta=etas, threads=1)  # fmt: skip
        backend = chosen.backend
        how = {"backend": backend}
    for _ in range(REPEATS):
        loop = plain_loop(module, X, y, owner, members, slow)
        ratios.append(ours(task, owner, members, fast, etas, **how) / loop)
    what = "compiled" if compiled else backend
    print(f"{name}, {members} clients a round, {lanes} step sizes, {what}: "
          f"{np.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) of a plain loop of "
          f"{loop:,.0f} client-steps/s", flush=True)  # fmt: skip


def peak_memory(clients: int) -> None:
    """Print the peak memory of this process after rounds of that many clients."""
    rng = np.random.default_rng(0)
    n = 10_000
    X, y = rng.standard_normal((n, 64)).astype(np.float32), rng.integers(0, 10, n)
    task = Network(models.mlp(128)((64,), 10), X, y)
    simulate(task, "fedavg", clients=np.arange(n) % clients, K=2, batch=BATCH, rounds=2, eta=0.01)
    # Not ru_maxrss, which a process inherits from its parent.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=[*CASES, "memory"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--clients", type=int)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.clients:
        return peak_memory(given.clients)
    for name in given.cases:
        if name == "memory":
            few, many = (
                float(subprocess.run([sys.executable, __file__, "--clients", str(count)],
                                     check=True, capture_output=True, text=True).stdout)
                for count in (100, 10_000)
            )  # fmt: skip
            print(f"peak memory: {few:.0f} MB with 100 clients, {many:.0f} MB with 10,000: "
                  f"{many / few:.2f}x")  # fmt: skip
        else:
            compare(name, given.compile)


if __name__ == "__main__":
    main()
