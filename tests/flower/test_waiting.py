# SPDX-License-Identifier: Apache-2.0
"""How long rounds wait: a grace period after the quorum, deadlines that follow what was seen."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from fedac.errors import InputError
from fedac.flower import InProcessGrid
from fedac.flower._server.waiting import LONGEST, SHORTEST, Deadline


@pytest.fixture
def stuck(federation):
    """A grid whose client of partition 7 answers only when the test is over."""
    over = threading.Event()

    def load_data(context):
        if context.node_config["partition-id"] == 7:
            over.wait(600)
        return federation.F

    with InProcessGrid(federation.app(load_data), 8) as grid:
        yield grid
        over.set()


@pytest.mark.slow
def test_a_round_continues_after_the_quorum_and_a_grace_period(federation, vector, stuck):
    # The second round starts beside the stuck node after a quarter of the deadline.
    began, deadline = time.monotonic(), 24.0
    options = {"deadline": deadline, "grace": 0.2, "quorum": 7, "evaluate_every": 0}
    result = federation.run(rounds=2, grid=stuck, **options)
    assert time.monotonic() - began < deadline
    assert [(row.good, row.lost) for row in result.history.rounds] == [(7, 1), (7, 1)]
    assert {drop.reason for drop in result.history.dropped} == {"no reply in time"}
    silent = federation.grid(answer=lambda reply, node, number: None if node == 8 else reply)
    plain = federation.run(rounds=2, grid=silent, deadline=0.5, evaluate_every=0)
    np.testing.assert_allclose(vector(result.arrays), vector(plain.arrays), rtol=1e-12)


def test_errors_do_not_begin_the_grace_period(federation):
    """Five errors come at once; the three good replies, later, are all used."""

    def load_data(context):
        if context.node_config["partition-id"] < 5:
            raise ValueError("no data")
        time.sleep(0.3)
        return federation.F

    with InProcessGrid(federation.app(load_data), 8) as grid:
        options = {"grace": 0.01, "quorum": 3, "evaluate_every": 0, "retries": 0}
        result = federation.run(rounds=1, grid=grid, **options)
    assert (result.history.rounds[0].good, result.history.rounds[0].bad) == (3, 5)


def test_an_adaptive_deadline_learns_from_the_rounds(federation):
    strategy = federation.strategy(deadline="adaptive", evaluate_every=0)
    assert strategy.deadline.seconds == LONGEST
    strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=1)
    assert SHORTEST <= strategy.deadline.seconds < LONGEST


def test_an_adaptive_deadline_by_hand():
    deadline = Deadline("adaptive")
    for seconds in (4.0, 30.0, 5.0):
        deadline.saw(seconds)
    assert deadline.seconds == 90.0
    for _ in range(3):
        deadline.missed()
    assert deadline.seconds == LONGEST
    for _ in range(5):  # the slow round is forgotten
        deadline.saw(6.0)
    assert deadline.seconds == 18.0
    fixed = Deadline(7)
    fixed.saw(1.0)
    fixed.missed()
    assert fixed.seconds == 7.0


@pytest.mark.parametrize("given", ["soon", 0, -1.0, None])
def test_impossible_deadlines_are_refused(federation, given):
    with pytest.raises(InputError, match="deadline must be"):
        federation.strategy(deadline=given)
    with pytest.raises(InputError, match="grace must be"):
        federation.strategy(grace=-1)
