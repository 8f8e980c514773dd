# SPDX-License-Identifier: Apache-2.0
"""InProcessGrid behaves as Flower's own grids do, in one process and in several."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import runpy
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

import cloudpickle
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedac.errors import InputError
from fedac.flower import InProcessGrid

NODES, ROUNDS = 5, 3
IN_PROCESS_AND_WORKERS = pytest.mark.parametrize(
    "workers", [None, pytest.param(2, marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module", autouse=True)
def _this_module_as_code():
    """Let worker processes have the functions of this module, which they cannot import."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def app_of(train, evaluate=None) -> ClientApp:
    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate or train)
    return app


def reply_with(message: Message, **entries) -> Message:
    return Message(RecordDict({"config": ConfigRecord(entries)}), reply_to=message)


def ask(grid, nodes=None, content=None, **options) -> list[Message]:
    """Return messages to all nodes, or to those of some partitions."""
    ids = grid.get_node_ids()
    chosen = ids if nodes is None else [ids[i] for i in nodes]
    return [Message(content or RecordDict(), node, MessageType.TRAIN, **options) for node in chosen]


def order(**entries) -> RecordDict:
    return RecordDict({"config": ConfigRecord(entries)})


def said(replies, key="said"):
    return [reply.content["config"][key] for reply in replies]


# -- any app ------------------------------------------------------------------------------------


