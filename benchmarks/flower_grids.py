# SPDX-License-Identifier: Apache-2.0
"""Seconds a round of the same Flower app by InProcessGrid and by Flower's Ray simulation.

python benchmarks/flower_grids.py [cores]: 50 nodes, logistic regression on scikit-learn's digits,
Flower's own FedAvg and a plain ClientApp with one local epoch, in PyTorch and in NumPy; then the
same messages to a client that only sends them back, which shows the overhead of the grids. The
variants alternate round by round, so that load on the machine affects all of them equally. The
first round of Ray includes the start-up of `run_simulation`. Its clients get 2 cores each, as in
Flower (default; the argument changes it).
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from functools import cache, partial

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",  # in Ray too, which sets it to the cores of a client
}

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from fedac.flower import InProcessGrid

NODES, ROUNDS, BATCH, LR = 50, 11, 16, 0.5
client = ClientApp()


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return np.float32(X / 16), y


@client.train()
def train(message: Message, context: Context) -> Message:
    own = slice(int(context.node_config["partition-id"]), None, NODES)
    X, y = (part[own] for part in digits())
    epoch = EPOCHS[message.content["config"]["library"]]
    arrays, loss = epoch(message.content["arrays"], X, y)
    metrics = MetricRecord({"num-examples": len(X), "loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def torch_epoch(arrays: ArrayRecord, X, y) -> tuple[ArrayRecord, float]:
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    model = torch.nn.Linear(64, 10)
    model.load_state_dict(arrays.to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in torch.arange(len(X)).split(BATCH):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X[rows]), y[rows])
        loss.backward()
        optimizer.step()
    return ArrayRecord(model.state_dict()), float(loss.detach())


def numpy_epoch(arrays: ArrayRecord, X, y) -> tuple[ArrayRecord, float]:
    weight, bias = (array.numpy() for array in arrays.values())
    for start in range(0, len(X), BATCH):
        rows, labels = X[start : start + BATCH], y[start : start + BATCH]
        p = np.exp(rows @ weight.T + bias)
        p /= p.sum(axis=1, keepdims=True)
        each = np.arange(len(rows))
        loss = -np.log(p[each, labels]).mean()
        p[each, labels] -= 1
        weight -= LR / len(rows) * (p.T @ rows)
        bias -= LR * p.mean(axis=0)
    return ArrayRecord({"weight": Array(weight), "bias": Array(bias)}), float(loss)


EPOCHS = {"PyTorch": torch_epoch, "NumPy": numpy_epoch}


@client.query()
def send_back(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def one_round(library: str, grid, arrays: ArrayRecord) -> tuple[ArrayRecord, float]:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    result = strategy.start(
        grid, arrays, num_rounds=1, train_config=ConfigRecord({"library": library})
    )
    return result.arrays, result.train_metrics_clientapp[1]["loss"]


def nothing(grid, arrays: ArrayRecord) -> tuple[ArrayRecord, float]:
    content = RecordDict({"arrays": arrays})
    asked = [Message(content, node, "query") for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked))
    return arrays, float(len(replies))


def compare(grids, began: float) -> None:
    print(f"{NODES} nodes, medians of {ROUNDS - 1} rounds")
    works = {library: partial(one_round, library) for library in EPOCHS}
    for name, work in (works | {"nothing": nothing}).items():
        torch.manual_seed(1)
        start = ArrayRecord(torch.nn.Linear(64, 10).state_dict())
        arrays, result = dict.fromkeys(grids, start), {}
        seconds: dict[str, list[float]] = {way: [] for way in grids}
        for _ in range(ROUNDS):
            for way, grid in grids.items():
                before = began or time.monotonic()
                arrays[way], result[way] = work(grid, arrays[way])
                seconds[way].append(time.monotonic() - before)
                began = 0.0
        later = {way: statistics.median(each[1:]) for way, each in seconds.items()}
        for way, each in seconds.items():
            print(
                f"{name:7}  {way:24}  first round {each[0]:6.2f} s, later {later[way]:7.4f} s: "
                f"{later['Ray'] / later[way]:5.1f} times as fast as Ray; result {result[way]:.6f}",
                flush=True,
            )


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, began = ServerApp(), time.monotonic()

    @server.main()
    def take_turns(ray, context):
        # Clients by reference, as in an app that Flower imports; this file is then imported once.
        with InProcessGrid(app.client, NODES, workers=2) as workers:
            grids = {"Ray": ray, "InProcessGrid": InProcessGrid(app.client, NODES)}
            compare(grids | {"InProcessGrid, 2 workers": workers}, began)

    import flower_grids as app

    resources = {"client_resources": {"num_cpus": int((sys.argv[1:] or [2])[0])}}
    run_simulation(server, app.client, num_supernodes=NODES, backend_config=resources)


if __name__ == "__main__":
    main()
