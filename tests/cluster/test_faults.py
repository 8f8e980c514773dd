# SPDX-License-Identifier: Apache-2.0
"""Lost nodes and interrupts end a simulation with words, and leave no actor behind."""

from __future__ import annotations

import signal
import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make install")
pytestmark = pytest.mark.slow

# Prints how far it is, then how it ended.
LONG = """
import os, sys
import fedac
from fedac.errors import NodeLostError
from fedac.simulation import SimulationInterrupted

F = fedac.LogisticRegression([[1.0, 0.5], [-0.5, 1.0]] * 20, [1.0, -1.0] * 20, l2=0.01)
started = False

def progress(queries):
    global started
    if not started:
        print("started", flush=True)
    started = True

try:
    fedac.simulate(
        F, "fedavg", M=4096, K=2, T=2 * 10**6, eta=0.1, on="ray", on_progress=progress,
        record_every=2,
    )
except NodeLostError as error:
    print(error)
except SimulationInterrupted as stop:
    print("interrupted with a record:", stop.result.runs[0].steps[-1] > 0)
"""


def test_a_lost_node_is_named_with_the_round_and_what_to_do(two_nodes):
    with two_nodes.start(LONG) as driver:
        try:
            assert "started\n" in driver.stdout  # Ray may print news of nodes before
            two_nodes.tell("kill second")
            output, errors = driver.communicate(timeout=1800)
        finally:
            driver.kill()
            two_nodes.tell("start second")
    said = output.splitlines()[-1]
    assert said.startswith("lost node second in round "), output + errors
    assert said.endswith(
        " of 1000000; a simulation keeps no checkpoint: run it again on the remaining nodes, or "
        "when the node is back"
    )


def test_an_interrupt_stops_the_actors_and_keeps_what_was_recorded(two_nodes):
    with two_nodes.start(LONG) as driver:
        try:
            assert "started\n" in driver.stdout  # Ray may print news of nodes before
            time.sleep(0.2)  # some rounds later
            driver.send_signal(signal.SIGINT)
            output, errors = driver.communicate(timeout=1800)
        finally:
            driver.kill()
    assert output.splitlines()[-1] == "interrupted with a record: True", output + errors
    for _ in range(1800):
        if not two_nodes.processes("ray::Actor"):
            return
        time.sleep(1)
    pytest.fail("actors are left")
