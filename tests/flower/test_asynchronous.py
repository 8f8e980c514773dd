# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds and deadlines in Flower: the simulator's runs in virtual time, faults."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord, MessageType
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from fedac import Decay, Link, simulate
from fedac.errors import InputError
from fedac.flower import Checkpoint, FedAvg, InProcessGrid, LocalStrategy, QuorumError, client_app
from fedac.objectives import LeastSquares

RNG = np.random.default_rng(3)
D, MU, ETA, K = 4, 0.3, 0.1, 3
X, Y = RNG.standard_normal((14, D)), RNG.standard_normal(14)
OWNERS = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4])  # five clients of different sizes
SPEEDS = [1.0, 2.0, 3.5, 1.25, 6.0]
SECONDS = [0.25 + K * speed for speed in SPEEDS]
LINK = Link(latency=0.25, gradient=1.0, speeds=SPEEDS)
METHODS = ("fedavg", "fedac-i", "scaffold", "fedavg+nesterov(0.7,0.9)")
BUFFERS = [(1, 5), (2, 5), (4, 5), (3, 3), (1, 2)]  # messages, and nodes at work


class Model:
    def __init__(self, client: int, batch: int | str) -> None:
        self.rows, self.batch = np.flatnonzero(client == OWNERS), batch
        self.F = LeastSquares(X, Y, l2=MU)
        self.own = LeastSquares(X[self.rows], Y[self.rows], l2=MU)
        self.n_examples = len(self.rows)

    def gradient(self, w, step):
        if self.batch == "full":
            return [self.own.gradient(w[0])]
        rows = step.rows(self.n_examples, self.batch)
        return [np.mean([self.own.stochastic_gradient(w[0], row) for row in rows], axis=0)]

    def full_gradient(self, w):
        return [self.own.gradient(w[0])]

    def evaluate(self, w):
        return {"loss": self.F.value(w[0])}


class Nodes(InProcessGrid):
    """`change(reply, partition, number)` may change a training reply, drop it, or fail."""

    def __init__(self, *, batch="full", seconds=SECONDS, change=None, folder=None) -> None:
        app = client_app(
            lambda context: context.node_config["partition-id"],
            lambda client: Model(client, batch),
            memory_folder=folder,
        )
        super().__init__(app, 5, seconds=seconds)
        self.configs = dict(enumerate(self.configs.values(), 1))  # partition + 1
        self.change, self.trained = change, []

    def answer(self, message):
        config = self.configs.get(message.metadata.dst_node_id)
        reply = super().answer(message)
        if message.metadata.message_type != MessageType.TRAIN or reply is None:
            return reply
        partition = config["partition-id"]
        self.trained.append(partition)
        return self.change(reply, partition, len(self.trained)) if self.change else reply


def run(method="fedavg", rounds=25, *, grid=None, on_round=None, dtype=float, **options):
    usual = {"eta": ETA, "mu": MU, "local_steps": K, "seed": 1, "min_nodes": 5}
    strategy = LocalStrategy(method, **usual | {"evaluate_every": 0} | options)
    start = ArrayRecord([np.ones(D, dtype)])
    result = strategy.start(grid or Nodes(), start, num_rounds=rounds, on_round=on_round)
    w, seconds = result.arrays["0"].numpy(), [row.seconds for row in result.history.rounds]
    return SimpleNamespace(w=w, seconds=np.cumsum(seconds), result=result, **vars(result))


def simulated(method="fedavg", rounds=25, **options):
    usual = {"clients": OWNERS, "batch": "full", "K": K, "eta": ETA, "mu": MU, "link": LINK,
             "weighting": "uniform", "precision": "float64", "start": np.ones(D),
             "engine": "reference"}  # fmt: skip
    return simulate(LeastSquares(X, Y, l2=MU), method, rounds=rounds, **usual | options).best


def assert_same(mine, theirs) -> None:
    np.testing.assert_allclose(mine.w, theirs.w, rtol=0, atol=1e-9)
    np.testing.assert_allclose(mine.seconds, theirs.timeline.seconds[1:], rtol=0, atol=1e-9)


