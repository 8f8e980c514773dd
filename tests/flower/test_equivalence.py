# SPDX-License-Identifier: Apache-2.0
"""A federation in one process follows the simulator's trajectory."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord, ConfigRecord

from fedac.algorithms import fedac
from fedac.flower import FedAc, FedAvg

L2 = 0.05


@pytest.mark.parametrize("algorithm", ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg"])
def test_in_process_matches_the_simulator(federation, vector, algorithm):
    result = federation.run(algorithm, rounds=6)
    run = federation.simulated(algorithm, rounds=6)
    losses = [loss for _, loss in result.history.metric("loss")]
    np.testing.assert_allclose(losses, run.loss[1:], rtol=1e-9)
    np.testing.assert_allclose(vector(result.arrays), run.w, rtol=1e-9, atol=1e-12)
    for name, sequence in run.state.items():
        mine = np.concatenate([result.sequences[f"{name}/{i}"].ravel() for i in range(2)])
        np.testing.assert_allclose(mine, sequence, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("short", "options"), [(FedAvg, {}), (FedAc, {"mu": L2})])
def test_short_names_are_the_usual_strategies(federation, vector, short, options):
    strategy = short(eta=federation.eta, local_steps=4, min_nodes=8, seed=3, **options)
    mine = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=3)
    usual = federation.run(strategy.algorithm.name, rounds=3)
    np.testing.assert_array_equal(vector(mine.arrays), vector(usual.arrays))


def test_an_output_that_is_not_a_sequence(federation, vector):
    result = federation.run("fedavg-weighted", rounds=3)
    run = federation.simulated("fedavg-weighted", rounds=3)
    np.testing.assert_allclose(vector(result.arrays), run.w, rtol=1e-9)


def test_coefficients_of_your_own(federation, vector):
    own = federation.run(fedac(gamma=federation.eta, alpha=1.0, beta=1.0), rounds=2)
    np.testing.assert_allclose(
        vector(own.arrays), vector(federation.run("fedavg", rounds=2).arrays), rtol=1e-12
    )


def test_float32_models_stay_float32(federation):
    initial = ArrayRecord([federation.w_0[:5].astype(np.float32), federation.w_0[5:, None]])
    result = federation.strategy().start(federation.grid(), initial, num_rounds=2)
    assert [array.dtype for array in result.arrays.values()] == ["float32", "float64"]
    exact = federation.run(rounds=2)
    np.testing.assert_allclose(result.arrays["0"].numpy(), exact.arrays["0"].numpy(), rtol=1e-4)


def test_evaluation_on_the_server_sees_the_output(federation, vector):
    from flwr.app import MetricRecord

    seen = []

    def evaluate(server_round, arrays):
        seen.append((server_round, vector(arrays)))
        return MetricRecord({"norm": float(np.linalg.norm(vector(arrays)))})

    result = federation.strategy(evaluate_every=0).start(
        federation.grid(), federation.initial_arrays(), num_rounds=2, evaluate_fn=evaluate
    )
    assert [number for number, _ in seen] == [0, 1, 2]
    np.testing.assert_array_equal(seen[0][1], federation.w_0)
    np.testing.assert_array_equal(seen[2][1], vector(result.arrays))
    assert [number for number, _ in result.history.metric("server/norm")] == [0, 1, 2]
    assert not result.history.metric("loss")


def test_the_same_seed_asks_the_same_sample_of_clients(federation, vector):
    one, other = federation.grid(), federation.grid()
    first = federation.run(rounds=4, grid=one, sample=3)
    second = federation.run(rounds=4, grid=other, sample=3)
    assert one.asked == other.asked
    assert len(one.asked) == 12
    assert len({node for _, node in one.asked}) > 3
    np.testing.assert_array_equal(vector(first.arrays), vector(second.arrays))


def test_config_entries_reach_the_clients(federation):
    seen = []

    def load_data(context):
        seen.append(dict(context.run_config))
        return federation.F

    grid = federation.grid()
    grid.client_app = federation.app(load_data)
    grid.run_config = {"size": 1, "eta": "mine"}
    federation.strategy().start(
        grid,
        federation.initial_arrays(),
        num_rounds=1,
        train_config=ConfigRecord({"size": 7, "seed": 9}),  # also the strategy's own names
        evaluate_config=ConfigRecord({"size": 8}),
    )
    always = {"eta": "mine", "server-round": 1}  # the number of the round, as in Flower
    assert seen == [{"size": 7, "seed": 9} | always] * 8 + [{"size": 8} | always] * 8
