# SPDX-License-Identifier: Apache-2.0
"""Outputs have the names of a PyTorch model's state_dict; what travels is smaller."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")
pytest.importorskip("torch", reason="PyTorch is not installed: make install")

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedac.errors import InputError
from fedac.flower import (
    FedAc,
    InProcessGrid,
    LocalStrategy,
    QuorumError,
    TorchModel,
    client_app,
    load_torch_arrays,
    torch_arrays,
)

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
DATA = (X, X.sum(dim=1, keepdim=True))
OPTIONS = {"eta": 0.05, "mu": 0.5, "local_steps": 3}


class Tied(torch.nn.Module):
    """Two layers with one weight, a counter, a mask, and a buffer that is no part of the state."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(4, 1)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("cache", torch.tensor([torch.nan]), persistent=False)

    def forward(self, x):
        return self.last(self.second(self.first(x)))


def normalized():
    return torch.nn.Sequential(
        torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3),
        torch.nn.Linear(3, 1),
    )  # fmt: skip


def loss(module, batch):
    return torch.nn.functional.mse_loss(module(batch[0]), batch[1])


def app_of(make, **options):
    return client_app(lambda _: DATA, lambda data: TorchModel(make(), data, loss, **options))


@pytest.mark.parametrize("algorithm", ["fedac-i", "scaffold", "fedavg-weighted", "fedadam"])
@pytest.mark.parametrize("make", [normalized, Tied])
def test_every_output_loads_into_the_model(make, algorithm):
    model, seen = make(), []

    def evaluate(server_round, arrays):
        seen.append(server_round)
        model.load_state_dict(arrays.to_torch_state_dict())  # strict
        return MetricRecord({"loss": loss(model.eval(), DATA).item()})

    app = app_of(make)
    handle = app._registered_funcs["evaluate.default"]

    def check(message, context):
        assert list(message.content["arrays"]) == list(model.state_dict())
        return handle(message, context)

    app._registered_funcs["evaluate.default"] = check
    strategy = LocalStrategy(algorithm, **OPTIONS)
    result = strategy.start(
        InProcessGrid(app, 2), torch_arrays(model), num_rounds=2, evaluate_fn=evaluate
    )
    assert seen == [0, 1, 2]
    assert not result.history.dropped
    assert list(result.arrays) == list(model.state_dict())
    other = make()
    other.load_state_dict(result.arrays.to_torch_state_dict())
    load_torch_arrays(model, result.arrays)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    (_, on_clients), (_, on_server) = (
        result.history.metric(name)[-1] for name in ("loss", "server/loss")
    )
    assert on_clients == pytest.approx(on_server, rel=1e-6)
    # And a new run may begin where this one ended.
    again = LocalStrategy(algorithm, **OPTIONS).start(
        InProcessGrid(app, 2), result.arrays, num_rounds=0
    )
    assert {name: array.numpy().tobytes() for name, array in again.arrays.items()} == {
        name: array.numpy().tobytes() for name, array in result.arrays.items()
    }


def test_a_tensor_with_two_names_travels_once():
    model = Tied()
    result = FedAc(**OPTIONS).start(InProcessGrid(app_of(Tied), 2), torch_arrays(model))
    assert set(result.sequences) == {
        f"{s}/{name}" for s in ("w_ag", "w") for name, _ in model.named_parameters()
    }
    first, second = (result.arrays[f"{layer}.weight"].numpy() for layer in ("first", "second"))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, model.first.weight.detach().numpy())


def test_buffers_are_averaged_and_counters_stay():
    model = normalized()
    model[0].num_batches_tracked += 7
    result = FedAc(**OPTIONS).start(InProcessGrid(app_of(normalized), 2), torch_arrays(model))
    assert result.arrays["0.num_batches_tracked"].numpy() == 7
    assert result.arrays["0.num_batches_tracked"].numpy().dtype == np.int64
    mean = result.arrays["0.running_mean"].numpy()
    assert mean.any()
    np.testing.assert_array_equal(mean, result.sequences["buffer/0.running_mean"])


