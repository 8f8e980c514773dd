# SPDX-License-Identifier: Apache-2.0
"""Compositions over Flower follow the simulator: memory, server state, both, and neither."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord

from fedac.algorithms import compose, get
from fedac.algorithms.server import ServerRule
from fedac.federation.sampling import participants
from fedac.federation.schedule import Decay
from fedac.flower import InProcessGrid, LocalStrategy, client_app

CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five, SEED, K, L2 = (CONFTEST[name] for name in ("Five", "SEED", "K", "L2"))
ROUNDS = 5
COMPOSITIONS = [
    "scaffold",
    "scaffnew",
    "diloco",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "slowmo",
    "outer-nesterov",
    "fedprox(0.3)",
    "momentum(0.8)",
    "gpa(0.8, 0.6)",
    "fedac-i+local",
    "fedac-i+local+nesterov(1, 0.3)",
    "fedac-i+cv",
    "fedac-i+cv+accelerated",
    "fedac-ii+local+cv+momentum(1, 0.5)",
    "fedavg+step(1.3)",
    "momentum(0.5)+local+cv+adam",
    "led",
]
# All but feddyn ask the runtime for more: lengths of moves, numbers of steps, full gradients.
ASKING = [
    "feddyn(0.1)",
    "fedcm(0.2)",
    "fedavg+fedcm(0.3)+cv",
    "scaffold-m",
    "fednova",
    "fedexp",
    "fedac-i+exp",
    "fedavg+fedcm(0.3)+cv+exp",
    "mimelite(0.9)",
    "mimelite+cv",
    "mimelite+nesterov",
]
COMPOSITIONS += ASKING
SOME = ["scaffold", "diloco", "fedprox(0.3)", "fedac-ii+local+cv+momentum(1, 0.5)"]


def assert_same_run(result, run) -> None:
    """Compare all that the server holds, and the output."""
    held = {**result.sequences, **result.server}
    assert {key.partition("/")[0] for key in held} == set(run.state)
    for name, vector in run.state.items():
        mine = [array.ravel() for key, array in held.items() if key.startswith(f"{name}/")]
        np.testing.assert_allclose(np.concatenate(mine), vector, rtol=1e-9, atol=1e-12)
    output = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    np.testing.assert_allclose(output, run.w, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("batch", [3, "full"])
@pytest.mark.parametrize("algorithm", COMPOSITIONS)
def test_a_composition_matches_the_simulator(algorithm, batch, weighting):
    federation = Five(batch)
    eta = 0.2 * federation.eta
    result = federation.run(algorithm, ROUNDS, weighting=weighting, eta=eta)
    run = federation.simulated(algorithm, ROUNDS, weighting=weighting, eta=eta)
    assert_same_run(result, run)
    assert not result.history.dropped
    assert result.history.to_frame()["memory_lost"].tolist() == [0] * ROUNDS


@pytest.mark.parametrize("algorithm", ["slowmo", "scaffnew", "scaffold-m", "mimelite", *SOME])
def test_a_falling_step_size(algorithm):
    federation, eta = Five(2), Decay(0.5, "1/sqrt(r)")
    result = federation.run(algorithm, ROUNDS, eta=eta)
    assert_same_run(result, federation.simulated(algorithm, ROUNDS, eta=eta, weighting="uniform"))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("algorithm", ASKING)
def test_half_of_the_clients_and_full_gradients(algorithm, weighting):
    federation, rounds = Five("full"), 8
    options = {"weighting": weighting, "eta": 0.2 * federation.eta}
    result = federation.run(algorithm, rounds, sample=0.5, evaluate_every=0, **options)
    run = federation.simulated(algorithm, rounds, participation=0.5, **options)
    assert_same_run(result, run)
    assert [row.good for row in result.history.rounds] == [2] * rounds


class PerStep(ServerRule):
    """A rule of the user's that asks for the steps of clients whose round is FedAvg's."""

    asks = ("steps",)

    def step(self, x, delta, kept, hp, this):
        return x - delta / this.steps, kept


def test_a_rule_of_your_own_may_ask_for_steps():
    federation, algorithm = Five(2), compose("fedavg", PerStep())
    result = federation.run(algorithm, ROUNDS)
    assert_same_run(result, federation.simulated(algorithm, ROUNDS, weighting="uniform"))
    assert result.history.metric("train/local-steps")[0] == (1, K)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_feddyn_is_the_loop_of_the_paper(weighting):
    """Algorithm 1 of arXiv 2111.04263, with weights: theta, the clients' L_m', and h."""
    federation, rounds, alpha, eta = Five("full"), 12, 0.1, 0.05
    result = federation.run(
        f"feddyn({alpha})", rounds, weighting=weighting, eta=eta, sample=0.5, evaluate_every=0
    )
    rows = [federation.clients.rows_of(m) for m in range(5)]
    sizes = np.array([len(own) if weighting == "examples" else 1 for own in rows])
    theta, h, L = federation.w_0, 0.0, [0.0] * 5
    for r in range(rounds):
        members, trained = participants(SEED, r, 5, 2), {}
        for m in members:
            X, y, y_m = federation.F.X[rows[m]], federation.F.y[rows[m]], theta
            for _ in range(K):
                g = L2 * y_m - X.T @ (y / (1 + np.exp(y * (X @ y_m)))) / len(y)
                y_m = y_m - eta * (g - L[m] + alpha * (y_m - theta))
            trained[m] = y_m
            L[m] = L[m] - alpha * (y_m - theta)
        p, share = sizes[members] / sizes[members].sum(), sizes[members].sum() / sizes.sum()
        mean = sum(weight * trained[m] for weight, m in zip(p, members, strict=True))
        h = h - alpha * share * (mean - theta)
        theta = mean - h / alpha
    w = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    np.testing.assert_allclose(w, theta, rtol=0, atol=1e-9)


class Some(LocalStrategy):
    """Asks the clients that take part in the simulator's round."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        members = participants(self.seed, server_round - 1, 5, 2).tolist()
        return [m for m in messages if m.metadata.dst_node_id - 1 in members]