# -- the simulator's runs, in virtual time -----------------------------------------------------


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("Z", "at_work"), BUFFERS)
def test_asynchronous_rounds_are_the_simulators(Z, at_work, method, weighting) -> None:
    mode = {"mode": f"buffer({Z})", "weighting": weighting}
    mine = run(method, concurrency=at_work, **mode)
    assert_same(mine, simulated(method, participation=at_work, **mode))
    staleness = [row.staleness for row in mine.history.rounds]
    assert max(staleness) > 0 or at_work == Z == 5


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 2},  # who starts twice from one version draws other rows
        {"batch": 2, "wire": "int8"},
        {"eta": Decay(0.2, "1/sqrt(r)")},
        {"method": "fedexp"},
        {"method": "mimelite(0.9)", "first": 1},  # a gradient of all rows before the local steps
        {"method": "fedac-i+cv+nesterov(1,0.3)", "batch": 1},
    ],
)
def test_draws_wires_and_what_methods_ask_for_are_the_simulators(options) -> None:
    options = {"method": "scaffold", "mode": "buffer(4)"} | options
    batch, first = options.pop("batch", "full"), options.pop("first", 0)
    seconds = [0.25 + (first + K) * speed for speed in SPEEDS]
    seed = {"wire_seed": 1} if "wire" in options else {}
    mine = run(grid=Nodes(batch=batch, seconds=seconds), **options, **seed)
    assert_same(mine, simulated(batch=batch, **options))


@pytest.mark.parametrize("method", [*METHODS, "fedac-i+cv+nesterov(1,0.3)"])
def test_nodes_of_one_speed_are_synchronous_to_the_last_bit(method) -> None:
    usual = run(method, wire="int8")
    found = run(method, wire="int8", mode="buffer(5)", grid=Nodes(seconds=[2.0] * 5))
    assert found.sequences.keys() == usual.sequences.keys()
    assert all((found.sequences[k] == usual.sequences[k]).all() for k in usual.sequences)


@pytest.mark.parametrize("method", METHODS)
def test_a_deadline_is_the_simulators(method) -> None:
    # Clients need 3.25, 6.25, 10.75, 4 and 18.25 seconds.
    mine = run(method, mode="deadline(11s)")
    theirs = simulated(method, mode="deadline(11s)")
    np.testing.assert_allclose(mine.w, theirs.w, rtol=0, atol=1e-9)
    rows = mine.history.rounds
    # The slow one gets no second message before the first has ended.
    assert [row.lost for row in rows[:4]] == [1, 0, 1, 0]
    assert [row.seconds for row in rows[:4]] == [11.0, 10.75, 11.0, 10.75]


@pytest.mark.parametrize("method", ["fedac-i", "scaffold"])
def test_a_round_ends_when_the_wanted_number_has_replied(method) -> None:
    # All five are asked, and the first three to reply count: partitions 0, 1 and 3.
    options = {"mode": "deadline(30s)", "oversample": 1.7, "rounds": 1}
    assert_same(run(method, sample=3, **options), simulated(method, participation=3, **options))
    mine = run(method, sample=3, **options | {"rounds": 4})
    assert {row.good for row in mine.history.rounds} == {3}
    assert mine.history.dropped[0].reason == "not among the first 3 to reply"


def test_who_was_late_keeps_the_memory_that_it_had() -> None:
    """Partition 1 is late in every second round: its next work begins with its older memory."""
    slow = iter([3.0, 40.0] * 20)
    grid = Nodes(seconds=lambda partition: next(slow) if partition == 1 else 3.0)
    plain = Nodes(seconds=[3.0] * 5)
    absent = iter(range(10**9))

    def leave(row) -> None:  # the same, but partition 1 is not there
        if next(absent) % 2:
            plain.configs[2] = config
        else:
            plain.configs.pop(2)

    config = plain.configs[2]
    mine = run("scaffold", 2, grid=grid, mode="deadline(20s)")
    other = run("scaffold", 2, grid=plain, on_round=leave, quorum=3)
    np.testing.assert_allclose(mine.w, other.w, rtol=0, atol=1e-12)
    # When its work has ended, it gets other work.
    mine = run("scaffold", 30, grid=grid, mode="deadline(20s)")
    assert [row.memory_lost for row in mine.history.rounds] == [0] * 30
    assert {row.good for row in mine.history.rounds[2:]} == {4, 5}


