# SPDX-License-Identifier: Apache-2.0
"""Clients: NumPy and PyTorch take the same steps; what a model needs, and what is refused."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")
pytest.importorskip("torch", reason="PyTorch is not installed: make install")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedac.algorithms import get
from fedac.errors import InputError
from fedac.flower import (
    FedAc,
    InProcessGrid,
    LocalStrategy,
    QuorumError,
    Step,
    Task,
    TorchModel,
    client_app,
    load_torch_arrays,
    local_steps,
    torch_arrays,
)


def make_workload(name: str, **changes) -> Task:
    algorithm = get(name)
    hp = algorithm.couple(eta=0.1, mu=0.5, K=3)
    options = {"round": 2, "first_step": 3, "local_steps": 3, "seed": 1} | changes
    return Task(algorithm=algorithm, hp=hp, **options)


@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "fedavg"])
def test_local_steps_follow_the_algorithm(name):
    algorithm, task = get(name), make_workload(name)
    rng = np.random.default_rng(0)
    sequences = [[rng.normal(size=4)] for _ in algorithm.sequences]
    seen = []

    def gradient(w, step):
        seen.append(step.t)
        return [np.sin(w[0])]

    mine = local_steps(gradient, sequences, task)
    state = tuple(sequence[0] for sequence in sequences)
    for _ in range(3):
        w_md = algorithm.query(state, task.hp)
        state = algorithm.update(state, w_md, np.sin(w_md), task.hp)
    assert seen == [3, 4, 5]
    np.testing.assert_array_equal([s[0] for s in mine], state)


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"shapes \[\(2,\)\], not \[\(3,\)\]"):
        local_steps(lambda w, step: [np.ones(2)], [[np.ones(3)]], make_workload("fedavg"))
    with pytest.raises(InputError, match=r"the gradient has arrays of shapes \[\], not"):
        local_steps(lambda w, step: [], [[np.ones(3)]], make_workload("fedavg"))


def test_wrong_gradients_are_refused():
    for wrong, saying in (
        (None, "must be a list of arrays, got NoneType"),
        ((g for g in [np.ones(3)]), "must be a list of arrays, got generator"),
        (np.ones((1, 3)), "must be a list of arrays, got ndarray"),
    ):
        with pytest.raises(InputError, match=saying):
            local_steps(lambda w, step, g=wrong: g, [[np.ones(3)]], make_workload("fedavg"))


@pytest.mark.parametrize("algorithm", ["fedac-i", "fedavg"])
def test_a_gradient_may_be_computed_in_place(algorithm):
    def in_place(w, step):
        w[0] *= 3.0
        return w

    sequences = [[np.ones(3)]] * (1 if algorithm == "fedavg" else 2)
    mine = local_steps(in_place, sequences, make_workload(algorithm))
    other = local_steps(lambda w, step: [3.0 * w[0]], sequences, make_workload(algorithm))
    np.testing.assert_array_equal(mine, other)
    assert (sequences[0][0] == 1).all()


def test_drawing_from_no_rows_is_refused():
    with pytest.raises(InputError, match="the number of rows must be a whole number, at least 1"):
        Step(t=0, seed=0, worker=0).rows(0)


@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "fedavg", "fedavg-weighted"])
def test_a_received_task_makes_the_same_steps_to_the_bit(name):
    task = make_workload(name)
    received = Task.from_json(task.to_json())
    assert (received.round, received.first_step, received.local_steps, received.seed) == (
        2,
        3,
        3,
        1,
    )
    assert received.algorithm.sequences == task.algorithm.sequences
    rng = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        sequences = [[rng.normal(size=9).astype(dtype)] for _ in task.algorithm.sequences]
        here, there = (
            local_steps(lambda w, step: [np.sin(w[0])], sequences, t) for t in (task, received)
        )
        np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_step": None}, "no 'first_step': does the server use the same version"),
        ({"eta": "big"}, "eta must be a finite number above 0"),
    ],
)
def test_a_broken_task_is_refused(changes, message):
    content = json.loads(make_workload("fedac-ii").to_json()) | changes
    for name in [name for name, value in changes.items() if value is None]:
        del content[name]
    with pytest.raises(InputError, match=message):
        Task.from_json(json.dumps(content))


def test_batches_of_different_steps_differ():
    rows = [Step(t=t, seed=1, worker=0).rows(10**6, 8) for t in range(5)]
    assert len(np.unique(rows)) == 40


# The same linear model, by hand and in PyTorch.

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3


class ByHand:
    n_examples = 60

    def __init__(self, data):
        pass

    def gradient(self, w, step):
        rows = step.rows(60, 4)
        residual = X[rows] @ w[0].T + w[1] - Y[rows]
        return [residual.T @ X[rows] * 2 / 4, residual.mean(axis=0) * 2]

    def evaluate(self, w):
        return {"loss": float(np.mean((X @ w[0].T + w[1] - Y) ** 2))}


def squared(module, batch):
    return torch.nn.functional.mse_loss(module(batch[0]), batch[1])


def in_torch(data):
    return TorchModel(torch.nn.Linear(3, 1).double(), data, squared, batch_size=4)


TENSORS = (torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg", "fedavg-weighted"]
)
@pytest.mark.parametrize("data", [TENSORS, torch.utils.data.TensorDataset(*TENSORS)])
def test_torch_clients_match_numpy_clients(algorithm, data):
    options = {"eta": 0.05, "mu": 0.5, "local_steps": 3, "min_nodes": 3}
    start = {"weight": np.full((1, 3), 0.1), "bias": np.zeros(1)}
    initial = torch_arrays(torch.nn.Linear(3, 1).double())
    from fedac.flower._arrays import to_record

    results = [
        LocalStrategy(algorithm, **options).start(
            InProcessGrid(client_app(lambda context: data, model), 3),
            to_record(start),
            num_rounds=4,
        )
        for model in (ByHand, in_torch)
    ]
    assert list(initial) == list(start)
    for key in results[0].sequences:
        np.testing.assert_allclose(
            results[1].sequences[key], results[0].sequences[key], rtol=1e-9, atol=1e-12
        )
    for (_, one), (_, other) in zip(*(r.history.metric("loss") for r in results), strict=True):
        assert other == pytest.approx(one, rel=1e-9)
    assert results[1].history.metric("train/loss")


def test_buffers_are_averaged():
    def make(data):
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        return TorchModel(module, data, squared, batch_size=8, metrics=lambda m, d: {"one": 1.0})

    data = (TENSORS[0].float(), TENSORS[1].float())
    start = make(data).module
    result = FedAc(eta=0.05, mu=0.5, local_steps=3).start(
        InProcessGrid(client_app(lambda context: data, make), 2), torch_arrays(start), num_rounds=5
    )
    assert "buffer/0.running_mean" in result.sequences
    assert not any("num_batches" in key for key in result.sequences)
    load_torch_arrays(start, result.arrays)
    running = start[0].running_mean.numpy()
    assert running.any()
    np.testing.assert_array_equal(running, result.sequences["buffer/0.running_mean"])
    losses = [loss for _, loss in result.history.metric("loss")]
    assert losses[-1] < losses[0]
    assert result.history.metric("one")


def test_a_full_gradient_leaves_buffers_and_draws_alone():
    """MimeLite's u is made of gradients in evaluation mode, over more rows than one batch has."""
    rows = torch.randn(1500, 3, generator=torch.Generator().manual_seed(0))
    data = (rows, rows.sum(dim=1, keepdim=True))

    def make(data):
        module = torch.nn.Sequential(
            torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)
        )
        return TorchModel(module, data, squared, batch_size=8)

    start = make(data).module
    module = copy.deepcopy(start).eval()
    squared(module, data).backward()
    strategy = LocalStrategy("mimelite(0.5)", eta=0.05, local_steps=1, evaluate_every=0)
    grid = InProcessGrid(client_app(lambda context: data, make), 2)
    result = strategy.start(grid, torch_arrays(start), num_rounds=1)
    for key, parameter in module.named_parameters():
        u = result.sequences[f"u/{key}"]
        np.testing.assert_allclose(u, parameter.grad / 2, rtol=1e-5, atol=1e-5)
    with_sgd = LocalStrategy("fedavg", eta=0.05, local_steps=1, evaluate_every=0)
    usual = with_sgd.start(grid, torch_arrays(start), num_rounds=1)
    for key in ("buffer/0.running_mean", "buffer/0.running_var"):
        np.testing.assert_array_equal(result.sequences[key], usual.sequences[key])


