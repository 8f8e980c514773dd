# SPDX-License-Identifier: Apache-2.0
"""Memories of clients are used exactly once, whatever happens to replies; lost ones are counted."""

from __future__ import annotations

import json
import logging
import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import Array, ArrayRecord, RecordDict

from fedac.algorithms import ClientWork, RoundInfo, get
from fedac.errors import InputError
from fedac.flower import LocalStrategy, QuorumError
from fedac.flower._client.round import ClientMemory
from fedac.flower._server.known_clients import KnownClients
from fedac.flower._task import MemoryVersion

pytestmark = pytest.mark.slow
CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five, SEED, K, L2 = (CONFTEST[name] for name in ("Five", "SEED", "K", "L2"))
ROUNDS, BAD = 6, 3  # the node that misbehaves
WITH_MEMORY = ["scaffold", "scaffnew", "fedac-i+local+cv+nesterov(1, 0.3)"]
RUN = "0123456789abcdef"


@pytest.fixture(params=WITH_MEMORY)
def algorithm(request):
    return request.param


def run(federation, algorithm, grid=None, rounds=ROUNDS, **options):
    options = {"evaluate_every": 0, "eta": 0.3 * federation.eta} | options
    return federation.run(algorithm, rounds, grid=grid, **options)


def assert_same(mine, other) -> None:
    for one, two in ((mine.sequences, other.sequences), (mine.server, other.server)):
        assert one.keys() == two.keys()
        for key, array in two.items():
            np.testing.assert_allclose(one[key], array, rtol=1e-12, atol=1e-14)


def lost(result) -> list[int]:
    return [row.memory_lost for row in result.history.rounds]


def spoiled(reply):
    """Put a NaN into a reply."""
    arrays = reply.content["arrays"].copy()
    key = next(iter(arrays))
    arrays[key] = Array(arrays[key].numpy() * np.nan)
    content = reply.content.copy()
    content["arrays"] = arrays
    reply.content = content
    return reply


# -- exactly once ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [lambda reply: None, spoiled], ids=["lost", "NaN"])
def test_a_retry_does_not_use_a_memory_twice(algorithm, fault):
    """Every client's first reply of every round fails, after it has moved its memory."""
    federation, failed = Five(2), set()

    def flaky(reply, node, number):
        if (node, number) in failed:
            return reply
        failed.add((node, number))
        return fault(reply)

    grid = federation.grid(answer=flaky)
    result = run(federation, algorithm, grid, quorum=5, deadline=0.05)
    assert len(grid.asked) == 2 * 5 * ROUNDS
    assert_same(result, run(federation, algorithm))
    assert lost(result) == [0] * ROUNDS


def test_a_late_reply_of_the_same_round_fits_the_memory(algorithm):
    """Its client was asked again meanwhile, and has taken the round's steps twice."""
    federation = Five(2)
    grid = federation.grid()
    now, kept = grid.pull_messages, {}

    def slow(names):
        replies = now(names)
        if "message-6" in names:  # the second one for this node
            return [*kept.values(), *replies]
        for reply in replies:
            if reply.metadata.reply_to_message_id == f"message-{BAD}":
                kept[BAD] = reply
        return [reply for reply in replies if reply is not kept.get(BAD)]

    grid.pull_messages = slow
    result = run(federation, algorithm, grid, quorum=5, deadline=0.05)
    assert_same(result, run(federation, algorithm))
    assert result.history.rounds[0].attempts == 2
    assert grid.asked.count((1, BAD)) == 2


class Without(LocalStrategy):
    """Does not ask node BAD in some rounds."""

    rounds = ()

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        left_out = BAD if server_round in self.rounds else None
        return [m for m in messages if m.metadata.dst_node_id != left_out]


@pytest.mark.parametrize("rounds", [(1,), (2, 3), (1, 2, 4)])
@pytest.mark.parametrize("fault", [lambda reply: None, spoiled], ids=["lost", "NaN"])
def test_a_reply_that_is_not_used_leaves_no_trace(algorithm, rounds, fault):
    federation = Five(2)
    grid = federation.grid(
        answer=lambda reply, node, number: (
            fault(reply) if node == BAD and number in rounds else reply
        )
    )
    result = run(federation, algorithm, grid, deadline=0.05)
    strategy = Without(
        algorithm, eta=0.3 * federation.eta, mu=L2, local_steps=K, seed=SEED, min_nodes=5
    )
    strategy.rounds = rounds
    wanted = strategy.start(federation.grid(), federation.initial_arrays(), num_rounds=ROUNDS)
    assert_same(result, wanted)
    assert lost(result) == lost(wanted) == [0] * ROUNDS
    assert [row.good for row in result.history.rounds] == [
        4 if number in rounds else 5 for number in range(1, ROUNDS + 1)
    ]