@pytest.mark.parametrize("algorithm", ["fedac-i+cv+accelerated", *SOME])
def test_some_of_the_clients(algorithm):
    federation, rounds = Five(2), 8
    strategy = Some(
        algorithm, eta=0.2 * federation.eta, mu=L2, local_steps=K, seed=SEED, min_nodes=5,
        quorum=2, weighting="examples",
    )  # fmt: skip
    result = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=rounds)
    run = federation.simulated(
        algorithm, rounds, participation=0.4, weighting="examples", eta=0.2 * federation.eta
    )
    assert_same_run(result, run)
    assert [row.good for row in result.history.rounds] == [2] * rounds


@pytest.mark.slow
@pytest.mark.parametrize("batch", [3, "full"])
@pytest.mark.parametrize(
    "algorithm", [*SOME, "fedac-i+local+nesterov(1, 0.3)", "mimelite(0.9)", "scaffold-m"]
)
def test_torch_clients(algorithm, batch):
    torch = pytest.importorskip("torch")
    from fedac.flower import TorchModel, torch_arrays

    federation = Five(batch)
    federation.w_0 = np.linspace(-1, 1, 12)
    module = torch.nn.Linear(12, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(federation.w_0))

    def loss(module, batch):
        margins = batch[1] * module(batch[0])[:, 0]
        penalty = L2 / 2 * module.weight.square().sum()
        return penalty - torch.nn.functional.logsigmoid(margins).mean()

    def load_data(context):
        own = federation.own_rows(context)
        return torch.from_numpy(own.X), torch.from_numpy(own.y)

    def make_model(data):
        fresh = torch.nn.Linear(12, 1, bias=False, dtype=torch.float64)
        return TorchModel(fresh, data, loss, batch_size=batch)

    eta = Decay(0.2 * federation.eta, "1/r")
    result = federation.strategy(algorithm, weighting="examples", eta=eta).start(
        InProcessGrid(client_app(load_data, make_model), 5), torch_arrays(module), num_rounds=4
    )
    run = federation.simulated(algorithm, 4, eta=eta, weighting="examples")
    assert_same_run(result, run)


def test_buffers_of_a_torch_model_travel_beside_a_composition():
    torch = pytest.importorskip("torch")
    from fedac.flower import TorchModel, torch_arrays

    X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = (X, X.sum(dim=1, keepdim=True))

    def make(data):
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))

        def loss(module, batch):
            return torch.nn.functional.mse_loss(module(batch[0]), batch[1])

        return TorchModel(module, data, loss, batch_size=8)

    strategy = LocalStrategy("fedac-i+cv+nesterov(1, 0.3)", eta=0.05, mu=0.5, local_steps=3)
    grid = InProcessGrid(client_app(lambda context: data, make), 2)
    result = strategy.start(grid, torch_arrays(make(data).module), num_rounds=5)
    assert not result.history.dropped
    assert result.arrays["0.running_mean"].numpy().any()
    assert not any("buffer" in key for key in result.server)
    state = grid.states[grid.get_node_ids()[0]]
    assert not any("buffer" in key for record in state.array_records.values() for key in record)
    # The server keeps float64, the model stays float32, and so does what clients remember.
    assert {array.dtype for array in result.server.values()} == {np.dtype("float64")}
    assert {array.dtype for array in result.sequences.values()} == {np.dtype("float32")}
    losses = [loss for _, loss in result.history.metric("loss")]
    assert losses[-1] < losses[0]


def test_a_float32_model_stays_near_the_exact_run():
    federation = Five(2)
    name = "fedac-ii+local+cv+momentum(1, 0.5)"
    initial = ArrayRecord([a.numpy().astype(np.float32) for a in
                           federation.initial_arrays().values()])  # fmt: skip
    options = {"eta": 0.2 * federation.eta, "evaluate_every": 0}
    single = federation.strategy(name, **options).start(federation.grid(), initial, num_rounds=4)
    double = federation.run(name, 4, **options)
    for key, array in double.sequences.items():
        assert single.sequences[key].dtype == np.float32
        np.testing.assert_allclose(single.sequences[key], array, rtol=1e-3, atol=1e-5)


