# SPDX-License-Identifier: Apache-2.0
"""The lines of a verdict run, and do what the simulator did."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_network as small
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

import fedac
from fedac.algorithms import get
from fedac.algorithms.checks import needs_mu
from fedac.experiments.comparison.handover import SIMULATOR_ONLY, hand_over
from fedac.experiments.comparison.question import NETWORK_METHODS
from fedac.experiments.comparison.table import NO_BAND, Row
from fedac.federation.spec import Spec
from fedac.torch import LocalOptimizer, synchronize

TUNED = ("fedavg+nesterov(1.4,0.6)", "fedavg+adam(0.03,0.9,0.99,0.001)+cv")
OTHERS = (
    "mimelite(0.5)",
    "scaffold-m",
    "mb-ac-sgd",
    "adamw(0.8,0.99,1e-06,0.1)+momentum(1,0.5)",
    "fedac.algorithms:FEDAC_II",
)
METHODS = (*NETWORK_METHODS, *TUNED, *OTHERS)
K, ROUNDS, ETA, MU = small.K, small.ROUNDS, small.ETA, small.MU
X, Y, _ = small.make_data()
RESULT = {"all_clients": False, "reached": None, "seeds_reached": 0}
BANDS = dict.fromkeys(("rounds", "megabytes", "seconds", "suboptimality", "smallest"), NO_BAND)


def as_algorithm(method: str) -> fedac.Algorithm:
    return fedac.algorithms.FEDAC_II if ":" in method else get(method)


def make_row(method: str, wire: str = "float32") -> Row:
    algorithm = as_algorithm(method)
    mu = MU if needs_mu(algorithm, eta=ETA, K=K) else None
    setting = {"algorithm": algorithm.name, "eta": ETA, "mu": mu}
    return Row(method=method, K=K, wire=wire, **setting, **RESULT, **BANDS)


def lines(method: str, wire: str = "float32", **options) -> list[str]:
    usual = {"model": "mlp", "clients": 2, "batch": "full"}
    return hand_over(make_row(method, wire), Spec(**usual | options))


def code(said: list[str], *starts: str) -> list[str]:
    """Return the lines of code that begin with these words, each valid Python of its own."""
    found = [line for line in said if line.startswith(starts)]
    assert len(found) == len(starts)
    for line in found:
        ast.parse(line)
        assert len(line) < 160
    return found


def simulated(method: str, clients: int):
    owners = np.where(np.arange(len(Y)) % 5 < 4, 0, clients - 1)  # a second one has fewer rows
    task = fedac.Network(small.make_module(), X, Y)
    result = fedac.simulate(
        task, as_algorithm(method), clients=owners, batch="full", K=K, rounds=ROUNDS, eta=ETA,
        mu=MU, precision="float64", threads=1,
    )  # fmt: skip
    return owners, result.runs[0].w


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make this process a process group of its own."""
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("method", METHODS)
def test_the_lines_for_pytorch_run_as_simulated(method):
    model = small.make_module()
    names = {
        "LocalOptimizer": LocalOptimizer, "synchronize": synchronize, "torch": torch,
        "fedac": fedac, "model": model, "dataset": X,
        "full_gradient": lambda: cross_entropy(model(X), Y).backward(),
    }  # fmt: skip
    for line in code(lines(method), "optimizer = ", "synchronize("):
        exec(line, names)
    optimizer = names["optimizer"]
    for _ in range(ROUNDS * (1 if method.startswith("mb-") else K)):
        optimizer.zero_grad()
        cross_entropy(model(X), Y).backward()
        optimizer.step()
    if isinstance(optimizer, LocalOptimizer):
        assert optimizer.rounds == ROUNDS
        optimizer.eval()
    mine = parameters_to_vector(model.parameters()).detach()
    _, theirs = simulated(method, clients=1)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_line_for_flower_runs_as_simulated(method, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    pytest.importorskip("flwr", reason="Flower is not installed: make install")
    from fedac.flower import InProcessGrid, LocalStrategy, TorchModel, client_app, torch_arrays

    names = {"LocalStrategy": LocalStrategy, "fedac": fedac}
    said = lines(method)
    (line,) = code(said, "strategy = ")
    exec(line, names)
    strategy = names["strategy"]
    if method.startswith("adamw"):  # what tests/flower/test_networks.py does
        assert said[-1].startswith("Clients pass the AdamW above to local_training")
        assert get(strategy.algorithm).server == get(method).server
        return
    if method.startswith("mimelite"):
        assert said[-1] == "Clients with a loop of their own pass full_gradient to local_training."
        said.pop()
    assert said[-1] == line
    owners, theirs = simulated(method, clients=2)

    def load(context):
        mine = owners == context.node_config["partition-id"]
        return X[mine], Y[mine]

    def loss(module, batch):
        return cross_entropy(module(batch[0]), batch[1])

    module = small.make_module()
    app = client_app(load, lambda data: TorchModel(module, data, loss, batch_size="full"))
    start = torch_arrays(small.make_module())
    result = strategy.start(InProcessGrid(app, 2), start, num_rounds=ROUNDS)
    mine = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wire", ["int8", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_options_that_are_not_the_default_are_handed_over(method, wire, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    pytest.importorskip("flwr", reason="Flower is not installed: make install")
    from fedac.flower import LocalStrategy

    said = lines(method, wire, clients=40, participation=0.25, weighting="uniform", batch=8)
    names = {
        "LocalOptimizer": LocalOptimizer, "synchronize": synchronize, "torch": torch,
        "fedac": fedac, "model": small.make_module(), "dataset": X, "LocalStrategy": LocalStrategy,
        "full_gradient": list,
    }  # fmt: skip
    for line in code(said, "optimizer = ", "synchronize(", "strategy = "):
        assert "examples" not in line
        exec(line, names)
    assert said[2].endswith(f', wire="{wire}")')
    strategy = names["strategy"]
    assert (strategy.wire, strategy.sample, strategy.weighting) == (wire, 0.25, "uniform")
    assert "PyTorch has no client sampling: all processes train in every round." in said


def test_what_is_said():
    assert lines("fedac-i+cv", clients=40, participation=10, batch=8) == [
        "To run it on batches of 8 rows in PyTorch (fedac.torch):",
        'optimizer = LocalOptimizer(model.parameters(), "fedac-i+cv", lr=0.2, local_steps=3, '
        "mu=0.3)",
        'synchronize(optimizer, model, weighting="examples", examples=len(dataset))',
        "PyTorch has no client sampling: all processes train in every round.",
        "In Flower (fedac.flower):",
        'strategy = LocalStrategy("fedac-i+cv", eta=0.2, local_steps=3, mu=0.3, '
        'weighting="examples", sample=10)',
    ]
    assert lines("mb-sgd", clients=None, workers=4, batch=8) == [
        "To run it as FedAvg with one step of 24 rows per round in PyTorch (fedac.torch):",
        'optimizer = LocalOptimizer(model.parameters(), "fedavg", lr=0.2, local_steps=1)',
        "synchronize(optimizer, model)",
        "In Flower (fedac.flower):",
        'strategy = LocalStrategy("fedavg", eta=0.2, local_steps=1)',
    ]
    assert lines("adamw+nesterov(0.7,0.9)", weighting="uniform")[1:] == [
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.2)",
        'synchronize(optimizer, model, local_steps=3, server="nesterov(0.7,0.9)")',
        "In Flower (fedac.flower):",
        'strategy = LocalStrategy("fedavg+nesterov(0.7,0.9)", eta=0.2, local_steps=3)',
        "Clients pass the AdamW above to local_training and save its state each round.",
    ]
    (whole,) = lines("mb-ac-sgd", batch="full")[:1]
    assert whole.endswith("with one full-batch step per round in PyTorch (fedac.torch):")
    assert lines("adamw+cv") == [SIMULATOR_ONLY]


