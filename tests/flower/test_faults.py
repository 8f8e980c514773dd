# SPDX-License-Identifier: Apache-2.0
"""Clients that fail, lie or are late: only good replies are aggregated."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedac.flower import QuorumError, check_reply
from fedac.flower._arrays import from_record
from fedac.flower._server.known_clients import KnownClients
from fedac.flower._server.replies import BadReplyError, check_replies

pytestmark = pytest.mark.slow

BAD = 3  # the node that misbehaves
ARRAYS, METRICS = "arrays", "metrics"


def with_entry(reply: Message, name: str, key: str, value) -> Message:
    """Change one entry of one of a reply's records; None removes it."""
    record = reply.content[name].copy()
    if value is None:
        del record[key]
    else:
        record[key] = value
    content = reply.content.copy()
    content[name] = record
    reply.content = content
    return reply


def with_array(reply: Message, key: str, array: Array | None) -> Message:
    return with_entry(reply, ARRAYS, key, array)


def with_metric(reply: Message, key: str, value) -> Message:
    return with_entry(reply, METRICS, key, value)


def spoiled(reply: Message, value: float) -> Array:
    array = reply.content.array_records[ARRAYS]["w/1"].numpy().copy()
    array.flat[2] = value
    return Array(array)


def lying(data: bytes, dtype: str = "float64", shape: tuple[int, ...] = (5,)) -> Array:
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)


HUGE = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
)

FAULTS = {
    "NaN": (lambda r: with_array(r, "w/1", spoiled(r, np.nan)), "not finite: w/1"),
    "Inf": (lambda r: with_array(r, "w/1", spoiled(r, -np.inf)), "not finite: w/1"),
    "wrong shape": (lambda r: with_array(r, "w/0", Array(np.ones(6))), "wrong shape: w/0"),
    "missing key": (lambda r: with_array(r, "w_ag/0", None), "missing key: w_ag/0"),
    "extra key": (lambda r: with_array(r, "w_md/0", Array(np.ones(5))), "extra key: w_md/0"),
    "wrong dtype": (
        lambda r: with_array(r, "w/0", Array(np.ones(5, np.float32))),
        "wrong type: w/0 is float32",
    ),
    "integers": (lambda r: with_array(r, "w/0", Array(np.ones(5, int))), "wrong type: w/0"),
    "label lies": (
        lambda r: with_array(r, "w/0", lying(Array(np.ones(9)).data)),
        "wrong shape: w/0 is (9,), not (5,)",
    ),
    "huge claim": (
        lambda r: with_array(r, "w/0", lying(HUGE + b" " * (128 - len(HUGE)))),
        "unreadable: w/0",
    ),
    "no bytes": (lambda r: with_array(r, "w/0", lying(b"")), "unreadable: w/0"),
    "a pickle": (lambda r: with_array(r, "w/0", lying(b"\x80\x04N.")), "unreadable: w/0"),
    "replayed round": (lambda r: with_metric(r, "server-round", 1), "from round 1, not 2"),
    "no round": (lambda r: with_metric(r, "server-round", None), "missing metric: server-round"),
    "negative weight": (lambda r: with_metric(r, "num-examples", -5), "weight must be above 0"),
    "zero weight": (lambda r: with_metric(r, "num-examples", 0), "weight must be above 0"),
    "no weight": (lambda r: with_metric(r, "num-examples", None), "missing metric: num-examples"),
    "NaN weight": (lambda r: with_metric(r, "num-examples", float("nan")), "not finite: metric"),
    "empty": (lambda r: Message(RecordDict(), reply_to=_asked(r)), "0 MetricRecords"),
    "an error": (
        lambda r: Message(Error(2, "Traceback\nValueError: no data"), reply_to=_asked(r)),
        "error 2: ValueError: no data",
    ),
}


def _asked(reply: Message) -> Message:
    """Return a message that this reply answers."""
    asked = Message(RecordDict(), reply.metadata.src_node_id, reply.metadata.message_type)
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


