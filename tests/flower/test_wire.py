# SPDX-License-Identifier: Apache-2.0
"""Rounded replies over Flower: they follow the simulator, are checked, and cost what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import Array, ArrayRecord

from fedac.errors import InputError
from fedac.federation.compression import bytes_of
from fedac.federation.sampling import participants
from fedac.flower import InProcessGrid, LocalStrategy, QuorumError, client_app

CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five, SEED, K, L2 = (CONFTEST[name] for name in ("Five", "SEED", "K", "L2"))
LOSSY = ["int8", "bfloat16"]
METHODS = ["fedavg", "fedac-i", "scaffold", "fedac-i+cv+nesterov(1,0.3)"]
ROUNDS = 5
NPY = 128  # the header that Flower's arrays have


def options(wire, **more):
    return {"wire": wire, "wire_seed": SEED, "weighting": "examples", **more}


def simulated(federation, algorithm, rounds, wire, **more):
    return federation.simulated(
        algorithm, rounds, **{"weighting": "examples", "precision": "float64"} | more, wire=wire
    )


def assert_same_run(result, run) -> None:
    """Compare all that the server holds, and the output."""
    held = {**result.sequences, **result.server}
    for name, vector in run.state.items():
        mine = [array.ravel() for key, array in held.items() if key.startswith(f"{name}/")]
        np.testing.assert_allclose(np.concatenate(mine), vector, rtol=0, atol=1e-9)
    output = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    np.testing.assert_allclose(output, run.w, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("wire", "weighting"), [("int8", "examples"), ("bfloat16", "uniform")])
@pytest.mark.parametrize(
    "algorithm", [*METHODS, "scaffnew", "feddyn(0.1)", "scaffold-m", "fedac-i+exp", "mimelite(0.9)"]
)
def test_a_federation_matches_the_simulator(algorithm, wire, weighting):
    federation = Five(3)
    result = federation.run(algorithm, ROUNDS, **options(wire, weighting=weighting))
    assert_same_run(result, simulated(federation, algorithm, ROUNDS, wire, weighting=weighting))
    assert not result.history.dropped
    exact = federation.run(algorithm, ROUNDS, weighting=weighting)
    assert abs(exact.sequences["w/0"] - result.sequences["w/0"]).max() > 1e-6


class Some(LocalStrategy):
    """Asks the clients that take part in the simulator's round."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        members = participants(self.seed, server_round - 1, 5, 2).tolist()
        return [m for m in messages if m.metadata.dst_node_id - 1 in members]


@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("algorithm", METHODS)
def test_some_of_the_clients(algorithm, wire):
    federation = Five(2)
    strategy = Some(
        algorithm, eta=federation.eta, mu=L2, local_steps=K, seed=SEED, min_nodes=5, quorum=2,
        **options(wire),
    )  # fmt: skip
    result = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=8)
    assert_same_run(result, simulated(federation, algorithm, 8, wire, participation=0.4))


@pytest.mark.parametrize("algorithm", ["fedac-i", "scaffold"])
@pytest.mark.parametrize("wire", LOSSY)
def test_torch_clients(algorithm, wire):
    torch = pytest.importorskip("torch")
    from fedac.flower import TorchModel, torch_arrays

    federation = Five("full")
    federation.w_0 = np.linspace(-1, 1, 12)

    def linear():
        return torch.nn.Linear(12, 1, bias=False, dtype=torch.float64)

    module = linear()
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(federation.w_0))

    def loss(module, batch):
        margins = batch[1] * module(batch[0])[:, 0]
        penalty = L2 / 2 * module.weight.square().sum()
        return penalty - torch.nn.functional.logsigmoid(margins).mean()

    def load_data(context):
        own = federation.own_rows(context)
        return torch.from_numpy(own.X), torch.from_numpy(own.y)

    app = client_app(load_data, lambda data: TorchModel(linear(), data, loss, batch_size="full"))
    strategy = federation.strategy(algorithm, **options(wire))
    result = strategy.start(InProcessGrid(app, 5), torch_arrays(module), num_rounds=4)
    assert_same_run(result, simulated(federation, algorithm, 4, wire))


# -- the model of a user, its buffers and its bytes ----------------------------------------------


class Still:
    """A model of float32 arrays whose buffer the client sets."""

    n_examples = 1

    def __init__(self, data):
        self.change = data

    def train(self, arrays, task, worker):
        moved = {key: array + np.float32(0.01 * (worker + 1)) for key, array in arrays.items()}
        return self.change(moved), {}

    def evaluate_arrays(self, arrays):
        return {"loss": 0.0}


def still(wire, *, numbers, rounds=2, change=lambda arrays: arrays, algorithm="fedac-i", **more):
    app = client_app(lambda context: change, Still)
    strategy = LocalStrategy(
        algorithm, eta=0.1, mu=0.1, local_steps=2, min_nodes=2, evaluate_every=0, retries=0,
        wire=wire, **more,
    )  # fmt: skip
    start = {"a": np.ones((2, 8)), "b": np.zeros(numbers - 16), "buffer/c": np.full(3, 0.3)}
    record = ArrayRecord({key: Array(array.astype(np.float32)) for key, array in start.items()})
    return strategy.start(InProcessGrid(app, 2), record, num_rounds=rounds)