def plain_app() -> ClientApp:
    """A client as in Flower's tutorials: it knows nothing of fedac."""

    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        (w,) = message.content["arrays"].to_numpy_ndarrays()
        visits = context.state.setdefault("visits", ConfigRecord({"n": 0}))
        visits["n"] += 1
        w = w + 0.1 * (i + 1 - w) + 1e-3 * visits["n"]
        metrics = MetricRecord({"num-examples": i + 1, "visits": visits["n"]})
        content = RecordDict({"arrays": ArrayRecord([w]), "metrics": metrics})
        return Message(content, reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        (w,) = message.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": 1, "loss": float(np.sum(w**2))})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app_of(train, evaluate)


def run_fedavg(grid):
    random.seed(1)  # Flower draws the order of the nodes
    strategy = FedAvg(min_available_nodes=NODES, min_train_nodes=NODES, min_evaluate_nodes=NODES)
    start = ArrayRecord([np.linspace(0, 1, 7)])
    return strategy.start(grid, start, num_rounds=ROUNDS, timeout=600)


def visits(result) -> list[int]:
    """Return how often every node has been there, by round."""
    return [round(m["visits"], 9) for m in result.train_metrics_clientapp.values()]


def fedavg_by_hand() -> np.ndarray:
    w, weights = np.linspace(0, 1, 7), np.arange(1.0, NODES + 1)
    for number in range(1, ROUNDS + 1):
        each = [w + 0.1 * (i + 1 - w) + 1e-3 * number for i in range(NODES)]
        w = np.average(each, axis=0, weights=weights)
    return w


def test_flowers_own_fedavg_runs_a_plain_app():
    result = run_fedavg(InProcessGrid(plain_app(), NODES))
    (w,) = result.arrays.to_numpy_ndarrays()
    np.testing.assert_allclose(w, fedavg_by_hand(), rtol=1e-12)
    # context.state has stayed from round to round
    assert visits(result) == [1, 2, 3]
    assert len(result.evaluate_metrics_clientapp) == ROUNDS


def test_workers_give_the_same_bits():
    with InProcessGrid(plain_app(), NODES, workers=2) as grid:
        mine, wanted = run_fedavg(grid), run_fedavg(InProcessGrid(plain_app(), NODES))
    assert mine.arrays["0"].data == wanted.arrays["0"].data
    assert mine.train_metrics_clientapp == wanted.train_metrics_clientapp


@pytest.mark.slow
def test_our_strategies_give_the_same_bits_in_workers():
    """Scaffold: clients with a memory, which is in context.state."""
    Different = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["Different"]
    results = []
    for workers in (None, 2):
        federation = Different()
        with InProcessGrid(federation.app(), federation.nodes, workers=workers) as grid:
            results.append(federation.run("scaffold", 3, grid=grid))
    one, other = results
    assert one.history.metric("loss") == other.history.metric("loss")
    for key, array in one.sequences.items():
        np.testing.assert_array_equal(array, other.sequences[key])


def test_a_server_app_runs_with_the_grid():
    server = ServerApp()

    @server.main()
    def main(grid, context):
        context.state["done"] = ConfigRecord(
            {"run": grid.run.run_id, "nodes": len(list(grid.get_nodes()))}
        )
        run_fedavg(grid)

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    server(InProcessGrid(plain_app(), NODES), context)
    assert context.state["done"]["nodes"] == NODES


# -- node ids -----------------------------------------------------------------------------------


def test_node_ids_have_64_bits_and_repeat():
    ids = InProcessGrid(plain_app(), 200).get_node_ids()
    assert len(set(ids)) == 200
    assert 2**63 < max(ids) < 2**64
    assert sum(node > 2**48 for node in ids) > 190
    assert ids != sorted(ids)
    assert InProcessGrid(plain_app(), 50).get_node_ids() == ids[:50]

    def where(message, context):
        return reply_with(message, node=str(context.node_id), **context.node_config)

    grid = InProcessGrid(app_of(where), 3)
    replies = grid.send_and_receive(ask(grid))
    assert said(replies, "node") == [str(node) for node in grid.get_node_ids()]
    assert said(replies, "partition-id") == [0, 1, 2]


def test_a_message_to_nobody_is_not_accepted():
    grid = InProcessGrid(plain_app(), 2)
    assert grid.push_messages([Message(RecordDict(), 12345, MessageType.TRAIN)]) == []


# -- copies -------------------------------------------------------------------------------------


def test_what_a_client_changes_is_its_own():
    """All nodes get the same content object from the server, and change everything in place."""

    def vandal(message, context):
        content = message.content
        before = (content["arrays"]["a"].numpy().tolist(), content["config"]["list"][:])
        content["arrays"]["a"].data = Array(np.zeros(2)).data
        content["arrays"]["b"] = Array(np.zeros(2))
        content["config"]["list"].append(9)
        content["config"]["number"] = 2
        context.run_config["number"] = 2
        context.node_config["more"] = 2
        message.metadata.dst_node_id = 1
        reply = reply_with(message, said=str(before), more=context.node_config["partition-id"])
        return reply

    arrays, config = ArrayRecord({"a": Array(np.ones(2))}), ConfigRecord({"list": [1], "number": 1})
    content = RecordDict({"arrays": arrays, "config": config})
    grid = InProcessGrid(app_of(vandal), 3, run_config={"number": 1})
    messages = ask(grid, content=content)
    for _ in range(2):
        replies = grid.send_and_receive(messages)
        assert said(replies) == [str(([1.0, 1.0], [1]))] * 3
    assert content["arrays"]["a"].numpy().tolist() == [1.0, 1.0]
    assert dict(content["config"]) == {"list": [1], "number": 1}
    assert list(content["arrays"]) == ["a"]
    assert grid.run_config == {"number": 1}
    assert [m.metadata.dst_node_id for m in messages] == grid.get_node_ids()


def test_what_a_server_changes_after_sending_reaches_no_client():
    def echo(message, context):
        time.sleep(0.1)
        return reply_with(message, said=message.content["config"]["number"])

    grid, config = InProcessGrid(app_of(echo), 2), ConfigRecord({"number": 1})
    names = grid.push_messages(ask(grid, content=RecordDict({"config": config})))
    config["number"] = 2
    grid.pull_seconds = 60.0
    assert said(grid.pull_messages(names)) == [1, 1]


def test_what_a_client_keeps_of_its_reply_is_its_own():
    kept = ConfigRecord({"said": 0})

    def keep(message, context):
        mine = context.state.setdefault("mine", ConfigRecord({"said": 0}))
        mine["said"] += 1
        kept["said"] += 1
        return Message(RecordDict({"config": mine, "kept": kept}), reply_to=message)

    grid = InProcessGrid(app_of(keep), 1)
    first = grid.send_and_receive(ask(grid))
    assert (said(first), first[0].content["kept"]["said"]) == ([1], 1)
    first[0].content["config"]["said"] = 100  # the server's copy
    second = grid.send_and_receive(ask(grid))
    assert (said(second), first[0].content["kept"]["said"]) == ([2], 1)


def test_two_grids_have_nothing_in_common():
    app = plain_app()
    one, other = InProcessGrid(app, NODES), InProcessGrid(app, NODES)
    run_fedavg(one)
    result = run_fedavg(other)
    assert visits(result) == [1, 2, 3]
    assert not one.pull_messages(other.push_messages(ask(other)))


# -- deadlines ----------------------------------------------------------------------------------


def sleeper(slow: int, seconds: float) -> ClientApp:
    """Every node counts its messages; one sleeps before its first reply."""

    def train(message: Message, context: Context) -> Message:
        i = context.node_config["partition-id"]
        count = context.state.setdefault("count", ConfigRecord({"n": 0}))
        count["n"] += 1
        if i == slow and count["n"] == 1:
            time.sleep(seconds)
        return reply_with(message, said=i, count=count["n"])

    return app_of(train)


@pytest.mark.slow
def test_pushing_returns_at_once():
    grid = InProcessGrid(sleeper(0, 2.0), 2)
    began = time.monotonic()
    names = grid.push_messages(ask(grid))
    assert time.monotonic() - began < 1.0
    assert not grid.pull_messages(names)
    assert time.monotonic() - began < 1.5
    replies = []
    while len(replies) < 2:
        replies += grid.pull_messages(names)
    assert sorted(said(replies)) == [0, 1]
    assert not grid.pull_messages(names)  # each of them once


@pytest.mark.slow
@IN_PROCESS_AND_WORKERS
def test_a_slow_node_blocks_neither_the_server_nor_the_nodes_after_it(workers):
    with InProcessGrid(sleeper(0, 5.0), 4, workers=workers) as grid:
        if workers:  # start the processes
            grid.send_and_receive(ask(grid, nodes=[1, 2, 3]))
        began, names = time.monotonic(), []
        push = grid._push
        grid._push = lambda *arguments: names.extend(push(*arguments)) or names
        replies = grid.send_and_receive(ask(grid), timeout=2.5)
        grid._push = push
        assert said(replies) == [1, 2, 3]
        assert 2.4 < time.monotonic() - began < 4.7
        # The others are there in the next round; the slow one answers late, and in order.
        assert said(grid.send_and_receive(ask(grid, [3, 2, 1]), timeout=60.0)) == [3, 2, 1]
        (again,) = grid.send_and_receive(ask(grid, [0]), timeout=60.0)
        assert again.content["config"]["count"] == 2
        (late,) = grid.pull_messages(names)
        assert late.content["config"]["count"] == 1


@pytest.mark.slow
def test_several_nodes_that_hang_are_left_alone():
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] in (0, 1, 4):
            time.sleep(10.0)
        return reply_with(message, said=context.node_config["partition-id"])

    grid = InProcessGrid(app_of(train), 6)
    assert said(grid.send_and_receive(ask(grid), timeout=4.0)) == [2, 3, 5]