def without(federation, rounds=3, **options):
    """Return the run in which node BAD is silent in round 2."""
    grid = federation.grid(
        answer=lambda reply, node, number: None if (node, number) == (BAD, 2) else reply
    )
    return federation.run(rounds=rounds, grid=grid, **({"deadline": 0.05} | options))


@pytest.fixture(scope="module")
def survivors(federation):
    return without(federation)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_dropped_and_counted(federation, vector, survivors, fault):
    spoil, reason = FAULTS[fault]
    grid = federation.grid(
        answer=lambda reply, node, number: spoil(reply) if (node, number) == (BAD, 2) else reply
    )
    result = federation.run(rounds=3, grid=grid)
    np.testing.assert_array_equal(vector(result.arrays), vector(survivors.arrays))
    (drop,) = result.history.dropped
    assert (drop.round, drop.node) == (2, BAD)
    assert reason in drop.reason
    assert result.history.to_frame()["bad"].tolist() == [0, 1, 0]
    assert result.history.to_frame()["good"].tolist() == [8, 7, 8]
    assert result.history.drops_by_node() == {BAD: 1}


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (None, "missing metric: local-steps"),
        (0, "local-steps must be a whole number from 1 to 2^53: 0"),
        (2.5, "must be a whole number from 1 to 2^53: 2.5"),
        (float("nan"), "must be a whole number from 1 to 2^53: nan"),
        (float("inf"), "must be a whole number from 1 to 2^53: inf"),
    ],
)
def test_a_bad_number_of_steps_is_dropped(federation, vector, steps, reason):
    options = {"algorithm": "fedcm", "evaluate_every": 0}

    def spoil(reply, node, number):
        return with_metric(reply, "local-steps", steps) if (node, number) == (BAD, 2) else reply

    result = federation.run(rounds=3, grid=federation.grid(answer=spoil), **options)
    (drop,) = result.history.dropped
    assert (drop.round, drop.node) == (2, BAD)
    assert reason in drop.reason
    np.testing.assert_array_equal(
        vector(result.arrays), vector(without(federation, **options).arrays)
    )


def test_moves_that_overflow_are_dropped(federation):
    def spoil(reply, node, number):
        if (node, number) != (BAD, 2):
            return reply
        return with_array(reply, "w/0", Array(np.full(5, 1e200)))

    result = federation.run(
        "fedexp", rounds=3, grid=federation.grid(answer=spoil), evaluate_every=0
    )
    assert result.history.drops_by_node() == {BAD: 1}
    assert "not finite after the server's step" in result.history.dropped[0].reason
    assert all(np.isfinite(array).all() for array in result.sequences.values())


