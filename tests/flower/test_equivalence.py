"""A federation's trajectory is the simulator's, whatever carries the messages."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedac[flower]'")

from flwr.app import ArrayRecord

from fedac.algorithms import FEDAVG_WEIGHTED, MB_SGD
from fedac.errors import InputError
from fedac.flower import FedAc, FedAvg, LocalStrategy

ALGORITHMS = {"I": "fedac-i", "II": "fedac-ii", "vanilla": "fedac-vanilla", "fedavg": "fedavg"}


@pytest.mark.parametrize("variant", ALGORITHMS)
def test_in_process_is_the_simulator(federation, vector, variant):
    result = federation.run(variant, rounds=6)
    run = federation.simulated(ALGORITHMS[variant], rounds=6)
    losses = [loss for _, loss in result.history.metric("loss")]
    np.testing.assert_allclose(losses, run.loss[1:], rtol=1e-9)
    np.testing.assert_allclose(vector(result.arrays), run.w, rtol=1e-9, atol=1e-12)
    for name, sequence in run.state.items():
        mine = np.concatenate([result.sequences[f"{name}/{i}"].ravel() for i in range(2)])
        np.testing.assert_allclose(mine, sequence, rtol=1e-9, atol=1e-12)


def test_the_class_fedavg_is_the_variant_fedavg(federation, vector):
    strategy = FedAvg(eta=federation.eta, local_steps=4, min_nodes=8, seed=3)
    mine = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=3)
    np.testing.assert_array_equal(
        vector(mine.arrays), vector(federation.run("fedavg", rounds=3).arrays)
    )


def test_an_output_that_is_no_sequence(federation, vector):
    strategy = LocalStrategy(
        FEDAVG_WEIGHTED, eta=federation.eta, mu=0.05, local_steps=4, min_nodes=8, seed=3
    )
    result = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=3)
    run = federation.simulated("fedavg-weighted", rounds=3)
    np.testing.assert_allclose(vector(result.arrays), run.w, rtol=1e-9)


def test_coefficients_of_ones_own(federation, vector):
    eta = federation.eta
    own = federation.run("I", rounds=2, gamma=eta, alpha=1.0, beta=1.0)
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


def test_a_sample_of_the_clients_is_asked_and_it_repeats(federation, vector):
    one, other = federation.grid(), federation.grid()
    first = federation.run(rounds=4, grid=one, sample=3)
    second = federation.run(rounds=4, grid=other, sample=3)
    assert one.asked == other.asked
    assert len(one.asked) == 12
    assert len({node for _, node in one.asked}) > 3
    np.testing.assert_array_equal(vector(first.arrays), vector(second.arrays))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "3"}, "unknown variant '3'"),
        ({"eta": -1.0}, "eta must be"),
        ({"local_steps": 0}, "local_steps must be"),
        ({"quorum": 9}, "quorum=9 can never be reached: only 8"),
        ({"quorum": 3, "sample": 2}, "quorum=3 can never be reached: only 2"),
        ({"weighting": "size"}, "unknown weighting"),
        ({"aggregation": "mode"}, "unknown aggregation"),
        ({"aggregation": "median", "weighting": "examples"}, "has no weights"),
        ({"trim": 0.5}, "trim must be"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"deadline": 0.0}, "deadline must be"),
        ({"seed": 2**63}, "seed must be at most"),
        ({"gamma": 1.0}, "all of gamma, alpha and beta"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedAc(**({"eta": 0.5, "mu": 0.5, "local_steps": 4, "min_nodes": 8} | options))


def test_a_minibatch_algorithm_is_refused():
    with pytest.raises(InputError, match="takes no local steps"):
        LocalStrategy(MB_SGD, eta=0.5, mu=0.5, local_steps=4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "nothing to train"),
        ([np.arange(3)], "only floating-point"),
        ([np.array([1.0, np.nan])], "NaN or infinite"),
    ],
)
def test_impossible_models_are_refused(federation, arrays, message):
    with pytest.raises(InputError, match=message):
        federation.strategy().start(federation.grid(), ArrayRecord(arrays), num_rounds=1)


def test_own_config_reaches_clients_but_not_under_our_names(federation):
    from flwr.app import ConfigRecord

    with pytest.raises(InputError, match="itself sends eta"):
        federation.strategy().start(
            federation.grid(), federation.initial_arrays(), train_config=ConfigRecord({"eta": 1.0})
        )
