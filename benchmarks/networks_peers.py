# SPDX-License-Identifier: Apache-2.0
"""Networks: how long a round of pfl-research and of Flower's Ray simulation takes against ours.

    python benchmarks/networks_peers.py [mlp cnn] [--repeats 3] [--pfl-python PATH]

FedAvg with 100 clients, K=10, batch 16, float32, and the models and data of `networks.py`. Every
measurement runs in its own process and reports the wall time of a round, without start-up. Ours and
pfl-research use one thread, Flower one Ray actor per CPU. The peers' batches are drawn before the
clock starts, ours during the rounds. pfl-research can be installed in another environment:

    python -m venv /tmp/pflenv
    /tmp/pflenv/bin/pip install torch==2.13.0 "pfl[pytorch]==0.6.0"
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

# Import fedac, pfl and flwr only inside functions: no environment needs all three.

ETA = 0.01
ROUNDS = 10  # that the peers are timed for, after a first one
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 only, on Linux too
    "PYTHONPATH": str(Path(__file__).parent),
}


@functools.cache
def load(path: str) -> SimpleNamespace:
    """Return a case, with the rows of K batches for each client."""
    case = SimpleNamespace(**torch.load(path, weights_only=False))
    rng = np.random.default_rng(0)
    case.clients = []
    for m in np.unique(case.owner):
        rows = rng.choice(np.flatnonzero(case.owner == m), case.K * case.batch)
        case.clients.append((torch.as_tensor(case.X[rows]), torch.as_tensor(case.y[rows])))
    return case


def measure_ours(path: str) -> float:
    from fedac import Network, simulate

    case = load(path)
    torch.set_num_threads(1)
    task = Network(case.module, case.X, case.y, loss="cross-entropy")

    def run(rounds: int, **how: Any) -> tuple[float, str]:
        begun = time.perf_counter()
        result = simulate(task, "fedavg", clients=case.owner, participation=case.members, K=case.K,
                          batch=case.batch, rounds=rounds, eta=ETA, threads=1,
                          record_every=case.K * rounds, **how)  # fmt: skip
        return time.perf_counter() - begun, result.backend

    _, backend = run(1)
    # Start-up and the two records cost the same in both runs.
    short, long = (run(rounds, backend=backend)[0] for rounds in (1, case.rounds + 1))
    return (long - short) / case.rounds


def measure_pfl(path: str) -> float:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    case, ends = load(path), []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = case.module

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.module(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
            return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            ends.append(time.perf_counter())
            return False, Metrics()

    torch.set_num_threads(1)
    model, users = Model(), dict(enumerate(map(Dataset, case.clients)))
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS + 1, ROUNDS + 1, case.members, 0),  # evaluates in the first round
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(case.batch, 1, ETA),  # an epoch is K batches
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return (ends[-1] - ends[0]) / ROUNDS


def train_client(message: Any, context: Any) -> Any:
    """Train one Flower client."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    case = load(message.content["config"]["path"])
    X, y = case.clients[int(context.node_config["partition-id"])]
    case.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(case.module.parameters(), lr=ETA)
    for x, target in zip(X.split(case.batch), y.split(case.batch), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(case.module(x), target).backward()
        optimizer.step()
    arrays, metrics = ArrayRecord(case.module.state_dict()), MetricRecord({"num-examples": len(X)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def measure_flower(path: str) -> float:
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    case, ends = load(path), []

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            assert [reply.has_error() for reply in replies] == [False] * case.members
            ends.append(time.perf_counter())
            return super().aggregate_train(server_round, replies)

    def serve(grid: Any, context: Any) -> None:
        every = len(case.clients)
        strategy = Timed(case.members / every, 0.0, case.members, min_available_nodes=every)
        strategy.start(grid, ArrayRecord(case.module.state_dict()), ROUNDS + 1,
                       train_config=ConfigRecord({"path": path}))  # fmt: skip

    client, server = ClientApp(), ServerApp()
    client.train()(train_client)
    server.main()(serve)
    # By default a client takes two CPUs, which would leave one actor on a machine with two.
    how = {"init_args": {"address": "local"}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client, len(case.clients), backend_config=how)
    return (ends[-1] - ends[0]) / ROUNDS


def measure(python: str, function: str, path: str) -> float:
    """Return seconds per round, from a process that imports this file (Ray pickles by name)."""
    code = f"import json, networks_peers as n; print(json.dumps(n.{function}({path!r})))"
    done = subprocess.run([python, "-c", code], env={**os.environ, **ENVIRONMENT},
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(f"{function} failed:\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    from networks import BATCH, CASES, K

    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=["mlp", "cnn"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pfl-python", default=sys.executable, help="interpreter that has pfl")
    given = parser.parse_args()
    methods = {"ours": (sys.executable, "measure_ours")}
    if subprocess.run([given.pfl_python, "-c", "import pfl"], capture_output=True).returncode:
        print(f"pfl-research is not installed in {given.pfl_python}")
    else:
        methods["pfl-research"] = (given.pfl_python, "measure_pfl")
    if importlib.util.find_spec("flwr") and importlib.util.find_spec("ray"):
        methods["Flower with Ray"] = (sys.executable, "measure_flower")
    else:
        print("Flower's Ray simulation is not installed")
    for name in given.cases:
        make, (X, y, owner), _, members, _, rounds, _ = CASES[name]
        torch.manual_seed(0)
        case = {"module": make(), "X": X, "y": y, "owner": owner, "members": members, "K": K,
                "batch": BATCH, "rounds": 4 * rounds}  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "case.pt")
            torch.save(case, path)
            times = np.array([[measure(python, function, path)
                               for python, function in methods.values()]
                              for _ in range(given.repeats)])  # fmt: skip
        line = f"{name}, {members} clients a round: ours {1000 * np.median(times[:, 0]):.1f} ms"
        for peer, theirs in zip([*methods][1:], times.T[1:], strict=True):
            ratios = theirs / times[:, 0]
            line += f"; {peer} {1000 * np.median(theirs):.1f} ms, {np.median(ratios):.2f}x"
            line += f" ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