@pytest.mark.slow
def test_our_deadline_holds(federation):
    def load_data(context):
        if context.node_config["partition-id"] == 2:
            time.sleep(6.0)
        return federation.F

    grid = InProcessGrid(federation.app(load_data), 8)
    began = time.monotonic()
    result = federation.run(rounds=1, grid=grid, deadline=3.0, evaluate_every=0)
    assert time.monotonic() - began < 5.9
    (row,) = result.history.rounds
    assert (row.good, row.lost) == (7, 1)


def test_nodes_run_one_at_a_time_while_there_is_time():
    """In order, and never two at the same moment, even if each takes a while."""
    inside, seen = [], []

    def train(message: Message, context: Context) -> Message:
        inside.append(context.node_id)
        time.sleep(0.2)
        seen.append(list(inside))
        inside.remove(context.node_id)
        return reply_with(message, said=0)

    grid = InProcessGrid(app_of(train), 6)
    assert len(grid.send_and_receive(ask(grid), timeout=60.0)) == 6
    assert seen == [[node] for node in grid.get_node_ids()]


def test_messages_expire():
    """As in Flower: an error with code 3, whether or not the node has answered."""
    grid = InProcessGrid(sleeper(0, 1.5), 2)
    names = grid.push_messages(ask(grid, ttl=0.5))
    time.sleep(0.6)
    replies = grid.pull_messages(names)
    assert [reply.error.code for reply in replies] == [3, 3]
    assert [reply.metadata.reply_to_message_id for reply in replies] == names
    # The second message was not delivered; the first one was, and takes its time.
    (first, second) = grid.send_and_receive(ask(grid), timeout=60.0)
    assert (first.content["config"]["count"], second.content["config"]["count"]) == (2, 1)