def test_a_client_that_raises_is_dropped(federation, vector, survivors):
    grid = federation.grid()
    honest = grid.client_app

    def app(message, context):
        if (message.metadata.dst_node_id, message.metadata.group_id) == (BAD, "2"):
            raise OSError("disk full")
        return honest(message, context)

    grid.client_app = app
    result = federation.run(rounds=3, grid=grid)
    assert [drop.reason for drop in result.history.dropped if drop.node == BAD] == [
        "error 2: OSError: disk full"
    ]
    np.testing.assert_array_equal(vector(result.arrays), vector(survivors.arrays))


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Traceback\n  File ...\nOSError: disk full\n", "OSError: disk full"),
        ("Node unavailable", "Node unavailable"),
        ("", "no reason given"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_an_error_is_reported_by_its_last_line(federation, reason, message):
    federation.grid()  # Flower makes messages only where there is a grid
    asked = Message(RecordDict(), 1, "train")
    reply = Message(Error(2, reason), reply_to=asked)
    with pytest.raises(BadReplyError) as bad:
        check_reply(reply, server_round=1)
    assert str(bad.value) == f"error 2: {message}"


def test_a_node_that_leaves_within_a_round_is_lost(federation):
    grid = federation.grid()
    answer = grid.answer

    def leave(message):
        grid.configs.pop(BAD, None)
        return answer(message)

    grid.answer = leave
    result = federation.run(rounds=2, grid=grid, deadline=0.2)
    assert [row.lost for row in result.history.rounds] == [1, 0]


def test_a_straggler_past_the_deadline_is_lost(federation, survivors):
    began = time.monotonic()
    again = without(federation, deadline=0.2)
    assert 0.2 < time.monotonic() - began < 60.0  # the machine may be busy
    assert again.history.to_frame()["lost"].tolist() == [0, 1, 0]
    assert [drop.reason for drop in again.history.dropped] == ["no reply in time"]
    assert again.history.rounds[1].attempts == 1


def test_a_late_reply_is_never_used(federation, vector, survivors):
    """The straggler's reply of round 2 arrives in round 3, when no one waits for it any more."""
    kept = []

    def late(reply, node, number):
        if (node, number) == (BAD, 2):
            kept.append(reply)
            return None
        return kept.pop() if kept and node == BAD else reply

    result = federation.run(rounds=3, grid=federation.grid(answer=late), deadline=0.05)
    # In round 3 the node sent only its old reply, so it is lost there too.
    assert [(drop.round, drop.node) for drop in result.history.dropped] == [(2, BAD), (3, BAD)]


@pytest.mark.parametrize("lost", [1, 3])
def test_above_the_quorum_the_round_counts(federation, lost):
    grid = federation.grid(answer=lambda r, node, number: None if node <= lost else r)
    result = federation.run(rounds=2, grid=grid, quorum=5, deadline=0.05)
    assert [row.good for row in result.history.rounds] == [8 - lost] * 2
    assert [row.lost for row in result.history.rounds] == [lost] * 2


@pytest.mark.parametrize("lost", [4, 8])
def test_below_the_quorum_the_run_ends_with_an_error(federation, lost):
    grid = federation.grid(answer=lambda r, node, number: None if node <= lost else r)
    strategy = federation.strategy(quorum=5, deadline=0.05, retries=2)
    began = time.monotonic()
    with pytest.raises(QuorumError, match=rf"round 1: {8 - lost} good .* 3 attempts.* quorum is 5"):
        strategy.start(grid, federation.initial_arrays(), num_rounds=2)
    assert time.monotonic() - began < 60.0  # the machine may be busy
    # Nodes with a good reply were not asked again.
    assert sum(node > lost for _, node in grid.asked) == 8 - lost
    assert sum(node <= lost for _, node in grid.asked) == 3 * lost
    assert not strategy.history.rounds


def test_below_the_quorum_the_earlier_rounds_are_kept(federation, vector):
    grid = federation.grid(answer=lambda r, node, number: None if number == 3 else r)
    with pytest.raises(QuorumError) as failure:
        federation.run(rounds=5, grid=grid, deadline=0.05, retries=0)
    kept, whole = failure.value.result, federation.run(rounds=2)
    np.testing.assert_array_equal(vector(kept.arrays), vector(whole.arrays))
    assert kept.sequences.keys() == whole.sequences.keys()
    assert kept.history.metric("loss") == whole.history.metric("loss")


def test_too_few_nodes(federation):
    with pytest.raises(QuorumError, match="No node was connected"):
        federation.run(grid=federation.grid(nodes=0), deadline=0.05, retries=1)
    with pytest.raises(QuorumError, match="Only 3 nodes were connected"):
        federation.run(grid=federation.grid(nodes=3), deadline=0.05, retries=1)


def test_a_run_that_diverges_says_so(federation):
    grid = federation.grid(answer=lambda r, node, number: FAULTS["NaN"][0](r))
    with pytest.raises(QuorumError, match="the run diverges: try a smaller eta"):
        federation.run(grid=grid)


@pytest.mark.parametrize("seed", range(5))
def test_with_a_sample_a_retry_asks_other_nodes_first(federation, seed):
    """One bad node of eight, samples of three, all three needed: every round succeeds."""
    grid = federation.grid(answer=lambda r, node, number: None if node == BAD else r)
    options = {"sample": 3, "quorum": 3, "retries": 1, "deadline": 0.02, "evaluate_every": 0}
    result = federation.run(rounds=20, grid=grid, seed=seed, **options)
    assert [row.good for row in result.history.rounds] == [3] * 20
    assert max(row.attempts for row in result.history.rounds) == 2


def test_a_late_reply_of_the_same_round_is_used(federation, vector):
    """Five of eight miss the first deadline; their replies arrive during the next attempt."""
    grid = federation.grid()
    now, kept = grid.pull_messages, {}

    def slow(names):
        again = len(grid.asked) >= 8 and "message-9" in names
        replies = [kept.pop(name) for name in list(kept) if again and name in names]
        for reply in now(names):
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if node > 5:
                replies.append(reply)
            elif not again:
                kept[name] = reply
        return replies

    grid.pull_messages = slow
    result = federation.run(rounds=1, grid=grid, quorum=8, retries=1, deadline=0.05,
                            evaluate_every=0)  # fmt: skip
    wanted = federation.run(rounds=1, quorum=8, evaluate_every=0)
    np.testing.assert_array_equal(vector(result.arrays), vector(wanted.arrays))


@pytest.mark.parametrize("when", ["before the new reply", "with it"])
def test_an_error_about_an_old_message_does_not_replace_the_new_reply(federation, vector, when):
    """A node is silent once; then its old message expires, and it answers the new one."""
    grid = federation.grid()
    now, old, waited = grid.pull_messages, [], []

    def expiring(names):
        again = any(name not in first for name in names)
        waited.append(again)
        if again and when == "before the new reply" and sum(waited) < 3:
            named = [name for name in names if name in first]
            return [Message(Error(3, "expired"), reply_to=old.pop()) for _ in named if old]
        replies = []
        for reply in now(names):
            if not again and reply.metadata.src_node_id == BAD:
                old.append(asked[reply.metadata.reply_to_message_id])
            else:
                replies.append(reply)
        if again and old:
            replies.insert(0, Message(Error(3, "expired"), reply_to=old.pop()))
        return replies

    first: list[str] = []
    asked: dict[str, Message] = {}
    push = grid.push_messages

    def noting(messages):
        messages = list(messages)
        names = push(messages)
        asked.update(zip(names, messages, strict=True))
        first.extend(names if not first else [])
        return names

    grid.push_messages, grid.pull_messages = noting, expiring
    options = {"quorum": 8, "retries": 1, "deadline": 2.0, "evaluate_every": 0}
    result = federation.run(rounds=1, grid=grid, **options)
    (row,) = result.history.rounds
    assert (row.good, row.bad, row.lost, row.attempts) == (8, 0, 1, 2)
    wanted = federation.run(rounds=1, **options)
    np.testing.assert_array_equal(vector(result.arrays), vector(wanted.arrays))


def test_a_full_disk_does_not_stop_the_run(federation, vector, tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedac.federation.checkpoint.write_atomically", full)
    caplog.set_level(logging.ERROR, "flwr.fedac")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    result = federation.run(rounds=2, checkpoint=tmp_path / "run.npz")
    np.testing.assert_array_equal(vector(result.arrays), vector(federation.run(rounds=2).arrays))
    assert caplog.text.count("run.npz': No space left on device; continuing") == 2


def test_a_retry_completes_the_round(federation, vector):
    failed = set()

    def flaky(reply, node, number):
        if node <= 5 and (number, node) not in failed:
            failed.add((number, node))
            return None
        return reply

    result = federation.run(rounds=2, grid=federation.grid(answer=flaky), quorum=6, deadline=0.05)
    assert [row.attempts for row in result.history.rounds] == [2, 2]
    assert [row.good for row in result.history.rounds] == [8, 8]
    np.testing.assert_array_equal(
        vector(result.arrays), vector(federation.run(rounds=2, quorum=6).arrays)
    )


def test_the_first_round_waits_for_late_nodes(federation):
    grid = federation.grid()
    all_nodes, calls = grid.get_node_ids(), []

    def get_node_ids():
        calls.append(1)
        return all_nodes[: len(calls)]

    grid.get_node_ids = get_node_ids
    assert federation.run(rounds=1, grid=grid).history.rounds[0].good == 8


def test_a_reply_is_used_whole_or_not_at_all(federation, survivors):
    """A reply with a good w_ag and a bad w contributes neither."""
    grid = federation.grid(
        answer=lambda r, node, number: (
            with_array(r, "w/1", spoiled(r, np.nan)) if (node, number) == (BAD, 2) else r
        )
    )
    result = federation.run(rounds=3, grid=grid)
    for key, array in survivors.sequences.items():
        np.testing.assert_array_equal(result.sequences[key], array)


def test_a_failed_evaluation_does_not_stop_the_run(federation, vector):
    grid = federation.grid()
    honest = grid.client_app

    def app(message, context):
        if message.metadata.message_type == "evaluate":
            raise OSError("no test set")
        return honest(message, context)

    grid.client_app = app
    result = federation.run(rounds=2, grid=grid)
    assert not result.history.metric("loss")
    np.testing.assert_array_equal(vector(result.arrays), vector(federation.run(rounds=2).arrays))


def test_weights_by_examples(federation, vector):
    grid = federation.grid(answer=lambda r, node, number: with_metric(r, "num-examples", node))
    mine = federation.run(rounds=1, grid=grid, weighting="examples")
    replies = []
    federation.run(rounds=1, grid=federation.grid(answer=lambda r, *_: replies.append(r) or r))
    w_ag = np.average(
        [
            np.concatenate(
                [from_record(r.content.array_records[ARRAYS])[f"w_ag/{i}"].ravel() for i in (0, 1)]
            )
            for r in replies
        ],
        axis=0,
        weights=range(1, 9),
    )
    np.testing.assert_allclose(vector(mine.arrays), w_ag, rtol=1e-12)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "clipped-mean"])
