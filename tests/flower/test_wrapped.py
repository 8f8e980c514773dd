# SPDX-License-Identifier: Apache-2.0
"""Flower's wrappers around a strategy keep its quorum, checkpoint, history and model."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fedac.errors import InputError
from fedac.flower import Checkpoint, InProcessGrid, LocalStrategy, QuorumError, client_app


def fixed(strategy, *, noise=0.0, norm=1e9):
    return DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=noise, clipping_norm=norm, num_sampled_clients=8
    )


def adaptive(strategy, *, noise=0.0, norm=1e9):
    return DifferentialPrivacyServerSideAdaptiveClipping(
        strategy,
        noise_multiplier=noise,
        num_sampled_clients=8,
        initial_clipping_norm=norm,
        clipped_count_stddev=4.0 if noise else 0.0,
    )


WRAPPERS = pytest.mark.parametrize("wrap", [fixed, adaptive])


def run(federation, strategy, wrap, *, grid=None, rounds=3, wrapping=None, **start):
    return strategy.start(
        grid or federation.grid(),
        federation.initial_arrays(),
        num_rounds=rounds,
        wrapper=wrap(strategy, **(wrapping or {})),
        **start,
    )


@WRAPPERS
@pytest.mark.parametrize("algorithm", ["fedac-i", "fedavg"])
def test_a_bound_that_clips_nobody_changes_nothing(federation, vector, wrap, algorithm):
    result = run(federation, federation.strategy(algorithm), wrap)
    plain = federation.run(algorithm, 3)
    np.testing.assert_allclose(vector(result.arrays), vector(plain.arrays), rtol=1e-12)
    assert list(result.arrays) == list(federation.initial_arrays())
    assert [row.good for row in result.history.rounds] == [8, 8, 8]
    assert [n for n, _ in result.history.metric("loss")] == [1, 2, 3]


@WRAPPERS
def test_noise_and_clipping_act(federation, vector, wrap):
    plain = vector(federation.run(rounds=1).arrays)
    np.random.seed(0)  # noqa: NPY002 - Flower's noise comes from there
    strategy = federation.strategy(quorum=8)
    noisy = run(federation, strategy, wrap, rounds=1, wrapping={"noise": 1.0})
    assert np.linalg.norm(vector(noisy.arrays) - plain) > 1e3
    clipped = run(federation, federation.strategy(), wrap, rounds=1, wrapping={"norm": 1e-3})
    moved = [a - b.numpy().ravel() for a, b in _pairs(clipped, federation)]
    assert 0 < np.sqrt(sum(np.sum(part**2) for part in moved)) <= 1e-3 * (1 + 1e-9)


def _pairs(result, federation):
    initial = federation.initial_arrays()
    return [(result.arrays[key].numpy().ravel(), initial[key]) for key in initial]


@WRAPPERS
def test_evaluations_follow_the_options(federation, wrap):
    never = run(federation, federation.strategy(evaluate_every=0), wrap)
    assert not never.history.metric("loss")
    seldom = run(federation, federation.strategy(evaluate_every=2), wrap)
    assert [number for number, _ in seldom.history.metric("loss")] == [2, 3]


@WRAPPERS
def test_bad_replies_are_dropped_and_the_rest_is_a_quorum(federation, vector, wrap):
    """Flower's wrappers skip the whole round for one error, and pass NaN on."""

    def answer(reply, node, number):
        if node == 1:
            asked = Message(RecordDict(), node, "train")
            asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
            return Message(Error(2, "ValueError: no data"), reply_to=asked)
        if node == 2:
            record = reply.content["arrays"]
            for key in record:
                record[key] = type(record[key])(np.full(record[key].shape, np.nan))
        return None if node == 3 else reply

    options = {"deadline": 0.2, "evaluate_every": 0}  # for the silent one (see `grid`)
    result = run(
        federation, federation.strategy(**options), wrap, grid=federation.grid(answer=answer)
    )
    assert [(row.good, row.bad, row.lost) for row in result.history.rounds] == [(5, 2, 1)] * 3
    silent = federation.grid(answer=lambda reply, node, number: None if node <= 3 else reply)
    plain = federation.run(rounds=3, grid=silent, **options)
    np.testing.assert_allclose(vector(result.arrays), vector(plain.arrays), rtol=1e-12)


@WRAPPERS
def test_below_the_quorum_the_run_stops_with_what_it_has(federation, wrap, tmp_path):
    path = tmp_path / "run.npz"
    grid = federation.grid(answer=lambda reply, node, number: reply if number < 3 else None)
    strategy = federation.strategy(checkpoint=path, deadline=0.1, retries=0)
    with pytest.raises(QuorumError, match="round 3: 0 good replies after 1 attempts") as raised:
        run(federation, strategy, wrap, grid=grid, rounds=4)
    assert list(raised.value.result.arrays) == list(federation.initial_arrays())
    assert Checkpoint.load(path).round == 2


@WRAPPERS
def test_checkpoints_hold_what_the_wrapper_made_and_resume(federation, vector, wrap, tmp_path):
    path = tmp_path / "run.npz"
    wrapping = {"norm": 0.05}
    whole = run(federation, federation.strategy(), fixed, rounds=5, wrapping=wrapping)
    run(federation, federation.strategy(checkpoint=path), fixed, rounds=2, wrapping=wrapping)
    strategy = federation.strategy(checkpoint=path, resume=True)
    resumed = run(federation, strategy, fixed, rounds=5, wrapping=wrapping)
    np.testing.assert_array_equal(vector(resumed.arrays), vector(whole.arrays))
    assert [row.round for row in resumed.history.rounds] == [1, 2, 3, 4, 5]