# -- faults -------------------------------------------------------------------------------------


FAULTS = {
    "raise": "OSError: disk full",
    "exit": "SystemExit: 3",
    "nothing": "must return Message(content, reply_to=message), not None",
    "number": "not 7",
    "itself": "not another Message",
}


def failing_app() -> ClientApp:
    def train(message: Message, context: Context) -> Message:
        context.state["seen"] = ConfigRecord({"n": 1})
        kind = message.content["config"]["kind"]
        if kind == "raise":
            raise OSError("disk full")
        if kind == "exit":
            sys.exit(3)
        return {"nothing": None, "number": 7, "itself": message}[kind]

    def evaluate(message: Message, context: Context) -> Message:
        return reply_with(message, said=len(context.state))

    return app_of(train, evaluate)


@IN_PROCESS_AND_WORKERS
def test_a_client_that_fails_gives_an_error_and_keeps_its_old_state(workers):
    with InProcessGrid(failing_app(), 1, workers=workers) as grid:
        for kind, reason in FAULTS.items():
            (reply,) = grid.send_and_receive(ask(grid, content=order(kind=kind)))
            assert reply.error.code == 2
            assert "Traceback" in reply.error.reason
            assert reason in reply.error.reason
        (node,) = grid.get_node_ids()
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, MessageType.EVALUATE)])
        assert said([reply]) == [0]


def test_a_fault_of_the_grid_itself_is_raised_by_the_server():
    class Broken(InProcessGrid):
        def answer(self, message):
            raise RuntimeError("my own mistake")

    grid = Broken(plain_app(), 1)
    with pytest.raises(RuntimeError, match="my own mistake"):
        grid.send_and_receive(ask(grid))


# -- worker processes ---------------------------------------------------------------------------