def test_a_run_below_the_quorum_resumes_with_the_clients_that_are_there(algorithm, tmp_path):
    federation, path = Five(2), tmp_path / "run.npz"
    dead = []
    grid = federation.grid(answer=lambda reply, node, number: None if dead and node < 5 else reply)
    run(federation, algorithm, grid, 3, checkpoint=path)
    dead.append(True)
    with pytest.raises(QuorumError, match="round 4: 1 good replies"):
        run(federation, algorithm, grid, checkpoint=path, resume_from=path, deadline=0.05)
    dead.clear()
    resumed = run(federation, algorithm, grid, checkpoint=path, resume_from=path)
    assert_same(resumed, run(federation, algorithm))
    assert lost(resumed) == [0] * ROUNDS


def test_clients_that_are_ahead_of_the_checkpoint_say_so(tmp_path):
    """Its server was resumed from an old copy: the rounds since then are not its own."""
    federation, path = Five(2), tmp_path / "run.npz"
    grid = federation.grid()
    run(federation, "scaffold", grid, 2, checkpoint=path)
    run(federation, "scaffold", grid, 5, resume_from=path)
    resumed = run(federation, "scaffold", grid, resume_from=path)
    assert lost(resumed) == [0, 0, 5, 0, 0, 0]


def test_a_second_run_begins_anew(algorithm):
    federation = Five(2)
    grid = federation.grid()
    first, second = (run(federation, algorithm, grid) for _ in range(2))
    assert_same(second, first)
    assert lost(second) == [0] * ROUNDS
    assert all(len(state) == 2 for state in grid.states.values())  # of the second run alone


# -- memory that is lost -----------------------------------------------------------------------