# -- control variates --------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("mode", ["buffer(1)", "buffer(3)", "deadline(5s)"])
@pytest.mark.parametrize("faulty", [False, True])
def test_c_is_the_mean_of_all_c_m(mode, weighting, faulty, tmp_path) -> None:
    def change(reply, partition, number):
        if number % 7 == 0:
            reply.content["arrays"]["w/0"].data = b"broken"
        return None if number % 11 == 0 else reply

    path, gaps = tmp_path / "run.npz", []
    grid = Nodes(change=change if faulty else None)

    def compare(row) -> None:
        held = Checkpoint.load(path)
        used, total = held.clients["used"], held.clients["total"]
        mean = np.zeros(D)
        for client, (number, weight) in used.items():
            memory = grid.states[int(client) + 1].array_records
            (mine,) = [memory[key] for key in memory if key.endswith(f"/{number}")]
            mean += weight / total * mine["c_m/0"].numpy()
        gaps.append(abs(held.arrays["c/0"] - mean).max())

    result = run(
        "scaffold", 30, grid=grid, mode=mode, weighting=weighting, checkpoint=path,
        on_round=compare, deadline=50.0, quorum=None if "buffer" in mode else 1,
    )  # fmt: skip
    assert len(gaps) == 30
    assert max(gaps) <= 1e-12
    assert sum(row.memory_lost for row in result.history.rounds) == 0
    assert bool(result.history.dropped) == (faulty or "deadline" in mode)


def test_a_reply_that_breaks_the_step_starts_control_variates_again() -> None:
    def change(reply, partition, number):
        if number == 9:
            array = reply.content["arrays"]["w/0"]
            array.data = type(array)(np.full(D, 1e200)).data
            reply.content["memory"].pop("checksum")
        return reply

    mine = run("scaffold", 300, mode="buffer(2)", grid=Nodes(change=change))
    reasons = [drop.reason for drop in mine.history.dropped]
    assert "not finite after the server's step" in reasons[0]
    assert all("control variates began again" in reason for reason in reasons[1:])
    np.testing.assert_allclose(mine.w, simulated("scaffold", 400).w, atol=1e-3)


# -- faults ------------------------------------------------------------------------------------


def test_a_silent_node_loses_its_place_and_a_late_reply_counts() -> None:
    """Partition 4 is lost once, and then needs 60 seconds: more than the deadline."""
    given = iter([float("inf"), 60.0, 60.0, 60.0])
    grid = Nodes(seconds=lambda m: next(given, 5.0) if m == 4 else 5.0)
    mine = run(mode="buffer(2)", concurrency=2, rounds=60, deadline=50.0, grid=grid)
    assert [drop.reason for drop in mine.history.dropped].count("no reply in time") >= 1
    assert {drop.node for drop in mine.history.dropped} == {5}
    assert {row.good for row in mine.history.rounds} == {2}
    # Two places, five seconds: a step every five seconds, also while partition 4 is silent.
    waits = [row.seconds for row in mine.history.rounds]
    assert np.mean(waits) < 9


def test_late_replies_count_with_their_staleness() -> None:
    grid = Nodes(seconds=[5.0, 5.0, 5.0, 5.0, 80.0])
    mine = run(mode="buffer(1)", rounds=90, grid=grid)
    plain = simulated(mode="buffer(1)", rounds=90, participation=5,
                      link=Link(gradient=5 / 3, speeds=[1, 1, 1, 1, 16]))  # fmt: skip
    np.testing.assert_allclose(mine.w, plain.w, rtol=0, atol=1e-9)
    assert max(row.staleness for row in mine.history.rounds) == 64


