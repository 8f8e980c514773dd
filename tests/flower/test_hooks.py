# SPDX-License-Identifier: Apache-2.0
"""`start` drives the round through Flower's hooks, so a subclass may override any of them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fedac.flower import LocalStrategy, QuorumError
from fedac.flower._arrays import from_record, to_record

OPTIONS = {"mu": 0.05, "local_steps": 4, "min_nodes": 8, "seed": 3, "deadline": 60.0}


def start(strategy, federation, grid=None, rounds=2):
    grid = grid or federation.grid()
    return strategy.start(grid, federation.initial_arrays(), num_rounds=rounds)


def test_an_overridden_configure_train_chooses_the_nodes(federation):
    class OddNodes(LocalStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            messages = super().configure_train(server_round, arrays, config, grid)
            return [m for m in messages if m.metadata.dst_node_id % 2]

    grid = federation.grid()
    strategy = OddNodes("fedac-i", eta=federation.eta, quorum=4, **OPTIONS)
    result = start(strategy, federation, grid)
    assert {node for _, node in grid.asked} == {1, 3, 5, 7}
    assert [row.good for row in result.history.rounds] == [4, 4]
    assert not result.history.dropped


def test_a_replaced_configure_train_is_used(federation, vector):
    class Replaced(LocalStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            nodes = grid.get_node_ids()
            return self.messages("train", server_round, arrays, config, nodes)

    mine = start(Replaced("fedac-i", eta=federation.eta, **OPTIONS), federation)
    np.testing.assert_array_equal(vector(mine.arrays), vector(federation.run(rounds=2).arrays))


def test_an_overridden_aggregate_train_changes_model_and_metrics(federation):
    class Rounded(LocalStrategy):
        def aggregate_train(self, server_round, replies):
            arrays, _ = super().aggregate_train(server_round, replies)
            rounded = {key: np.round(a, 2) for key, a in from_record(arrays).items()}
            return to_record(rounded), MetricRecord({"mine": server_round})

    result = start(Rounded("fedac-i", eta=federation.eta, **OPTIONS), federation)
    for array in result.sequences.values():
        np.testing.assert_array_equal(array, np.round(array, 2))
    assert result.history.metric("train/mine") == [(1, 1.0), (2, 2.0)]


def test_an_overridden_aggregate_train_sees_every_attempt(federation):
    """A hook may mend what a client sends, before it is checked."""
    seen = []

    class Counting(LocalStrategy):
        def aggregate_train(self, server_round, replies):
            seen.append(len(replies))
            return super().aggregate_train(server_round, replies)

    failed = set()

    def flaky(reply, node, number):
        if node <= 5 and node not in failed:
            failed.add(node)
            return None
        return reply

    options = OPTIONS | {"deadline": 0.2, "quorum": 6}
    strategy = Counting("fedac-i", eta=federation.eta, **options)
    result = start(strategy, federation, federation.grid(answer=flaky), rounds=1)
    assert seen == [3, 5]
    (row,) = result.history.rounds
    assert (row.good, row.lost, row.attempts) == (8, 5, 2)


def test_overridden_evaluation_hooks_are_used(federation):
    class OneNode(LocalStrategy):
        def configure_evaluate(self, server_round, arrays, config, grid):
            config = ConfigRecord({**config, "mine": 1})
            return super().configure_evaluate(server_round, arrays, config, grid)[:1]

        def aggregate_evaluate(self, server_round, replies):
            return MetricRecord({"replies": len(replies)})

    strategy = OneNode("fedac-i", eta=federation.eta, **OPTIONS)
    result = start(strategy, federation)
    assert result.history.metric("replies") == [(1, 1.0), (2, 1.0)]


def test_a_run_forgets_an_earlier_one_that_failed(federation, vector):
    """Replies to one run's first round must not contribute to the next, of another model."""
    strategy = federation.strategy(quorum=8, evaluate_every=0, deadline=0.1, retries=0)
    grid = federation.grid(answer=lambda reply, node, number: None if node == 1 else reply)
    other = ArrayRecord([array.numpy() + 1.0 for array in federation.initial_arrays().values()])
    with pytest.raises(QuorumError):
        strategy.start(grid, other, num_rounds=1)
    result = start(strategy, federation, rounds=1)
    whole = federation.run(rounds=1, evaluate_every=0)
    np.testing.assert_array_equal(vector(result.arrays), vector(whole.arrays))