def by_the_record(federation, name: str, forget: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return the sequences after a run in which client `forget[0]` forgets before a round.

    After that round all clients begin again, with c = 0.
    """
    from fedac.objectives import LogisticRegression

    algorithm = get(name)
    hp = algorithm.couple(eta=0.3 * federation.eta, mu=L2, K=K)
    rows = [federation.clients.rows_of(m) for m in range(5)]
    own = [LogisticRegression(federation.F.X[r], federation.F.y[r], l2=L2) for r in rows]
    sequences, server = algorithm.split(algorithm.start(federation.w_0))
    memories = [None] * 5
    for r in range(ROUNDS):
        if r + 1 == forget[1]:
            memories[forget[0]] = None
        messages = []
        for m in range(5):
            memory = algorithm.begin_memory(sequences) if memories[m] is None else memories[m]
            local = algorithm.enter(sequences, memory, hp)
            for _ in range(K):
                w_md = algorithm.query(local, hp)
                local = algorithm.update(local, w_md, own[m].gradient(w_md), hp)
            message, memories[m] = algorithm.leave(
                local, sequences, memory, hp, ClientWork(steps=K)
            )
            messages.append(message)
        mean = tuple(np.mean(vectors, axis=0) for vectors in zip(*messages, strict=True))
        sequences, server = algorithm.serve(mean, sequences, server, hp, RoundInfo(number=r))
        if r + 1 == forget[1]:
            memories, sequences = [None] * 5, (*sequences[:-1], 0 * sequences[-1])
    return dict(zip(algorithm.sequences, sequences, strict=True))


class Forgetful:
    """Calls `harm(state)` on a node's state before its message of round 4."""

    def __init__(self, federation, harm) -> None:
        self.grid = federation.grid()
        honest = self.grid.client_app

        def app(message, context):
            if (message.metadata.dst_node_id, message.metadata.group_id) == (BAD, "4"):
                harm(context.state)
            return honest(message, context)

        self.grid.client_app = app


def change(state: RecordDict, *, key: str | None = None, array=None) -> None:
    """Replace an array of every memory, or add one."""
    for name, record in state.array_records.items():
        first = next(iter(record))
        state[name] = ArrayRecord({**record, key or first: Array(array(record[first].numpy()))})


def lying(state: RecordDict) -> None:
    for name, record in state.array_records.items():
        whole = {key: Array("float64", (5,), "numpy.ndarray", b"\x80\x04N.") for key in record}
        state[name] = ArrayRecord(whole)


HARM = {
    "deleted": lambda state: state.clear(),
    "NaN": lambda state: change(state, array=lambda a: a * np.nan),
    "wrong shape": lambda state: change(state, array=lambda a: np.append(a, 0.0)),
    "wrong type": lambda state: change(state, array=lambda a: a.astype(np.float32)),
    "extra key": lambda state: change(state, key="v/0", array=lambda a: a),
    "a pickle": lying,
}


@pytest.mark.parametrize("harm", HARM)
def test_a_lost_memory_begins_anew_and_is_counted(harm, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "flwr.fedac")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    federation = Five("full")
    result = run(federation, "scaffold", Forgetful(federation, HARM[harm]).grid)
    assert lost(result) == [0, 0, 0, 1, 0, 0]
    assert result.history.to_frame()["memory_lost"].tolist() == lost(result)
    wanted = by_the_record(federation, "scaffold", forget=(BAD - 1, 4))
    for name, vector in wanted.items():
        mine = np.concatenate([result.sequences[f"{name}/{i}"].ravel() for i in range(2)])
        np.testing.assert_allclose(mine, vector, rtol=1e-9, atol=1e-12)
    warned = [r.getMessage() for r in caplog.records if "had lost" in r.getMessage()]
    (text,) = warned
    assert "round 4: 1 of 5 clients had lost their memory and started again: node" in text
    assert text.endswith(f"(partition {BAD - 1})")
    assert "client 2: its memory of round 3 is lost" in caplog.text
    assert "round 4: all clients start their control variates again" in caplog.text


def test_the_metrics_of_the_user_are_left_alone():
    federation = Five(1)
    grid = Forgetful(federation, HARM["deleted"]).grid
    result = run(federation, "scaffold", grid, evaluate_every=1)
    assert set(result.history.rounds[3].metrics) == {"loss"}
    assert [*result.train_metrics_clientapp[4]] == []


# -- memory in a folder ------------------------------------------------------------------------


def test_a_folder_survives_what_the_context_does_not(algorithm, tmp_path):
    federation = Five(2, memory_folder=tmp_path)
    grid = federation.grid()
    answer = grid.answer

    def restarted(message):
        grid.states.clear()
        return answer(message)

    grid.answer = restarted
    result = run(federation, algorithm, grid)
    assert_same(result, run(Five(2), algorithm))
    assert lost(result) == [0] * ROUNDS
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 10  # two for each client, and nothing temporary
    assert names[0].startswith("client-0-")
    assert names[1].endswith(f"-{ROUNDS}.npz")


@pytest.mark.parametrize("harm", ["deleted", "cut", "flipped", "empty", "another round"])
def test_a_damaged_file_counts_as_lost(harm, tmp_path):
    federation = Five(2, memory_folder=tmp_path)

    def damage(state):
        state.clear()
        (newest,) = tmp_path.glob(f"client-{BAD - 1}-*-3.npz")
        content = bytearray(newest.read_bytes())
        if harm == "deleted":
            newest.unlink()
        elif harm == "cut":
            newest.write_bytes(content[: len(content) // 2])
        elif harm == "empty":
            newest.write_bytes(b"")
        elif harm == "flipped":
            content[len(content) // 2] ^= 16
            newest.write_bytes(content)
        else:
            (older,) = tmp_path.glob(f"client-{BAD - 1}-*-2.npz")
            newest.write_bytes(older.read_bytes())

    result = run(federation, "scaffold", Forgetful(federation, damage).grid)
    assert lost(result) == [0, 0, 0, 1, 0, 0]


def test_a_client_that_comes_back_as_another_node_keeps_its_memory(algorithm, tmp_path):
    """As a SuperNode without a key does, or all nodes of a resumed simulation."""
    for folder, wanted in ((tmp_path, 0), (None, 5)):
        federation = Five(2, memory_folder=folder)
        grid = federation.grid()
        path = tmp_path / "checkpoint" / "run.npz"
        run(federation, algorithm, grid, 3, checkpoint=path)
        again = federation.grid()
        again.configs = {2**63 + node: config for node, config in again.configs.items()}
        resumed = run(federation, algorithm, again, resume_from=path)
        assert lost(resumed) == [0, 0, 0, wanted, 0, 0]
        if not wanted:
            assert_same(resumed, run(Five(2), algorithm))


def test_two_runs_may_share_a_folder(tmp_path):
    federation = Five(2, memory_folder=tmp_path / "memory")
    path = tmp_path / "run.npz"
    run(federation, "scaffold", rounds=3, checkpoint=path)
    run(federation, "scaffold", rounds=2)
    resumed = run(federation, "scaffold", resume_from=path)
    assert lost(resumed) == [0] * ROUNDS


def test_a_folder_that_cannot_be_written_is_reported_and_the_context_used(
    tmp_path, caplog, monkeypatch
):
    caplog.set_level(logging.WARNING, "flwr.fedac")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    (tmp_path / "file").touch()
    federation = Five(2, memory_folder=tmp_path / "file")
    result = run(federation, "scaffold")
    assert_same(result, run(Five(2), "scaffold"))
    assert "client 0: cannot save its memory: " in caplog.text


def test_a_slow_process_of_an_earlier_round_does_no_harm(tmp_path):
    """It writes when a later round has written already."""
    arrays = {"c_m/0": np.ones(2)}
    memory = ClientMemory(RecordDict(), 0, tmp_path)
    memory.keep(RUN, 1, arrays, before=None)
    memory.keep(RUN, 3, {"c_m/0": np.full(2, 3.0)}, before=1)
    ClientMemory(RecordDict(), 0, tmp_path).keep(RUN, 2, arrays, before=1)  # late
    fresh = ClientMemory(RecordDict(), 0, tmp_path)
    assert fresh.find(RUN, 3, like=arrays)["c_m/0"][0] == 3.0


# -- what the server tells a client ------------------------------------------------------------


def test_a_client_has_one_memory_whatever_its_node():
    clients = KnownClients()
    clients.learn(7, "0")
    clients.use(1, {7: 1.0, 8: 3.0}, total=4.0)
    clients.learn(9, "0")
    clients.use(2, {9: 2.0}, total=5.0)
    assert [clients.memory_version(node).round for node in (7, 8, 9, 10)] == [2, 1, 2, 0]
    clients.learn(10, "0")
    assert clients.memory_version(10) == MemoryVersion(clients.run, 2, 2.0)
    assert KnownClients.from_json(json.loads(json.dumps(clients.to_json()))) == clients


@pytest.mark.parametrize("name", ["../../etc", "", "0" * 17, "0" * 15 + "/", 3])
def test_a_run_that_could_leave_the_folder_is_refused(name):
    with pytest.raises(InputError, match="must be 16 hexadecimal digits"):
        MemoryVersion(name, 3)


def test_a_message_that_names_no_memory_is_refused():
    class NoVersion(LocalStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            messages = super().configure_train(server_round, arrays, config, grid)
            for message in messages:
                task = json.loads(message.content["config"]["fedac/task"])
                assert task.pop("memory_version")["round"] == 0
                changed = json.dumps(task | {"memory_version": None})
                message.content["config"]["fedac/task"] = changed
            return messages

    federation = Five(1)
    strategy = NoVersion("scaffold", eta=0.1, mu=0.1, local_steps=2, retries=0, min_nodes=5)
    with pytest.raises(QuorumError, match="does not name the memory to use"):
        strategy.start(federation.grid(), federation.initial_arrays())


def test_what_a_reply_says_of_its_client_is_not_trusted():
    """Nonsense is no number; the reply is good all the same."""
    from flwr.app import ConfigRecord

    federation = Five(1)
    for note in ({"client": "../7", "lost": "yes"}, {"client": 3}, {}):

        def answer(reply, node, number, note=note):
            content = reply.content.copy()
            content["client"] = content["memory"] = ConfigRecord(note)
            reply.content = content
            return reply

        strategy = federation.strategy("scaffold", evaluate_every=0)
        result = strategy.start(
            federation.grid(answer=answer), federation.initial_arrays(), num_rounds=2
        )
        assert [row.good for row in result.history.rounds] == [5, 5]
        assert lost(result) == [0, 0]
        assert not strategy.clients.ids
