"""A federation's trajectory is the simulator's, whatever carries the messages."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedac[flower]'")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedac.algorithms import FEDAVG_WEIGHTED, MB_SGD
from fedac.errors import InputError
from fedac.flower import Aggregation, FedAc, FedAvg, InProcessGrid, LocalStrategy, client_app
from fedac.flower.messages import to_record
from fedac.flower.state import initial_state

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
        ({"aggregation": "trimmed-mean", "trim": 0.5}, "trim must be above 0 and below 1/2"),
        ({"aggregation": "trimmed-mean", "trim": "0.2"}, "trim must be a finite number"),
        ({"aggregation": "trimmed-mean"}, r"nobody would be left out; trim must be at least 0\.2$"),
        ({"aggregation": "trimmed-mean", "quorum": 2}, "needs a quorum of at least 3, got 2"),
        ({"aggregation": "clipped-mean", "clip_norm": 0.0}, "clip_norm must be"),
        ({"aggregation": "clipped-mean", "weighting": "examples"}, "has no weights"),
        ({"trim": 0.2}, "trim is for 'trimmed-mean', not for 'mean'"),
        ({"clip_norm": 1.0}, "clip_norm is for 'clipped-mean', not for 'mean'"),
        ({"variant": ["I"]}, "unknown variant .*fedavg"),
        ({"variant": "II", "gamma": 1.0, "alpha": 2.0, "beta": 3.0}, "variant='II' chooses"),
        ({"variant": "fedavg", "beta": 3.0}, "variant='fedavg' has no gamma"),
        ({"checkpoint": ""}, "checkpoint is empty"),
        ({"deadline": 0.0}, "deadline must be"),
        ({"seed": 2**63}, "seed must be at most"),
        ({"gamma": 1.0}, "all of gamma, alpha and beta"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedAc(**({"eta": 0.5, "mu": 0.5, "local_steps": 4, "min_nodes": 8} | options))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": None}, "grid must be a Grid, got NoneType"),
        ({"initial_arrays": [np.ones(3)]}, "must be an ArrayRecord, got list"),
        ({"timeout": 0}, "timeout must be a finite number above 0"),
        ({"timeout": "3"}, "timeout must be a finite number above 0"),
        ({"evaluate_fn": 3}, "evaluate_fn must be a function, got int"),
        ({"evaluate_fn": lambda *_: (1, 2)}, "must return a MetricRecord or None, got tuple"),
        ({"train_config": {"seed": 3}}, "the strategy itself sends seed"),
        ({"evaluate_config": {"server-round": 3}}, "the strategy itself sends server-round"),
        ({"evaluate_config": {"eta": 3.0}}, "the strategy itself sends eta"),
        ({"num_rounds": 2.5}, "num_rounds must be a whole number"),
    ],
)
def test_impossible_starts_are_refused_before_anybody_waits(federation, given, message):
    grid = federation.grid()
    start = {"grid": grid, "initial_arrays": federation.initial_arrays(), "num_rounds": 2}
    with pytest.raises(InputError, match=message):
        federation.strategy().start(**(start | given))
    assert grid.asked == []


def test_the_trim_that_is_advised_is_accepted():
    for quorum in range(3, 60):
        trim = np.ceil(1000 / quorum) / 1000
        assert Aggregation(rule="trimmed-mean", trim=trim).left_out(quorum) == 1
        assert Aggregation(rule="trimmed-mean", trim=1 / quorum).left_out(quorum) == 1


def test_numbers_of_numpy_go_into_checkpoints(federation, tmp_path):
    path = tmp_path / "run.npz"
    for options in (
        {"aggregation": "clipped-mean", "clip_norm": np.float32(1)},
        {"aggregation": "trimmed-mean", "trim": np.float32(0.3)},
    ):
        federation.run(rounds=1, checkpoint=path, **options)
        federation.run(rounds=2, checkpoint=path, resume_from=path, **options)


def test_a_model_that_is_never_evaluated_needs_no_evaluate(federation):
    class Blind:
        n_examples = 5

        def gradient(self, w, step):
            return w

    app = client_app(lambda context: None, lambda data: Blind())
    strategy = federation.strategy(min_nodes=2, evaluate_every=0)
    result = strategy.start(InProcessGrid(app, 2), federation.initial_arrays(), num_rounds=1)
    assert result.history.rounds[0].good == 2


@pytest.mark.parametrize(
    ("path", "message"), [("", "is a folder"), ("file/run.npz", "cannot be written")]
)
def test_a_checkpoint_that_cannot_be_written_is_refused_at_once(
    federation, tmp_path, path, message
):
    (tmp_path / "file").touch()
    grid = federation.grid()
    with pytest.raises(InputError, match=message):
        federation.run(grid=grid, checkpoint=tmp_path / path)
    assert grid.asked == []


def test_flower_s_own_loop_needs_all_sequences(federation, vector):
    strategy, grid = federation.strategy(evaluate_every=0), federation.grid()
    with pytest.raises(InputError, match=r"needs all sequences \(w_ag, w\); call strategy\.start"):
        Strategy.start(strategy, grid, federation.initial_arrays(), num_rounds=2)
    whole = to_record(initial_state(strategy.algorithm, federation.initial_arrays()))
    theirs = Strategy.start(strategy, grid, whole, num_rounds=2)
    ours = federation.run(rounds=2, evaluate_every=0)
    for key, array in ours.sequences.items():
        np.testing.assert_array_equal(theirs.arrays[key].numpy(), array)


def test_entries_of_the_server_reach_the_clients(federation):
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
        train_config=ConfigRecord({"size": 7}),
        evaluate_config=ConfigRecord({"size": 8}),
    )
    assert seen == [{"size": 7, "eta": "mine"}] * 8 + [{"size": 8, "eta": "mine"}] * 8


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
