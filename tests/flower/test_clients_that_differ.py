# SPDX-License-Identifier: Apache-2.0
"""Clients with data of their own follow the simulator's, and so do step sizes that fall."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from fedac.errors import InputError
from fedac.federation.sampling import participants
from fedac.federation.schedule import Decay
from fedac.flower import Checkpoint, InProcessGrid, LocalStrategy, client_app

pytestmark = pytest.mark.slow
CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Different, SEED, K, L2 = (CONFTEST[name] for name in ("Different", "SEED", "K", "L2"))
LOCAL = ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg"]


def assert_same_run(result, run) -> None:
    """Compare all sequences and the output."""
    for name, sequence in run.state.items():
        mine = [
            array.ravel() for key, array in result.sequences.items() if key.startswith(f"{name}/")
        ]
        np.testing.assert_allclose(np.concatenate(mine), sequence, rtol=1e-9, atol=1e-12)
    output = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    np.testing.assert_allclose(output, run.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algorithm", [*LOCAL, "fedavg-weighted"])
@pytest.mark.parametrize("batch", [1, 4, "full"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_clients_that_differ_match_the_simulator(algorithm, batch, weighting):
    federation = Different(batch)
    result = federation.run(algorithm, rounds=5, weighting=weighting)
    assert_same_run(result, federation.simulated(algorithm, 5, weighting=weighting))


def test_the_mean_loss_of_the_clients_is_that_of_all_rows():
    federation = Different()
    result = federation.run(rounds=3, weighting="examples")
    losses = [loss for _, loss in result.history.metric("loss")]
    run = federation.simulated("fedac-i", 3, weighting="examples")
    np.testing.assert_allclose(losses, run.loss[1:], rtol=1e-9)


def test_weights_matter():
    federation = Different()
    results = [federation.run(rounds=2, weighting=w).sequences for w in ("examples", "uniform")]
    assert abs(results[0]["w/0"] - results[1]["w/0"]).max() > 1e-3


@pytest.mark.parametrize(("name", "local"), [("mb-sgd", "fedavg"), ("mb-ac-sgd", "fedac-vanilla")])
def test_a_minibatch_algorithm_is_a_single_local_step(name, local):
    federation = Different(batch=2 * K)
    result = federation.run(local, rounds=5, local_steps=1, weighting="examples")
    assert_same_run(result, federation.simulated(name, 5, batch=2))


@pytest.mark.parametrize("batch", [3, "full"])
def test_torch_clients_match_the_simulator(batch):
    torch = pytest.importorskip("torch")
    from fedac.flower import TorchModel, torch_arrays

    federation = Different(batch)
    federation.w_0 = np.linspace(-1, 1, 12)
    module = torch.nn.Linear(12, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(federation.w_0))

    def load_data(context):
        rows = federation.clients.rows_of(context.node_config["partition-id"])
        return torch.from_numpy(federation.F.X[rows]), torch.from_numpy(federation.F.y[rows])

    def loss(module, batch):
        margins = batch[1] * module(batch[0])[:, 0]
        penalty = L2 / 2 * module.weight.square().sum()
        return penalty - torch.nn.functional.logsigmoid(margins).mean()

    def make_model(data):
        fresh = torch.nn.Linear(12, 1, bias=False, dtype=torch.float64)
        return TorchModel(fresh, data, loss, batch_size=batch)

    eta = Decay(federation.eta, "1/r")
    result = federation.strategy(weighting="examples", eta=eta).start(
        InProcessGrid(client_app(load_data, make_model), 4), torch_arrays(module), num_rounds=5
    )
    assert_same_run(result, federation.simulated("fedac-i", 5, eta=eta))


# -- who takes part ----------------------------------------------------------------------------


class Some(LocalStrategy):
    """Asks the clients that take part in the simulator's round."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        members = participants(self.seed, server_round - 1, 4, 2).tolist()
        return [m for m in messages if m.metadata.dst_node_id - 1 in members]


@pytest.mark.parametrize("algorithm", LOCAL)
def test_some_of_the_clients_match_the_simulator(algorithm):
    federation, rounds = Different(batch=2), 6
    strategy = Some(
        algorithm, eta=federation.eta, mu=L2, local_steps=K, seed=SEED, min_nodes=4, quorum=2,
        weighting="examples",
    )  # fmt: skip
    grid = federation.grid()
    result = strategy.start(grid, federation.initial_arrays(), num_rounds=rounds)
    asked = [[node - 1 for number, node in grid.asked if number == r + 1] for r in range(rounds)]
    assert len({tuple(nodes) for nodes in asked}) > 1
    assert all(len(nodes) == 2 for nodes in asked)
    assert_same_run(result, federation.simulated(algorithm, rounds, participation=0.5))


# -- step sizes that fall ----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", LOCAL)
@pytest.mark.parametrize("by", ["1/sqrt(r)", "inverse(3)", "halve(2)"])
def test_a_decay_matches_the_simulator_and_resumes(algorithm, by, tmp_path):
    federation, path = Different(batch=2), tmp_path / "run.npz"
    options = {"eta": Decay(federation.eta, by), "weighting": "examples"}
    whole = federation.run(algorithm, 6, **options)
    assert_same_run(whole, federation.simulated(algorithm, 6, eta=options["eta"]))
    federation.run(algorithm, 3, checkpoint=path, **options)
    resumed = federation.run(algorithm, 6, resume_from=path, **options)
    for key, array in whole.sequences.items():
        np.testing.assert_array_equal(resumed.sequences[key], array)


def test_a_decay_with_clients_that_are_alike(federation):
    eta = Decay(federation.eta, "1/r")
    result = federation.run(rounds=4, eta=eta)
    assert_same_run(result, federation.simulated("fedac-i", 4, eta=eta))


@pytest.mark.parametrize("eta", [0.05, Decay(0.05, "1/r")])
def test_a_checkpoint_of_another_decay_is_refused(federation, tmp_path, eta):
    path = tmp_path / "run.npz"
    federation.run(rounds=1, eta=Decay(0.05, "1/sqrt(r)"), checkpoint=path)
    wanted = "1/r" if isinstance(eta, Decay) else "None"
    with pytest.raises(InputError, match=rf"written with decay=1/sqrt\(r\), not {wanted}"):
        federation.run(rounds=2, eta=eta, resume_from=path)
    assert Checkpoint.load(path).settings["eta"] == 0.05


def test_an_output_that_assumes_a_constant_step_size_is_refused(federation):
    with pytest.raises(InputError, match="'fedavg-weighted' assumes a constant step size"):
        federation.strategy("fedavg-weighted", eta=Decay(0.1, "1/r"))


def test_hp_are_those_of_the_first_round(federation):
    strategy = federation.strategy("fedac-i", eta=Decay(0.1, "halve(1)"))
    assert strategy.hp == federation.strategy("fedac-i", eta=0.1).hp
    assert strategy.hyperparameters(3) == federation.strategy("fedac-i", eta=0.025).hp