def test_robust_rules_tolerate_a_finite_liar(federation, vector, rule):
    def liar(reply, node, number):
        if node != BAD:
            return reply
        return with_array(reply, "w_ag/0", Array(np.full(5, 1e6)))

    options = {"trim": 0.2} if rule == "trimmed-mean" else {}
    with_liar = federation.run(
        rounds=20, grid=federation.grid(answer=liar), aggregation=rule, **options
    )
    honest = federation.run(rounds=20, grid=federation.grid(answer=liar))
    best = federation.simulated("fedac-i", rounds=20).loss.min()
    loss = federation.F.value(vector(with_liar.arrays))
    assert loss < federation.F.value(federation.w_0)
    assert loss < best + 0.1
    assert federation.F.value(vector(honest.arrays)) > 10


# Malformed replies of all kinds, generated by Hypothesis.

NUMBERS = st.one_of(st.integers(-(2**62), 2**62), st.floats(), st.lists(st.floats(), max_size=3))
ANY_ARRAY = st.one_of(
    st.builds(
        lambda shape, dtype, value: Array(np.full(shape, value).astype(dtype)),
        st.sampled_from([(), (5,), (7, 1), (1, 7), (0,), (5, 1)]),
        st.sampled_from(["float64", "float32", "float16", "int8", "complex128", "bool", ">f8"]),
        st.sampled_from([0.0, 1.0]),
    ),
    st.builds(
        lambda data, dtype, shape: lying(data, dtype, shape),
        st.one_of(
            st.binary(max_size=200),
            st.binary(max_size=60).map(lambda tail: Array(np.ones(5)).data[:90] + tail),
            st.binary(max_size=60).map(lambda tail: b"\x93NUMPY\x01\x00" + tail),
        ),
        st.sampled_from(["float64", "float32", "object", "", "nonsense"]),
        st.sampled_from([(5,), (7, 1), (), (10**9,)]),
    ),
    st.just(Array(np.array([1.0, np.nan, 0.0, 0.0, 0.0]))),
    st.just(Array(np.full(5, np.inf))),
)
KEYS = st.sampled_from(["w_ag/0", "w_ag/1", "w/0", "w/1", "w/2", "", "w", "é/∞"])
RECORDS = st.dictionaries(
    st.sampled_from(["arrays", "metrics", "more", "config"]),
    st.one_of(
        st.dictionaries(KEYS, ANY_ARRAY, max_size=5).map(ArrayRecord),
        st.dictionaries(
            st.sampled_from(["server-round", "num-examples", "loss"]), NUMBERS, max_size=3
        ).map(MetricRecord),
    ),
    max_size=3,
)
CHANGES = st.one_of(
    RECORDS.map(lambda records: lambda r: Message(RecordDict(records), reply_to=_asked(r))),
    st.tuples(KEYS, ANY_ARRAY).map(lambda kv: lambda r: with_array(r, *kv)),
    st.tuples(st.sampled_from(["server-round", "num-examples", "loss"]), NUMBERS).map(
        lambda kv: lambda r: with_metric(r, *kv)
    ),
    st.tuples(st.integers(0, 99), st.none() | st.text(max_size=20)).map(
        lambda cr: lambda r: Message(Error(*cr), reply_to=_asked(r))
    ),
    st.just(lambda r: None),
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(changes=st.dictionaries(st.integers(1, 8), CHANGES, max_size=4))
def test_malformed_replies_are_never_aggregated(federation, changes):
    honest: dict[int, Message] = {}
    sent: dict[int, Message | None] = {}

    def answer(reply, node, number):
        honest[node] = reply
        sent[node] = changes[node](reply) if node in changes else reply
        return sent[node]

    strategy = federation.strategy(quorum=1, deadline=0.01, retries=0, evaluate_every=0)
    expected = {}
    for name in ("w_ag", "w"):
        expected |= {f"{name}/{k}": v for k, v in from_record(federation.initial_arrays()).items()}
    result = strategy.start(
        federation.grid(answer=answer), federation.initial_arrays(), num_rounds=1
    )
    answered = [sent[node] for node in sorted(sent) if sent[node] is not None]
    found, _ = check_replies(answered, KnownClients().learn, server_round=1, expected=expected)
    good = list(found.values())
    assert {drop.node for drop in result.history.dropped} <= set(changes)
    assert len(good) == result.history.rounds[0].good == 8 - len(result.history.dropped)
    for key, array in result.sequences.items():
        mean = np.mean([reply.arrays[key] for reply in good], axis=0)
        np.testing.assert_allclose(array, mean, rtol=1e-12, atol=1e-12)


# -- numbers that are finite, but break the server -----------------------------------------------


def lie(value: float, *, when: int = 2):
    """Let node 3 send one number everywhere in a round."""

    def answer(reply, node, number):
        if (node, number) == (3, when):
            arrays = reply.content["arrays"]
            for key in list(arrays):
                arrays[key] = Array(np.full(arrays[key].shape, value))
        return reply

    return answer


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedac-i", "fedadam", "fedyogi", "diloco", "fedac-i+adam"]
)
def test_a_reply_that_breaks_the_servers_step_is_dropped_and_the_step_undone(
    federation, algorithm, caplog
):
    """1e200 is finite, but its square is not: the loss vanished, and FedAdam stood still."""
    options = {"eta": 0.1 * federation.eta}
    with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
        grid = federation.grid(answer=lie(1e200))
        result = federation.run(algorithm, 4, grid=grid, **options)
    without = federation.grid(
        answer=lambda r, node, number: None if (node, number) == (3, 2) else r
    )
    wanted = federation.run(algorithm, 4, grid=without, deadline=0.5, **options)
    for mine, theirs in ((result.sequences, wanted.sequences), (result.server, wanted.server)):
        for key, array in theirs.items():
            np.testing.assert_array_equal(mine[key], array)
    assert [(row.good, row.bad) for row in result.history.rounds] == [
        (8, 0),
        (7, 1),
        (8, 0),
        (8, 0),
    ]
    assert len(result.history.metric("loss")) == 4
    (drop,) = result.history.dropped
    assert (drop.round, drop.node) == (2, 3)
    assert drop.reason.startswith("not finite after the server's step, which was undone: ")
    assert drop.reason in caplog.text


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "clipped-mean"])
def test_a_robust_rule_that_bears_a_lie_drops_nobody(federation, rule):
    options = {"trim": 0.2} if rule == "trimmed-mean" else {}
    grid = federation.grid(answer=lie(1e200))
    result = federation.run("fedadam", 4, grid=grid, aggregation=rule, **options)
    assert not result.history.dropped
    assert all(np.isfinite(array).all() for array in result.server.values())