@pytest.mark.parametrize(
    ("mode", "options", "given"),
    [
        ("buffer(5)", {"clients": 10}, 'min_nodes=10, mode="buffer(5)"'),
        (
            "buffer(5)", {"clients": 40, "participation": 0.2},
            'min_nodes=8, concurrency=8, mode="buffer(5)"',
        ),
        (
            "deadline(1.4s)", {"clients": 40, "participation": 10, "oversample": 1.3},
            'sample=10, mode="deadline(1.4s)", oversample=1.3',
        ),
        ("until(2s)", {"clients": 10}, 'weighting="examples"'),
    ],
)  # fmt: skip
def test_the_mode_is_handed_over(mode, options, given, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    pytest.importorskip("flwr", reason="Flower is not installed: make install")
    from fedac.flower import LocalStrategy

    row = replace(make_row("scaffold"), mode=mode)
    said = hand_over(row, Spec(model="mlp", batch=8, **options))
    (line,) = code(said, "strategy = ")
    assert line.endswith(f"{given})")
    names = {"LocalStrategy": LocalStrategy}
    exec(line, names)
    assert str(names["strategy"].mode) == ("rounds" if mode == "until(2s)" else mode)
    assert f"PyTorch has no {mode}: its rounds wait for all processes." in said
    assert any(line.startswith("Flower has no until") for line in said) == (mode == "until(2s)")


def test_a_method_of_the_users_own_is_composed():
    method, name = "fedac.algorithms:FEDAC_II+cv+nesterov(1,0.3)", "fedac-ii+cv+nesterov(1,0.3)"
    row = replace(make_row("fedac-ii"), method=method, algorithm=name)
    (_, line, *_) = hand_over(row, Spec(clients=2))
    given = 'fedac.compose(fedac.algorithms.FEDAC_II, "cv", "nesterov(1,0.3)")'
    assert f"LocalOptimizer(model.parameters(), {given}, lr=" in line
    assert eval(given).name == name


def test_rounds_of_epochs_are_said_to_be():
    said = "\n".join(lines("feddyn", epochs=2))
    assert "clients passed 2 times through their rows in a round, 3 steps on average" in said
    assert said.endswith("The steps are those of the clients' own training: let it pass as often.")
