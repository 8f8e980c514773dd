# SPDX-License-Identifier: Apache-2.0
"""Networks in a federation in one process: the same runs as in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")
pytest.importorskip("torch")

import small_network as small
import torch
from flwr.clientapp import ClientApp

from fedac import flower

X, Y, OWNERS = small.make_data()
both_weightings = pytest.mark.parametrize("weighting", ["examples", "uniform"])


def rows_of(context) -> tuple[Any, Any]:
    mine = context.node_config["partition-id"] == OWNERS
    return X[mine], Y[mine]


def mean_loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1])


def run(app, algorithm: str, weighting: str):
    """Ask two of the four clients in every round."""
    strategy = flower.LocalStrategy(
        algorithm, eta=small.ETA, mu=small.MU, local_steps=small.K, seed=small.SEED, min_nodes=4,
        sample=0.5, quorum=2, weighting=weighting, evaluate_every=0,
    )  # fmt: skip
    arrays = flower.torch_arrays(small.make_module())
    return strategy.start(flower.InProcessGrid(app, 4), arrays, num_rounds=small.ROUNDS)


def assert_same_run(result, method: str, weighting: str) -> None:
    """Compare all that the server holds, and the output."""
    theirs = small.simulated(method, weighting=weighting, participation=0.5)
    held = {**result.sequences, **result.server}
    assert {key.partition("/")[0] for key in held} == set(theirs.state)
    for name, vector in theirs.state.items():
        mine = [array.ravel() for key, array in held.items() if key.startswith(f"{name}/")]
        np.testing.assert_allclose(np.concatenate(mine), vector, rtol=0, atol=1e-9)
    output = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    np.testing.assert_allclose(output, theirs.outputs[-1], rtol=0, atol=1e-9)
    everybody = small.simulated(method, weighting=weighting).outputs[-1]
    assert np.abs(theirs.outputs[-1] - everybody).max() > 1e-3
    assert [row.good for row in result.history.rounds] == [2] * small.ROUNDS


@both_weightings
@pytest.mark.parametrize("method", small.METHODS)
def test_a_federation_equals_the_simulator(method, weighting):
    def make_model(data):
        return flower.TorchModel(small.make_module(), data, mean_loss, batch_size="full")

    app = flower.client_app(rows_of, make_model)
    assert_same_run(run(app, method, weighting), method, weighting)


@both_weightings
def test_adamw_equals_the_simulator_if_clients_keep_its_state(weighting):
    app, kept = flower.tell_number(ClientApp()), {}

    @app.train()
    def train(message, context):
        rows, model = rows_of(context), small.make_module()
        client = context.node_config["partition-id"]
        adamw = torch.optim.AdamW(model.parameters(), lr=small.ETA)
        if client in kept:
            adamw.load_state_dict(kept[client])
        with flower.local_training(message, context, model, adamw) as local:
            for _ in range(small.K):
                adamw.zero_grad()
                mean_loss(model, rows).backward()
                adamw.step()
        kept[client] = adamw.state_dict()
        return local.reply({"num-examples": len(rows[1])})

    assert_same_run(run(app, f"fedavg+{small.SERVER}", weighting), small.DILOCO, weighting)
    assert len(kept) == 4