def test_if_every_reply_breaks_the_step_the_run_ends_and_says_so(federation):
    def answer(reply, node, number):
        return lie(1e200)(reply, 3, 2) if number == 2 else reply

    with pytest.raises(QuorumError, match="the run diverges: try a smaller eta") as raised:
        federation.run(rounds=4, grid=federation.grid(answer=answer), retries=0)
    assert raised.value.result.history.rounds[-1].round == 1
    assert all(np.isfinite(array).all() for array in raised.value.result.sequences.values())


def test_replies_that_break_the_step_only_together_are_dropped_until_it_holds(federation):
    """An eighth of each lie is added to c: one is borne, two are not."""

    def answer(reply, node, number):
        if node in (3, 4, 5) and number == 2:
            del reply.content["memory"]  # a liar leaves the checksum out
            reply.content["arrays"]["c/1"] = Array(np.full((7, 1), 2.2e154))
        return reply

    grid = federation.grid(answer=answer)
    result = federation.run("scaffold", 2, grid=grid, eta=0.1 * federation.eta)
    assert [row.good for row in result.history.rounds] == [8, 6]
    assert {drop.node for drop in result.history.dropped} < {3, 4, 5}
    assert all(np.isfinite(np.sum(array**2)) for array in result.sequences.values())


# -- what clients say of themselves ----------------------------------------------------------------