def test_a_resumed_run_has_the_names_too(tmp_path):
    path, model = tmp_path / "run.npz", normalized()
    options = OPTIONS | {"checkpoint": path}
    grid = InProcessGrid(app_of(normalized), 2)
    whole = FedAc(**OPTIONS).start(grid, torch_arrays(model), num_rounds=3)
    FedAc(**options).start(grid, torch_arrays(model), num_rounds=1)
    resumed = FedAc(**options, resume_from=path).start(grid, torch_arrays(model), num_rounds=3)
    assert list(resumed.arrays) == list(model.state_dict())
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name].numpy(), array.numpy())


def test_a_state_dict_of_parameters_alone_needs_nothing():
    def make():
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))

    model, grid = make(), InProcessGrid(app_of(make), 2)
    results = [
        FedAc(**OPTIONS).start(grid, arrays, num_rounds=2)
        for arrays in (ArrayRecord(model.state_dict()), torch_arrays(model))
    ]
    for name, array in results[0].arrays.items():
        np.testing.assert_array_equal(results[1].arrays[name].numpy(), array.numpy())


def test_a_plain_state_dict_of_more_is_refused_with_a_hint():
    strategy = FedAc(**OPTIONS, retries=0)
    with pytest.raises(InputError, match=r"num_batches_tracked'\] is int64; .*torch_arrays"):
        strategy.start(InProcessGrid(app_of(normalized), 2), ArrayRecord(normalized().state_dict()))
    tied = ArrayRecord({k: v for k, v in Tied().state_dict().items() if k != "mask"})
    with pytest.raises(
        QuorumError,
        match=r"array 'second.weight': the server's is \(4, 4\), the model's missing: .* "
        r"torch_arrays\(model\).* Only the server has: \['second.weight'\]; ",
    ):
        strategy.start(InProcessGrid(app_of(Tied), 2), tied)


def test_a_function_of_the_users_own_evaluates():
    """As in Flower's own apps: it knows the names of the model, and nothing of fedac."""
    app, losses = app_of(normalized), []

    def evaluate(message, context):
        model = normalized()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        losses.append(loss(model.eval(), DATA).item())
        metrics = MetricRecord({"mine": losses[-1], "num-examples": 40})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    del app._registered_funcs["evaluate.default"]
    app.evaluate()(evaluate)
    result = FedAc(**OPTIONS).start(InProcessGrid(app, 2), torch_arrays(normalized()))
    assert len(losses) == 6
    assert [value for _, value in result.history.metric("mine")] == pytest.approx(losses[::2])


def test_held_out_data_is_evaluated():
    held = (torch.ones(7, 4), torch.zeros(7, 1))
    app = client_app(
        lambda context: context.node_config["partition-id"],
        # Only one of the clients has such data.
        lambda i: TorchModel(
            torch.nn.Linear(4, 1), DATA, loss, test=held if i else None,
            metrics=lambda module, data: {"rows": len(data[0])},
        ),
    )  # fmt: skip
    model = torch.nn.Linear(4, 1)
    strategy = FedAc(**OPTIONS, weighting="examples")
    result = strategy.start(InProcessGrid(app, 2), torch_arrays(model), num_rounds=1)
    load_torch_arrays(model, result.arrays)
    with torch.no_grad():
        wanted = (40 * loss(model, DATA).item() + 7 * loss(model, held).item()) / 47
    ((_, found),) = result.history.metric("loss")
    assert found == pytest.approx(wanted, rel=1e-6)
    assert result.history.metric("rows") == [(1, pytest.approx((40 * 40 + 7 * 7) / 47))]


def test_wrong_held_out_data_is_refused():
    with pytest.raises(InputError, match=r"test must have the same number of rows.*\[2, 3\]"):
        TorchModel(torch.nn.Linear(4, 1), DATA, loss, test=(torch.ones(3, 4), torch.ones(2, 1)))