@WRAPPERS
def test_flowers_own_loop_is_refused_before_any_node_is_asked(federation, wrap):
    grid, strategy = federation.grid(), federation.strategy()
    for started in (wrap(strategy), strategy):
        with pytest.raises(InputError, match=r"cannot use Flower's own loop.*wrapper=private"):
            Strategy.start(started, grid, federation.initial_arrays(), num_rounds=2)
    assert grid.asked == []


def test_wrappers_that_cannot_be_used_are_refused(federation):
    grid = federation.grid()
    for options, message in (
        ({"algorithm": "diloco"}, "'diloco.*' and differential privacy cannot be combined"),
        ({"algorithm": "scaffold"}, "noise after the server's step"),
        ({"wire": "int8"}, "with wire='int8' replies are bytes"),
        ({"weighting": "examples"}, "needs weighting='uniform' and aggregation='mean'"),
        ({"aggregation": "median"}, "noise is for clients that count the same"),
        ({"algorithm": "scaffnew"}, "'scaffnew' and differential privacy cannot be combined"),
    ):
        with pytest.raises(InputError, match=message):
            run(federation, federation.strategy(**options), fixed, grid=grid)
    strategy, other = federation.strategy(), federation.strategy()
    for wrapper in (fixed(other), other, "private", type(other)):
        with pytest.raises(InputError, match="wrapper must be a strategy around this one"):
            strategy.start(grid, federation.initial_arrays(), wrapper=wrapper)
    assert grid.asked == []


def test_a_private_run_does_not_continue_without_privacy(federation, tmp_path):
    path = tmp_path / "run.npz"
    run(federation, federation.strategy(checkpoint=path), fixed, rounds=1)
    again = federation.strategy(checkpoint=path, resume=True)
    name = "DifferentialPrivacyServerSideFixedClipping"
    with pytest.raises(InputError, match=rf"written with wrapper=\['{name}'\], not \[\]"):
        again.start(federation.grid(), federation.initial_arrays(), num_rounds=2)
    with pytest.raises(InputError, match="AdaptiveClipping"):
        run(federation, again, adaptive, rounds=2)


def test_an_adaptive_norm_continues(federation, tmp_path):
    path, norms = tmp_path / "run.npz", []
    for rounds, options in ((4, {}), (2, {"checkpoint": path}), (4, {"resume_from": path})):
        strategy = federation.strategy(**options)
        wrapper = adaptive(strategy, norm=0.1)
        strategy.start(
            federation.grid(), federation.initial_arrays(), num_rounds=rounds, wrapper=wrapper
        )
        norms.append(wrapper.clipping_norm)
    assert norms[0] == norms[2] != norms[1]


@pytest.mark.parametrize("wrap", [fixed])
def test_a_client_that_does_not_move_does_not_end_a_private_run(federation, wrap):
    """Flower's clipping would divide by 0."""

    def answer(reply, node, number):
        if (node, number) == (2, 2):
            before = grid.sent[node]
            reply.content["arrays"] = before
        return reply

    grid = federation.grid(answer=answer)
    grid.sent, push = {}, grid.push_messages

    def keep(messages):
        messages = list(messages)
        grid.sent |= {m.metadata.dst_node_id: m.content["arrays"] for m in messages}
        return push(messages)

    grid.push_messages = keep
    result = run(federation, federation.strategy(evaluate_every=0), wrap, grid=grid)
    assert [row.good for row in result.history.rounds] == [8, 7, 8]
    assert "has not moved at all" in result.history.dropped[0].reason


@pytest.mark.parametrize("wrap", [fixed, adaptive])
@pytest.mark.parametrize("options", [{}, {"sample": 0.5, "quorum": 3}, {"quorum": 7}])
def test_noise_for_more_clients_than_a_round_may_have_is_refused(federation, wrap, options):
    """Flower divides the noise by the clients that were to be sampled, whoever replies."""
    fewest = options.get("quorum", 5)
    strategy, grid = federation.strategy(**options), federation.grid()
    words = f"num_sampled_clients=8, but a round may have only {fewest} good replies"
    with pytest.raises(InputError, match=words):
        run(federation, strategy, wrap, grid=grid, wrapping={"noise": 1.0})
    assert grid.asked == []


@pytest.mark.slow
def test_noise_is_enough_for_the_smallest_round(federation):
    """Measured against z C over the replies of a round, in 20,000 numbers.

    Their standard deviation is within 3% with a probability of 1 - 2e-9.
    """
    z, C, d = 0.7, 2.0, 20_000

    class Constant:
        n_examples = 1

        def __init__(self, data):
            pass

        def gradient(self, w, step):
            return [np.ones(d)]

    for replies in (6, 5, 4):
        grid = InProcessGrid(client_app(lambda context: None, Constant), 6)
        silent = set(grid.get_node_ids()[replies:])
        answer = grid.answer
        grid.answer = lambda m, answer=answer, silent=silent: (
            None if m.metadata.dst_node_id in silent else answer(m)
        )
        strategy = LocalStrategy(
            "fedavg", eta=0.1, mu=1.0, local_steps=1, min_nodes=6, quorum=4, deadline=1.0,
            evaluate_every=0,
        )  # fmt: skip
        private = DifferentialPrivacyServerSideFixedClipping(
            strategy, noise_multiplier=z, clipping_norm=C, num_sampled_clients=4
        )
        np.random.seed(replies)  # noqa: NPY002 - Flower's noise comes from there
        result = strategy.start(grid, ArrayRecord([np.zeros(d)]), num_rounds=1, wrapper=private)
        assert result.history.rounds[0].good == replies
        noise = result.arrays["0"].numpy() + C / np.sqrt(d)  # every client moves by C along ones
        assert noise.std() >= 0.97 * z * C / replies
        assert noise.std() == pytest.approx(z * C / 4, rel=0.03)