def test_mimelite_needs_a_full_gradient(federation):
    class Stochastic:
        n_examples = 4

        def gradient(self, w, step):
            return w

    grid = InProcessGrid(client_app(lambda context: None, lambda data: Stochastic()), 2)
    strategy = LocalStrategy("mimelite", eta=0.1, local_steps=1, evaluate_every=0, retries=0)
    with pytest.raises(
        QuorumError, match=r"'mimelite\(0.9\)' needs .*; give your model a method full_gradient"
    ):
        strategy.start(grid, federation.initial_arrays(), num_rounds=1)


def test_half_precision_travels_as_float32():
    def make(data):
        module = torch.nn.Linear(3, 1).to(torch.bfloat16)
        return TorchModel(module, data, squared, batch_size=8)

    data = (TENSORS[0].bfloat16(), TENSORS[1].bfloat16())
    initial = torch_arrays(make(data).module)
    result = FedAc(eta=0.05, mu=0.5, local_steps=3).start(
        InProcessGrid(client_app(lambda context: data, make), 2), initial, num_rounds=2
    )
    assert {array.dtype for array in result.arrays.values()} == {"float32"}
    assert not result.history.dropped


def test_another_model_on_the_client_is_reported():
    data = TENSORS
    grid = InProcessGrid(client_app(lambda context: data, in_torch), 2)
    initial = ArrayRecord([np.zeros((1, 3)), np.zeros(1)])
    strategy = FedAc(eta=0.05, mu=0.5, local_steps=3, retries=0)
    with pytest.raises(
        QuorumError,
        match=r"array '0': the server's is \(1, 3\), the model's missing: .* torch_arrays",
    ):
        strategy.start(grid, initial)
    with pytest.raises(
        QuorumError, match=r"array 'bias': the server's is missing, the model's \(1,\)"
    ):
        strategy.start(grid, ArrayRecord({"weight": Array(np.zeros((1, 3)))}))


