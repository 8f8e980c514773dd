# SPDX-License-Identifier: Apache-2.0
"""A record of the user's own runs over Flower, and clients need no copy of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from fedac.algorithms import FEDAC_I, FEDAVG, Algorithm
from fedac.algorithms.hyperparameters import Hyperparameters
from fedac.flower import LocalStrategy, QuorumError


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumHyperparameters(Hyperparameters):
    momentum: float


# Heavy-ball momentum: a second sequence v that starts at 0, and a gradient at w + momentum v.
MOMENTUM = Algorithm(
    name="momentum",
    label="Local momentum",
    sequences=("w", "v"),
    couple=lambda *, eta, mu, K: MomentumHyperparameters(eta=eta, momentum=0.5),
    start=lambda w_0: (w_0, 0 * w_0),
    query=lambda state, hp: state[0] + hp.momentum * state[1],
    update=lambda state, w_md, g, hp: (
        state[0] + hp.momentum * state[1] - hp.eta * g,
        hp.momentum * state[1] - hp.eta * g,
    ),
    output=lambda state, hp, t: state[0],
)


@pytest.mark.parametrize(
    "algorithm",
    [
        MOMENTUM,
        replace(FEDAC_I, name="fedavg"),  # a built-in name does not make it the built-in
        replace(FEDAVG, output=lambda state, hp, t: 2 * state[0]),
    ],
    ids=["momentum", "with the name of a built-in", "output"],
)
def test_an_own_record_matches_the_simulator(federation, vector, algorithm):
    result = federation.run(algorithm, rounds=5)
    run = federation.simulated(algorithm, rounds=5)
    np.testing.assert_allclose(vector(result.arrays), run.w, rtol=1e-9, atol=1e-12)
    losses = [loss for _, loss in result.history.metric("loss")]
    np.testing.assert_allclose(losses, run.loss[1:], rtol=1e-9)


def test_an_own_record_runs_on_pytorch_clients(federation):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from fedac.flower import InProcessGrid, TorchModel, client_app, torch_arrays

    X = torch.tensor(np.random.default_rng(0).normal(size=(40, 3)))
    data = (X, X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64))

    def loss(module, batch):
        return torch.nn.functional.mse_loss(module(batch[0]), batch[1])

    def make_model(data):
        return TorchModel(torch.nn.Linear(3, 1).double(), data, loss, batch_size=8)

    class NumPyModel:
        n_examples = 40

        def __init__(self, data):
            self.X, self.y = (part.numpy() for part in data)

        def gradient(self, w, step):
            rows = step.rows(40, 8)
            residual = self.X[rows] @ w[0].T + w[1] - self.y[rows]
            return [residual.T @ self.X[rows] / 4, residual.mean(axis=0) * 2]

    initial = torch_arrays(make_model(data).module)
    results = [
        federation.strategy(MOMENTUM, min_nodes=2, evaluate_every=0).start(
            InProcessGrid(client_app(lambda context: data, model), 2), initial, num_rounds=3
        )
        for model in (make_model, NumPyModel)
    ]
    assert not results[0].history.dropped
    for key, array in results[1].sequences.items():
        np.testing.assert_allclose(results[0].sequences[key], array, rtol=1e-9, atol=1e-12)


def test_an_own_record_resumes(federation, vector, tmp_path):
    path = tmp_path / "run.npz"
    federation.run(MOMENTUM, rounds=2, checkpoint=path)
    resumed = federation.run(MOMENTUM, rounds=4, resume_from=path)
    np.testing.assert_array_equal(
        vector(resumed.arrays), vector(federation.run(MOMENTUM, rounds=4).arrays)
    )


def test_a_client_that_cannot_read_the_algorithm_says_why(federation):
    """A server of another version of fedac sends the name alone, say."""

    class NameOnly(LocalStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            messages = super().configure_train(server_round, arrays, config, grid)
            for message in messages:
                message.content["config"]["fedac/task"] = '{"algorithm": "fedac-i"}'
            return messages

    strategy = NameOnly("fedac-i", eta=0.1, mu=0.1, local_steps=2, retries=0)
    reason = "the server's message has no '.*': does the server use the same version"
    with pytest.raises(QuorumError, match=f"error 2: InputError: {reason}"):
        strategy.start(federation.grid(nodes=2), federation.initial_arrays())