def test_a_node_that_leaves_is_noticed_and_one_that_returns_works_again() -> None:
    grid = Nodes()
    config = grid.configs[1]

    def move(row) -> None:
        if row.round == 4:
            del grid.configs[1]
        if row.round == 12:
            grid.configs[99] = config  # it comes back as another node

    mine = run("scaffold", 40, mode="buffer(2)", grid=grid, on_round=move)
    assert [d.reason for d in mine.history.dropped if d.node == 1] == ["its node has left"]
    assert grid.trained[:20].count(0) < grid.trained[-20:].count(0) + 5
    assert 0 in grid.trained[-10:]
    # It has lost its memory, so all begin again.
    assert sum(row.memory_lost for row in mine.history.rounds) == 1


def test_a_node_that_fails_waits_for_the_next_step() -> None:
    def change(reply, partition, number):
        if partition == 2:
            reply.content["arrays"]["w/0"].data = b"broken"
        return reply

    mine = run(mode="buffer(2)", grid=Nodes(change=change, seconds=[9, 9, 0.01, 9, 9]))
    assert {row.good for row in mine.history.rounds} == {2}
    assert max(row.bad for row in mine.history.rounds) == 1


def test_without_good_replies_the_run_ends() -> None:
    with pytest.raises(QuorumError, match="0 good replies after 3 attempts") as raised:
        run(mode="buffer(2)", grid=Nodes(change=lambda reply, m, n: None), deadline=9.0)
    assert "no reply in time" in str(raised.value)

    def broken(reply, partition, number):
        reply.content["arrays"]["w/0"].data = b""
        return reply

    with pytest.raises(QuorumError, match=r"after 3 attempts.*unreadable"):
        run(mode="buffer(2)", grid=Nodes(change=broken))


def test_robust_rules_work_on_the_buffer() -> None:
    def lie(reply, partition, number):
        if partition == 0:
            array = reply.content["arrays"]["w/0"]
            array.data = type(array)(np.full(D, 1e6)).data
        return reply

    options = {"mode": "buffer(5)", "grid": Nodes(change=lie, seconds=[5.0] * 5)}
    assert abs(run(aggregation="median", **options).w).max() < 2
    assert abs(run(aggregation="trimmed-mean", trim=0.2, **options).w).max() < 2


# -- checkpoints -------------------------------------------------------------------------------


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_that_stops_within_a_buffer_keeps_its_messages(method, tmp_path) -> None:
    path, folder = tmp_path / "run.npz", tmp_path / "memory"
    options = {"mode": "buffer(4)", "weighting": "examples", "checkpoint": path}

    def stop(reply, partition, number):
        if number == 24:
            raise StoppedError
        return reply

    with pytest.raises(StoppedError):
        run(method, grid=Nodes(change=stop, folder=folder), **options)
    held = Checkpoint.load(path)
    assert 0 < len(held.buffer) < 4
    assert all(reply.arrays["w/0"].shape == (D,) for reply in held.buffer.values())
    grid = Nodes(folder=folder)
    first = []
    mine = run(method, grid=grid, resume=True, **options,
               on_round=lambda row: first.append(len(grid.trained)))  # fmt: skip
    # Five nodes start at once, and so do those whose reply came before the step.
    assert first[0] <= 5 + 4 - len(held.buffer)
    assert [row.round for row in mine.history.rounds] == list(range(1, 26))
    assert {row.good for row in mine.history.rounds} == {4}
    assert sum(row.memory_lost for row in mine.history.rounds) == 0
    with pytest.raises(InputError, match=r"mode=buffer\(4\), not buffer\(3\)"):
        run(method, grid=grid, **options | {"mode": "buffer(3)", "resume": True})


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
module, folder, mode, number = sys.argv[1:]
test = runpy.run_path(module)

def kill(reply, partition, count):
    if count == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return reply