# -- the hooks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["outer-nesterov", "fedac-i+cv+adam"])
def test_a_second_run_begins_anew(algorithm):
    federation = Five(2)
    strategy, ours = federation.strategy(algorithm), federation.run(algorithm, 4)
    for _ in range(2):
        theirs = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=4)
        for mine, other in ((ours.sequences, theirs.sequences), (ours.server, theirs.server)):
            for key, array in mine.items():
                np.testing.assert_array_equal(other[key], array)


def test_aggregating_a_round_twice_moves_the_server_once():
    class Twice(LocalStrategy):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            return super().aggregate_train(server_round, [])

    federation = Five(2)
    options = {"eta": federation.eta, "mu": L2, "local_steps": K, "seed": SEED, "min_nodes": 5}
    mine = Twice("fedac-i+cv+adam", **options).start(
        federation.grid(), federation.initial_arrays(), num_rounds=3
    )
    usual = federation.run("fedac-i+cv+adam", 3)
    for key, array in usual.server.items():
        np.testing.assert_array_equal(mine.server[key], array)


def test_output_is_that_of_the_server(vector):
    """Outer Nesterov's output is not what travels, but what the server keeps."""
    federation = Five("full")
    result = federation.run("outer-nesterov", 4)
    u = np.concatenate([result.server[f"w_u/{i}"].ravel() for i in range(2)])
    np.testing.assert_array_equal(vector(result.arrays), u)
    assert abs(result.server["w_u/0"] - result.sequences["w/0"]).max() > 1e-6
    losses = [loss for _, loss in result.history.metric("loss")]
    assert losses == pytest.approx(
        federation.simulated("outer-nesterov", 4, weighting="uniform").loss[1:], rel=0.5
    )


# -- what travels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [("fedavg", 1, 1), ("fedac-i", 2, 2), ("fedac-i+local", 1, 1), ("scaffold", 2, 2),
     ("scaffnew", 1, 1), ("diloco", 1, 1), ("fedprox(0.3)", 1, 1), ("fedac-i+local+cv+adam", 2, 2),
     ("feddyn", 1, 1), ("fedexp", 1, 1), ("fedcm", 1, 2), ("scaffold-m", 2, 3), ("mimelite", 2, 2)],
)  # fmt: skip
def test_only_the_sequences_travel(algorithm, up, down):
    federation = Five(1)
    assert (up, down) == (get(algorithm).vectors_up, get(algorithm).vectors_down)
    result = federation.run(algorithm, 2, evaluate_every=0)
    one = federation.run("fedavg", 2, evaluate_every=0).history.rounds[1]
    row = result.history.rounds[1]
    assert (row.bytes_up, row.bytes_down) == (up * one.bytes_up, down * one.bytes_down)


@pytest.mark.parametrize("algorithm", ["fedac-i", "diloco", "fedprox(0.3)"])
def test_without_memory_nothing_is_sent_or_kept_for_it(algorithm, tmp_path):
    federation, seen = Five(1, memory_folder=tmp_path), []
    grid = federation.grid(answer=lambda reply, *_: seen.append(reply) or reply)
    asked = []
    push = grid.push_messages
    grid.push_messages = lambda messages: asked.extend(messages := list(messages)) or push(messages)
    federation.run(algorithm, 2, grid=grid, evaluate_every=0)
    assert not any(state for state in grid.states.values())
    assert not list(tmp_path.iterdir())
    assert {tuple(reply.content) for reply in seen} == {("arrays", "client", "metrics")}
    tasks = [json.loads(m.content["config"]["fedac/task"]) for m in asked]
    assert all(task["memory_version"] is None for task in tasks)


@pytest.mark.parametrize("algorithm", COMPOSITIONS)
def test_a_received_task_is_the_same_algorithm_made_of_numbers(algorithm):
    from fedac.algorithms.linear import boundary_form, linear_form
    from fedac.flower import Task

    algorithm = get(algorithm)
    hp = algorithm.couple(eta=0.5, mu=0.1, K=4)
    task = Task(algorithm=algorithm, hp=hp, round=1, first_step=0, local_steps=4, seed=0)
    received = Task.from_json(task.to_json())
    found = received.algorithm
    assert found.is_plain == algorithm.is_plain
    assert linear_form(found, received.hp) == linear_form(algorithm, hp)
    assert boundary_form(found, received.hp, 4) == boundary_form(algorithm, hp, 4)
    for name in (
        "sequences", "local_sequences", "memory", "changes", "echoes", "pooled", "means",
        "broadcast_only", "sent", "points", "asks",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(algorithm, name)
    assert received.local_algorithm.is_plain
    assert received.local_algorithm.sequences == algorithm.local_sequences


# -- robust rules ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedprox(0.3)", "diloco", "fedac-i+local"])
def test_a_bound_that_clips_nobody_changes_nothing(algorithm):
    federation = Five(2)
    usual = federation.run(algorithm, 4)
    clipped = federation.run(algorithm, 4, aggregation="clipped-mean", clip_norm=1e9)
    for key, array in usual.sequences.items():
        np.testing.assert_allclose(clipped.sequences[key], array, rtol=1e-12, atol=1e-15)