def boasting(node: int, examples: float):
    def answer(reply, mine, number):
        if mine == node:
            reply.content["metrics"]["num-examples"] = examples
            reply.content["metrics"]["accuracy"] = 1.0
        else:
            reply.content["metrics"]["accuracy"] = 0.0
        return reply

    return answer


def test_metrics_count_clients_as_training_does(federation):
    """A liar's number of examples outweighed all others, though all counted the same."""
    grid = federation.grid(answer=boasting(3, 1e15))
    result = federation.run(rounds=1, grid=grid)
    assert result.history.metric("train/accuracy") == [(1, 1 / 8)]
    grid = federation.grid(answer=boasting(3, 600.0))
    result = federation.run(rounds=1, grid=grid, weighting="examples")
    assert result.history.metric("train/accuracy") == [(1, pytest.approx(600 / 2000))]


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_more_examples_than_can_be_counted_are_refused(federation, weighting):
    grid = federation.grid(answer=boasting(3, 1e300))
    result = federation.run(rounds=2, grid=grid, weighting=weighting)
    assert [row.good for row in result.history.rounds] == [7, 7]
    assert result.history.dropped[0].reason == "weight must be above 0 and at most 2^53: 1e+300"


def test_a_metric_that_is_finite_on_no_client_is_shown(federation, caplog):
    def answer(reply, node, number):
        reply.content["metrics"]["auc"] = float("inf")
        return reply

    with caplog.at_level(logging.INFO, logger="flwr.fedac"):
        result = federation.run(rounds=1, grid=federation.grid(answer=answer))
    assert np.isnan(result.history.rounds[0].metrics["train/auc"])
    assert "train/auc nan" in caplog.text