def process_app() -> ClientApp:
    def train(message: Message, context: Context) -> Message:
        count = context.state.setdefault("count", ConfigRecord({"n": 0}))
        count["n"] += 1
        if message.content["config"].get("die") == context.node_config["partition-id"]:
            os.kill(os.getpid(), signal.SIGKILL)
        threads = os.environ["OMP_NUM_THREADS"]
        time.sleep(0.3)
        return reply_with(message, pid=os.getpid(), count=count["n"], threads=threads)

    return app_of(train)


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def wait_until(condition, seconds=60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_are_processes_that_share_nodes_and_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with InProcessGrid(process_app(), 6, workers=2) as grid:
        for number in (1, 2):
            replies = grid.send_and_receive(ask(grid, content=order()))
            assert said(replies, "count") == [number] * 6
        pids = set(said(replies, "pid"))
        assert len(pids) == 2
        assert os.getpid() not in pids
        cores = len(os.sched_getaffinity(0))
        assert set(said(replies, "threads")) == {str(max(1, cores // 2))}
    assert not any(alive(pid) for pid in pids)


class SlowToLoad:
    """Takes seconds to arrive in another process."""

    def __reduce__(self):
        return (time.sleep, (2.5,))


@pytest.mark.slow
def test_no_deadline_counts_the_start_of_workers():
    thing = SlowToLoad()

    def train(message: Message, context: Context) -> Message:
        return reply_with(message, said=context.node_config["partition-id"], thing=str(thing))

    with InProcessGrid(app_of(train), 3, workers=2) as grid:
        assert said(grid.send_and_receive(ask(grid), timeout=2.0)) == [0, 1, 2]
        grid.close()  # they start anew with the next message
        assert said(grid.send_and_receive(ask(grid), timeout=2.0)) == [0, 1, 2]


@pytest.mark.slow
def test_a_killed_worker_is_replaced():
    with InProcessGrid(process_app(), 4, workers=2) as grid:
        before = set(said(grid.send_and_receive(ask(grid, content=order())), "pid"))
        replies = grid.send_and_receive(ask(grid, content=order(die=1)), timeout=60.0)
        errors = [reply.error for reply in replies if reply.has_error()]
        assert [error.code for error in errors] == [8]
        assert "the process that ran this node died: SIGKILL" in errors[0].reason
        after = grid.send_and_receive(ask(grid, content=order()), timeout=60.0)
        assert said(after, "count") == [3, 2, 3, 3]  # what it did last is lost, and nothing else
        assert len(set(said(after, "pid")) | before) == 3


def test_an_app_that_cannot_travel_is_refused():
    lock = threading.Lock()
    grid = InProcessGrid(app_of(lambda message, context: lock.locked()), 1, workers=1)
    with pytest.raises(InputError, match="workers= sends the ClientApp to other processes"):
        grid.send_and_receive(ask(grid))


@pytest.mark.slow
def test_an_app_that_cannot_be_loaded_gives_errors():
    class Unloadable:
        def __reduce__(self):
            return (__import__, ("no_such_module",))

    thing = Unloadable()
    with InProcessGrid(app_of(lambda m, c: thing), 2, workers=1) as grid:
        replies = grid.send_and_receive(ask(grid))
        assert [reply.error.code for reply in replies] == [1, 1]
        assert "No module named 'no_such_module'" in replies[0].error.reason


SCRIPT = """
import os, sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from fedac.flower import InProcessGrid

print("script runs", flush=True)
app = ClientApp()

@app.train()
def train(message, context):
    print("printed by a client")
    return Message(RecordDict({"config": ConfigRecord({"pid": os.getpid()})}), reply_to=message)

grid = InProcessGrid(app, nodes=2, workers=2)
asked = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
for reply in grid.send_and_receive(asked):
    print(reply.content["config"]["pid"], flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["exit", "killed"])
def test_a_script_without_a_guard_runs_once_and_its_workers_end_with_it(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    script = subprocess.Popen(
        [sys.executable, path, "wait" if end == "killed" else "exit"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert script.stdout is not None
    with script, script.stdout as out:
        lines = [out.readline().strip() for _ in range(3)]
        assert lines[0] == "script runs"
        pids = [int(line) for line in lines[1:]]
        if end == "killed":
            script.kill()
        assert out.read() == ""
    assert script.returncode == (-signal.SIGKILL if end == "killed" else 0)
    wait_until(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.slow
def test_workers_end_with_their_grid():
    grid = InProcessGrid(process_app(), 1, workers=1)
    (pid,) = said(grid.send_and_receive(ask(grid, content=order())), "pid")
    assert alive(pid)
    del grid
    gc.collect()
    wait_until(lambda: not alive(pid))


@pytest.mark.parametrize("options", [{"nodes": -1}, {"nodes": 2, "workers": 0}])
def test_impossible_numbers_are_refused(options):
    with pytest.raises(InputError, match="must be a whole number"):
        InProcessGrid(plain_app(), **options)