grid = test["Nodes"](change=kill, folder=Path(folder) / "memory")
test["run"]("scaffold", 60, grid=grid, mode=mode, checkpoint=Path(folder) / "run.npz")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "number"), [("buffer(3)", 40), ("buffer(2)", 31), ("deadline(12s)", 23)]
)
def test_a_killed_run_resumes_to_the_optimum(mode, number, tmp_path) -> None:
    script = [sys.executable, "-c", KILLED, __file__, tmp_path, mode, str(number)]
    died = subprocess.run(script, timeout=900, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    path, grid = tmp_path / "run.npz", Nodes(folder=tmp_path / "memory")
    held = Checkpoint.load(path)
    mine = run("scaffold", 400, grid=grid, mode=mode, checkpoint=path, resume=True)
    assert len(held.history.rounds) == held.round > 0
    assert sum(row.memory_lost for row in mine.history.rounds) == 0
    if "buffer" in mode:  # control variates find the optimum of all clients, whoever is slow
        np.testing.assert_allclose(mine.w, simulated("scaffold", 400).w, atol=1e-5)


# -- real time ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_real_time_a_slow_process_holds_up_nobody(monkeypatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where workers find this module

    def load(context):
        time.sleep(1.5 if context.node_config["partition-id"] == 4 else 0.1)
        return context.node_config["partition-id"]

    with InProcessGrid(client_app(load, lambda m: Model(m, "full")), 5, workers=5) as grid:
        mine = run(mode="buffer(2)", rounds=20, grid=grid)
    assert sum(row.seconds for row in mine.history.rounds) < 20 * 1.5


# -- what cannot be ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ({"mode": "buffer"}, "mode is rounds"),
        ({"mode": "until(10s)"}, "is for the simulator"),
        ({"mode": "buffer(6)"}, "more messages than the 5 clients at work.*larger min_nodes"),
        ({"mode": "buffer(3)", "concurrency": 2}, "than the 2 clients at work.*concurrency"),
        ({"mode": "buffer(3)", "concurrency": 6}, "may start with 5 nodes; use min_nodes=6"),
        ({"concurrency": 3}, r"concurrency is for mode='buffer\(10\)'"),
        ({"mode": "buffer(3)", "sample": 3}, "sample is for rounds.*concurrency"),
        ({"mode": "buffer(3)", "quorum": 3}, "quorum is for rounds"),
        ({"mode": "buffer(3)", "grace": 3.0}, "grace is for mode='rounds'"),
        ({"mode": "deadline(3s)", "grace": 3.0}, "grace is for mode='rounds'"),
        ({"mode": "buffer(3)", "deadline": "adaptive"}, "needs a deadline in seconds"),
        ({"mode": "buffer(3)", "oversample": 1.5}, "oversample needs mode deadline"),
        ({"mode": "deadline(3s)", "oversample": 0.5}, "at least 1"),
        ({"mode": "buffer(3)", "evaluate_every": 2}, "evaluate on the server, with evaluate_fn"),
        ({"mode": "buffer(3)", "algorithm": "feddyn(0.1)"}, "stale moves count less"),
        ({"mode": "buffer(3)", "algorithm": "scaffnew"}, "needs all clients in every round"),
        ({"mode": "deadline(3s)", "algorithm": "scaffnew"}, "needs all clients"),
        ({"mode": "buffer(3)", "aggregation": "trimmed-mean"}, "a quorum of 3; it needs a trim"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(options, saying) -> None:
    method = options.pop("algorithm", "fedavg")
    with pytest.raises(InputError, match=saying):
        run(method, **options)


def test_wrappers_and_own_hooks_are_for_rounds() -> None:
    class Own(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, replies)

    options = {"eta": ETA, "local_steps": K, "min_nodes": 5, "mode": "buffer(2)"}
    start = ArrayRecord([np.ones(D)])
    with pytest.raises(InputError, match="does not call aggregate_train"):
        Own(**options).start(Nodes(), start)
    strategy = FedAvg(**options)
    private = DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=2
    )
    with pytest.raises(InputError, match="takes no wrapper"):
        strategy.start(Nodes(), start, wrapper=private)
    with pytest.raises(InputError, match="seconds has 3 numbers for 5 nodes"):
        Nodes(seconds=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("bad", [-1.0, float("nan"), "3", None])
def test_the_seconds_of_a_training_are_a_number(bad) -> None:
    with pytest.raises(InputError, match="the seconds of a training must be a number"):
        Nodes(seconds=[1.0, 1.0, 1.0, 1.0, bad])
    with pytest.raises(InputError, match="the seconds of a training must be a number"):
        run(mode="buffer(2)", rounds=1, grid=Nodes(seconds=lambda partition: bad))
    with pytest.raises(InputError, match="seconds is a number for each node, got 5"):
        Nodes(seconds=5)