def test_arrays_of_a_larger_model_are_refused():
    large = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
    with pytest.raises(
        InputError, match=r"array '1\.weight': the server's is \(1,\), the model's missing"
    ):
        load_torch_arrays(torch.nn.Sequential(torch.nn.Linear(3, 1)), torch_arrays(large))


def test_dropout_depends_only_on_the_seed(tmp_path):
    def make(data):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        torch.seed()  # as in a process of its own
        return TorchModel(module.double(), data, squared, batch_size=4)

    grid = InProcessGrid(client_app(lambda context: TENSORS, make), 2)
    initial = torch_arrays(make(TENSORS).module)

    def run(rounds, **options):
        options = {"eta": 0.05, "mu": 0.5, "local_steps": 3} | options
        return FedAc(**options).start(grid, initial, num_rounds=rounds).sequences

    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    whole, again, other = run(4), run(4), run(4, seed=1)
    path = tmp_path / "run.npz"
    run(2, checkpoint=path)
    resumed = run(4, resume_from=path)
    for key, array in whole.items():
        np.testing.assert_array_equal(again[key], array)
        np.testing.assert_array_equal(resumed[key], array)
        assert not np.array_equal(other[key], array)
    module, _, _ = (make(TENSORS) for _ in range(3))
    torch.manual_seed(5)
    arrays = {f"{s}/{name}": a for s in ("w_ag", "w") for name, a in named(module).items()}
    module.train(arrays, make_workload("fedac-i"), worker=0)
    assert torch.equal(torch.rand(3), drawn)  # the global generator is left alone


def named(model):
    return {name: p.detach().numpy().copy() for name, p in model.module.named_parameters()}


def test_a_list_is_a_dataset_of_rows():
    rows = [torch.randn(6) for _ in range(50)]
    shapes = []

    def loss(module, batch):
        shapes.append(tuple(batch.shape))
        return module(batch).mean()

    model = TorchModel(torch.nn.Linear(6, 1), rows, loss)
    model.evaluate_arrays(named(model))
    assert model.n_examples == 50
    assert shapes == [(50, 6)]


def test_flowers_own_strategy_gets_an_error_that_names_the_cause(federation):
    from flwr.serverapp.strategy import FedAvg as FlowersOwn

    grid, arrays = InProcessGrid(federation.app(), 2), federation.initial_arrays()
    asked = FlowersOwn().configure_evaluate(1, arrays, ConfigRecord(), grid)
    reply, _ = grid.send_and_receive(asked)
    assert (
        "the server's strategy is not one of fedac.flower, whose messages this client needs"
        in reply.error.reason
    )


@pytest.mark.parametrize("metrics", [None, 0.5])
def test_wrong_metrics_are_reported(federation, metrics):
    class Silent(federation.Model):
        def evaluate(self, w):
            return metrics

    app = client_app(lambda context: federation.F, Silent)
    result = federation.run(rounds=1, grid=InProcessGrid(app, 8))
    kind = type(metrics).__name__
    assert {drop.reason for drop in result.history.dropped} == {
        f"error 2: InputError: metrics must be a dict of numbers, got {kind}"
    }


def test_flowers_modifiers(federation, vector):
    seen = []

    def watch(message, context, call_next):
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    grid = federation.grid()
    grid.client_app = client_app(lambda context: federation.F, federation.Model, mods=[watch])
    result = federation.run(rounds=1, grid=grid)
    assert seen == ["train"] * 8 + ["evaluate"] * 8
    np.testing.assert_array_equal(vector(result.arrays), vector(federation.run(rounds=1).arrays))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1, got 0"),
        ({"data": (np.ones((4, 2)), np.ones((4, 1)))}, "data must be tensors"),
        ({"data": (torch.ones(4, 2), torch.ones(3, 1))}, r"the same number of rows.*\[3, 4\]"),
        ({"data": (torch.ones(0, 2), torch.ones(0, 1))}, r"at least 1, got \[0\]"),
    ],
)
def test_wrong_data_are_refused(given, message):
    whole = {"data": (torch.ones(4, 2), torch.ones(4, 1))} | given
    with pytest.raises(InputError, match=message):
        TorchModel(torch.nn.Linear(2, 1), whole.pop("data"), lambda *_: None, **whole)


def test_a_wrong_model_is_reported():
    app = client_app(lambda context: None, lambda data: None)
    result = InProcessGrid(app, nodes=1)
    strategy = FedAc(eta=0.5, mu=0.5, local_steps=1, min_nodes=1, retries=0)
    with pytest.raises(QuorumError, match="'NoneType' object has no attribute 'gradient'"):
        strategy.start(result, ArrayRecord([np.ones(2)]), num_rounds=1)