@pytest.mark.parametrize(("wire", "most"), [("int8", 0.27), ("bfloat16", 0.51)])
@pytest.mark.parametrize("numbers", [4096, 10_001])
def test_bytes_are_a_quarter_or_half(wire, most, numbers):
    exact, rounded = (still(name, numbers=numbers).history.rounds[-1] for name in ("float32", wire))
    buffer = 4 * 3 + NPY
    assert exact.bytes_up == 2 * (2 * (4 * numbers + 2 * NPY) + buffer)
    assert rounded.bytes_up == 2 * (2 * (bytes_of(wire, numbers) + NPY) + buffer)
    assert rounded.bytes_up / exact.bytes_up <= most
    assert rounded.bytes_down == exact.bytes_down


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_buffers_are_not_rounded_and_types_stay(algorithm):
    exact, rounded = (still(wire, numbers=300, algorithm=algorithm) for wire in ("float32", "int8"))
    np.testing.assert_array_equal(rounded.sequences["buffer/c"], exact.sequences["buffer/c"])
    for key, array in exact.sequences.items():
        assert rounded.sequences[key].dtype == np.float32 == array.dtype
        assert rounded.sequences[key].shape == array.shape


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays: {k: v for k, v in arrays.items() if k != "w/a"}, "missing key: w/a"),
        (lambda arrays: arrays | {"w/a": arrays["w/a"].T}, "wrong shape: w/a is"),
        (lambda arrays: arrays | {"w/b": arrays["w/b"].astype(np.float64)}, "wrong type: w/b is"),
        (lambda arrays: arrays | {"w/b": arrays["w/b"] * np.nan}, "not finite: w/"),
        (lambda arrays: arrays | {"buffer/c": arrays["buffer/c"] * np.inf}, "not finite: buffer/c"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wire", LOSSY)
def test_a_model_that_returns_nonsense(change, reason, wire):
    with pytest.raises(QuorumError, match=reason):
        still(wire, numbers=300, rounds=1, change=change)


# -- replies that must not be used ---------------------------------------------------------------


def with_array(reply, key, array):
    (record,) = reply.content.array_records.values()
    if array is None:
        del record[key]
    else:
        record[key] = Array(array)
    return reply


BAD = {
    "wrong shape: w is": np.zeros(5, np.uint8),
    "wrong type: w is float32, not uint8": np.zeros(16, np.float32),
    "missing key: w$": None,
    "not finite: w/0": np.full(16, 255, np.uint8),  # a scale that is NaN
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_reply_is_dropped_with_the_reason(reason):
    federation = Five(3)

    def answer(reply, node, number):
        return with_array(reply, "w", BAD[reason]) if (node, number) == (2, 1) else reply

    result = federation.run("fedac-i", 2, grid=federation.grid(answer=answer), wire="int8")
    (dropped,) = result.history.dropped
    assert (dropped.node, dropped.round) == (2, 1)
    assert re.search(reason, dropped.reason)
    assert [row.good for row in result.history.rounds] == [4, 5]


def test_a_reply_that_was_lost_is_made_again_with_the_same_draws():
    federation, lost = Five(3), []

    def answer(reply, node, number):
        if number == 2 and not lost:
            lost.append(node)
            return None
        return reply

    more = options("int8", quorum=5, deadline=0.2)
    again = federation.run("scaffold", 4, grid=federation.grid(answer=answer), **more)
    whole = federation.run("scaffold", 4, **more)
    assert again.history.rounds[1].attempts == 2
    for key, array in whole.sequences.items():
        np.testing.assert_array_equal(again.sequences[key], array)


# -- checkpoints and options ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "wire"),
    [("fedavg", "int8"), ("scaffold", "bfloat16"), ("fedac-i+cv+nesterov(1,0.3)", "int8")],
)
def test_a_resumed_run_ends_with_the_same_bits(algorithm, wire, tmp_path):
    path, more = tmp_path / "run.npz", options(wire)
    whole = Five(3).run(algorithm, 6, **more)
    Five(3, memory_folder=tmp_path).run(algorithm, 3, checkpoint=path, **more)
    resumed = Five(3, memory_folder=tmp_path).run(algorithm, 6, resume_from=path, **more)
    for key, array in whole.sequences.items():
        np.testing.assert_array_equal(resumed.sequences[key], array)


def test_a_checkpoint_of_another_wire_is_refused(tmp_path):
    federation, path = Five(3), tmp_path / "run.npz"
    federation.run(rounds=1, checkpoint=path)
    with pytest.raises(InputError, match="it was written with wire=float32, not int8"):
        federation.run(rounds=2, resume_from=path, wire="int8")
    federation.run(rounds=1, checkpoint=path, wire="int8", wire_seed=4)
    with pytest.raises(InputError, match="it was written with wire=int8, not float32"):
        federation.run(rounds=2, resume_from=path)
    with pytest.raises(InputError, match="it was written with wire_seed=4, not 0"):
        federation.run(rounds=2, resume_from=path, wire="int8")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wire": "int4"}, "unknown wire format 'int4'; did you mean 'int8'"),
        ({"wire_seed": 2**63}, r"wire_seed must be at most 2\^63 - 1"),
        ({"wire_seed": -1}, "wire_seed must be a whole number"),
    ],
)
def test_unknown_options(given, message):
    with pytest.raises(InputError, match=message):
        Five().strategy(**given)
