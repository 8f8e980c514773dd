# SPDX-License-Identifier: Apache-2.0
"""What a training loop of the user's own can do wrong, and what it is told then."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")
pytest.importorskip("torch", reason="PyTorch is not installed: make install")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowersOwn

from fedac.flower import InProcessGrid, LocalStrategy, QuorumError, local_training, torch_arrays
from fedac.torch import LocalSGD

X = torch.ones(4, 2)


def linear():
    return torch.nn.Linear(2, 1)


def one_step(model, optimizer):
    optimizer.zero_grad()
    model(X).square().mean().backward()
    optimizer.step()


def app_of(train):
    app = ClientApp()
    app.train()(train)
    return app


def run(train, algorithm="fedac-i", start=None, **options):
    options = {"eta": 0.1, "mu": 0.1, "local_steps": 2, "min_nodes": 1, "retries": 0} | options
    strategy = LocalStrategy(algorithm, **options, evaluate_every=0)
    initial = torch_arrays(linear()) if start is None else start
    return strategy.start(InProcessGrid(app_of(train), 1), initial, num_rounds=1)


def test_mimelite_needs_a_full_gradient():
    def train(message, context):
        model = linear()
        with local_training(message, context, model) as local:
            one_step(model, local.optimizer)
        return local.reply({"num-examples": 4})

    with pytest.raises(
        QuorumError,
        match=r"'mimelite\(0.9\)' needs .*; pass full_gradient=\.\.\. to local_training",
    ):
        run(train, "mimelite")


def with_metrics(metrics):
    def train(message, context):
        model = linear()
        with local_training(message, context, model) as local:
            one_step(model, local.optimizer)
        return local.reply(metrics)

    return train


@pytest.mark.parametrize(
    ("metrics", "saying"),
    [
        ({"loss": 0.5}, "metrics need 'num-examples', how many examples this client has"),
        ({"num-examples": 0}, "num-examples must be a whole number, at least 1, got 0"),
        (None, "metrics must be a dict of numbers, got NoneType"),
        ({"num-examples": 4, "each": [1.0, 2.0]}, r"metric 'each' must be a number, got \[1\.0"),
        ({"num-examples": 4, "each": torch.ones(2)}, "metric 'each' must be a number, got tensor"),
        ({"num-examples": 4, "local-steps": 1}, "metric 'local-steps' is added here"),
        ({"num-examples": 4, "server-round": 1}, "metric 'server-round' is added here"),
    ],
)
def test_wrong_metrics(metrics, saying):
    with pytest.raises(QuorumError, match=saying):
        run(with_metrics(metrics))


def test_metrics_may_be_numbers_of_any_kind():
    metrics = {"num-examples": np.int64(4), "a": torch.tensor(0.5), "b": np.float32(2), "c": True}
    result = run(with_metrics(MetricRecord({"num-examples": 4, "a": 0.5})))
    assert result.history.metric("train/a") == [(1, 0.5)]
    result = run(with_metrics(metrics))
    assert [result.history.metric(f"train/{name}")[0][1] for name in "abc"] == [0.5, 2.0, 1.0]


def test_a_loop_without_steps():
    def train(message, context):
        model = linear()
        with local_training(message, context, model) as local:
            # An optimizer that nobody knows of: the quickstart's own loop makes one.
            one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return local.reply({"num-examples": 4})

    for algorithm in ("fedac-i", "fedavg"):
        with pytest.raises(QuorumError, match=r"no local step: it must call local\.optim"):
            run(train, algorithm)


def test_a_reply_before_the_block_has_ended():
    def train(message, context):
        model = linear()
        with local_training(message, context, model) as local:
            one_step(model, local.optimizer)
            return local.reply({"num-examples": 4})

    with pytest.raises(
        QuorumError, match=r"error 2: InputError: call local\.reply when the block .* has ended$"
    ):
        run(train)


def test_a_reply_that_was_forgotten():
    def train(message, context):
        model = linear()
        with local_training(message, context, model) as local:
            one_step(model, local.optimizer)
        metrics = MetricRecord({"num-examples": 4})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    with pytest.raises(
        QuorumError, match=r"server-round; .*does it train in local_training and return"
    ):
        run(train)


def test_an_error_of_the_loop_is_the_users():
    def train(message, context):
        with local_training(message, context, linear()):
            raise ZeroDivisionError("mine")

    # Signed with the client's number, so that the server knows a client of ours.
    with pytest.raises(QuorumError, match=r"\(partition 0\): error 2: ZeroDivisionError: mine$"):
        run(train)


def test_a_server_of_somebody_else():
    grid = InProcessGrid(app_of(with_metrics({"num-examples": 4})), 2)
    asked = FlowersOwn().configure_train(1, torch_arrays(linear()), ConfigRecord(), grid)
    for reply in grid.send_and_receive(asked):
        assert "InputError: the server's strategy is not one of fedac.flower" in reply.error.reason


def test_another_model():
    train = with_metrics({"num-examples": 4})
    with pytest.raises(
        QuorumError,
        match=r"array 'weight': the server's is \(1, 3\), the model's \(1, 2\): .*torch_arrays",
    ):
        run(train, start=torch_arrays(torch.nn.Linear(3, 1)))
    with pytest.raises(
        QuorumError,
        match=r"array '0.weight': the server's is \(1, 2\), the model's missing: .* "
        r"Only the server has: \['0.bias', '0.weight'\]; only the model has: \['bias', 'weight'\]",
    ):
        run(train, start=torch_arrays(torch.nn.Sequential(linear())))


def test_a_layer_that_was_replaced():
    def train(message, context):
        model = torch.nn.Sequential(linear())
        with local_training(message, context, model) as local:
            model[0] = linear()
            local.optimizer.step()
        return local.reply({"num-examples": 4})

    with pytest.raises(QuorumError, match="parameters changed during the block"):
        run(train, start=torch_arrays(torch.nn.Sequential(linear())))


def test_a_loop_that_changes_nothing_is_reported(caplog):
    def train(message, context):
        with local_training(message, context, linear()) as local:
            local.optimizer.step()
        return local.reply({"num-examples": 4})

    with caplog.at_level(logging.WARNING):
        run(train)
    assert "1 steps changed nothing; was loss.backward() called?" in caplog.text


def test_a_parameter_that_something_else_changed():
    def train(message, context):
        model = linear()
        with local_training(message, context, model) as local:
            one_step(model, local.optimizer)
            model.load_state_dict(linear().state_dict())
        return local.reply({"num-examples": 4})

    with pytest.raises(QuorumError, match="a parameter was changed"):
        run(train)


def with_optimizer(make):
    def train(message, context):
        model = linear()
        with local_training(message, context, model, make(model)) as local:
            one_step(model, local.optimizer)
        return local.reply({"num-examples": 4})

    return train


def adamw(model):
    return torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize("algorithm", ["fedac-i", "momentum(0.9)", "scaffold", "fedprox(0.1)"])
def test_an_optimizer_where_the_algorithm_has_its_own_steps(algorithm):
    name = algorithm.partition("(")[0]
    with pytest.raises(
        QuorumError, match=rf"'{name}.*' has its own local steps: .* 'fedavg' .* 'diloco'"
    ):
        run(with_optimizer(adamw), algorithm)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm", "fedadam", "diloco", "slowmo"])
def test_an_optimizer_works_with_every_server_rule(algorithm):
    start = torch_arrays(linear())
    result = run(with_optimizer(adamw), algorithm, start)
    assert result.history.metric("train/local-steps") == [(1, 1.0)]
    assert not np.array_equal(result.arrays["weight"].numpy(), start["weight"].numpy())


@pytest.mark.parametrize(
    ("make", "saying"),
    [
        (lambda model: 0.1, "optimizer must be one of PyTorch, got float"),
        (
            lambda model: LocalSGD(model.parameters(), lr=0.1, local_steps=2),
            "leave out optimizer: local.optimizer has the strategy's algorithm",
        ),
        (
            lambda model: torch.optim.SGD(linear().parameters(), lr=0.1),
            "the optimizer has no parameter of the model",
        ),
    ],
    ids=["a number", "ours", "of another model"],
)
def test_a_wrong_optimizer(make, saying):
    with pytest.raises(QuorumError, match=saying):
        run(with_optimizer(make), "fedavg")
