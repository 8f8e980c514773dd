# SPDX-License-Identifier: Apache-2.0
"""Flower's words and habits: its options translated, its metrics, callbacks, restarts."""

from __future__ import annotations

import inspect
import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fedac.errors import InputError
from fedac.flower import FedAc, InProcessGrid, LocalStrategy, QuorumError
from fedac.flower._server.options import FLOWERS_NAMES

# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction_train": 0.5}, r"no option 'fraction_train'; write sample=0\.5"),
        ({"fraction_evaluate": 0.1}, r"write evaluate_sample=0\.1 \(or evaluate_every=0"),
        ({"min_train_nodes": 4}, "write quorum=4"),
        ({"min_available_nodes": 8}, "write min_nodes=8"),
        ({"weighted_by_key": "num-examples"}, "write weighting='examples'"),
        ({"quorom": 4}, "unknown option 'quorom'; did you mean 'quorum'"),
        ({"fraction_evaluate": 0.0}, "write evaluate_every=0"),
        ({"on_round": print}, "unknown option 'on_round'"),
        ({"lr": 0.1}, r"write eta=0\.1"),
        ({"sample": "0.5"}, "must be a number of nodes"),
        ({"resume": "no"}, "resume must be True or False"),
        ({"train_metrics_aggr_fn": "mean"}, "train_metrics_aggr_fn must be a function"),
        ({"quorum": 4}, "a round may ask only 2 nodes; give a larger min_nodes"),
    ],
)
def test_flowers_names_are_translated(options, message):
    with pytest.raises(InputError, match=message):
        FedAc(eta=0.1, mu=0.1, local_steps=4, **options)


def test_every_option_of_flowers_own_strategies_is_known_or_translated():
    ours = {*inspect.signature(LocalStrategy).parameters, *FLOWERS_NAMES}
    theirs = inspect.signature(flower.FedAvg).parameters
    assert set(theirs) <= ours


def test_the_translations_can_be_written():
    options = {"sample": 0.5, "quorum": 4, "evaluate_sample": 0.1, "weighting": "examples"}
    strategy = FedAc(eta=0.1, mu=0.1, local_steps=4, min_nodes=8, **options)
    assert strategy.quorum_of(100) == 4
    for algorithm in ("fedavg+step(1.0)", "fedavgm(1, 0.9)", "fedprox(0.1)"):
        LocalStrategy(algorithm, eta=0.1, mu=0.1, local_steps=4)


def test_metrics_can_be_aggregated_by_functions_of_the_users(federation):
    def worst(replies, weight):
        assert weight == "num-examples"
        assert all(not reply.array_records for reply in replies)
        records = [record["metrics"] for record in replies]
        return MetricRecord({"count": len(records), "examples": records[0][weight]})

    result = federation.run(rounds=2, train_metrics_aggr_fn=worst, evaluate_metrics_aggr_fn=worst)
    assert dict(result.train_metrics_clientapp[2]) == {"count": 8, "examples": 200}
    assert result.history.metric("count") == [(1, 8.0), (2, 8.0)]
    assert result.history.metric("train/count") == [(1, 8.0), (2, 8.0)]


# -- evaluation --------------------------------------------------------------------------------


@pytest.mark.parametrize(("sample", "count"), [(3, 3), (0.25, 2), (1.0, 8), (None, 4)])
def test_evaluators_can_be_drawn(federation, sample, count):
    evaluated = []

    class Watching(InProcessGrid):
        def answer(self, message):
            if message.metadata.message_type == "evaluate":
                evaluated.append((message.metadata.group_id, message.metadata.dst_node_id))
            return super().answer(message)

    options = {"sample": 4, "evaluate_sample": sample, "quorum": 4}
    for _ in range(2):
        federation.run(rounds=5, grid=Watching(federation.app(), 8), **options)
    half = len(evaluated) // 2
    assert evaluated[:half] == evaluated[half:]
    assert half == 5 * count
    assert len({node for _, node in evaluated}) > count or count == 8


def test_a_plain_function_of_flowers_can_evaluate(federation):
    """It does not know our round numbers; it sees the output under the names of the model."""
    app, seen = federation.app(), []
    plain = ClientApp()
    plain.train()(lambda message, context: app(message, context))

    @plain.evaluate()
    def evaluate(message, context):
        seen.append(list(message.content["arrays"]))
        assert message.content["config"]["server-round"] == 1
        assert message.content["config"]["mine"] == 7
        metrics = MetricRecord({"eval_loss": 0.5, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    result = federation.strategy().start(
        InProcessGrid(plain, 8),
        federation.initial_arrays(),
        num_rounds=1,
        evaluate_config=ConfigRecord({"mine": 7}),
    )
    assert result.history.metric("eval_loss") == [(1, 0.5)]
    assert seen == [["0", "1"]] * 8


# -- callbacks, results, restarts --------------------------------------------------------------


def test_a_callback_sees_every_round_with_its_metrics(federation, tmp_path):
    rows, path = [], tmp_path / "run.npz"

    def on_round(row):
        rows.append((row.round, dict(row.metrics), path.exists()))

    strategy = federation.strategy(checkpoint=path)
    result = strategy.start(
        federation.grid(),
        federation.initial_arrays(),
        num_rounds=2,
        evaluate_fn=lambda number, arrays: MetricRecord({"mine": number}),
        on_round=on_round,
    )
    assert [(number, saved) for number, _, saved in rows] == [(0, False), (1, True), (2, True)]
    assert [metrics for _, metrics, _ in rows] == [row.metrics for row in result.history.rounds]
    assert set(rows[2][1]) == {"loss", "server/mine"}


def test_a_result_prints_in_a_line(federation):
    result = federation.run(rounds=3)
    assert str(result).startswith("<FederationResult: 3 rounds, 0.0")
    assert repr(result).count("\n") == 0
    assert f"last loss {result.history.metric('loss')[-1][1]:.6g}" in str(result)


def test_a_restart_script_needs_no_if(federation, vector, tmp_path):
    path = tmp_path / "run.npz"
    options = {"checkpoint": path, "resume": True}
    first = federation.run(rounds=2, **options)  # there is no file yet
    assert [row.round for row in first.history.rounds] == [1, 2]
    grid = federation.grid()
    again = federation.run(rounds=5, grid=grid, **options)
    assert {number for number, _ in grid.asked} == {3, 4, 5}
    np.testing.assert_array_equal(vector(again.arrays), vector(federation.run(rounds=5).arrays))
    for wrong in ({"resume": True}, options | {"resume_from": path}):
        with pytest.raises(InputError, match=r"resume=True needs checkpoint=\.\.\."):
            federation.run(rounds=5, **wrong)


def test_a_resumed_result_has_the_metrics_of_all_rounds(federation, tmp_path):
    path = tmp_path / "run.npz"

    def run(rounds, **options):
        return federation.strategy(**options).start(
            federation.grid(),
            federation.initial_arrays(),
            num_rounds=rounds,
            evaluate_fn=lambda number, arrays: MetricRecord({"mine": float(number)}),
        )

    run(2, checkpoint=path)
    resumed, whole = run(4, resume_from=path), run(4)
    for name in (
        "train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"
    ):  # fmt: skip
        mine, theirs = getattr(resumed, name), getattr(whole, name)
        assert {k: dict(v) for k, v in mine.items()} == {k: dict(v) for k, v in theirs.items()}
    assert list(resumed.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]


def test_another_mu_is_named(federation, tmp_path):
    path = tmp_path / "run.npz"
    federation.run(rounds=1, checkpoint=path)
    with pytest.raises(InputError, match=r"it was written with mu=0\.05, not 0\.1"):
        federation.run(rounds=2, resume_from=path, mu=0.1)


# -- defaults that scale -----------------------------------------------------------------------


def test_the_quorum_is_more_than_half_of_the_nodes_that_were_asked(federation):
    def silent(reply, node, number):
        return None if node <= 4 else reply

    grid = federation.grid(answer=silent)
    with pytest.raises(QuorumError, match="4 good replies after 1 attempts, but the quorum is 5"):
        federation.run(rounds=1, grid=grid, min_nodes=2, deadline=0.1, retries=0)
    result = federation.run(rounds=1, grid=grid, min_nodes=4, quorum=4, deadline=0.1)
    assert result.history.rounds[0].good == 4


def test_a_quorum_follows_a_sample(federation):
    strategy = federation.strategy(min_nodes=2, sample=0.5)
    assert [strategy.quorum_of(asked) for asked in (1, 4, 500)] == [1, 3, 251]
    assert federation.strategy(min_nodes=8).quorum_of(3) == 5  # fewer came than were promised


# -- clients that are not ours -----------------------------------------------------------------


def test_a_client_that_does_not_know_our_messages_is_explained(federation):
    torch = pytest.importorskip("torch")
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = torch.nn.Linear(2, 1)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())

    initial = ArrayRecord(torch.nn.Linear(2, 1).state_dict())
    strategy = federation.strategy(min_nodes=2, retries=1, deadline=20.0)
    question = "is the client made by client_app, or does it train in local_training"
    with pytest.raises(QuorumError, match=rf"Missing key\(s\) in state_dict.*{question}"):
        strategy.start(InProcessGrid(app, 2), initial, num_rounds=1)


def test_a_client_that_replies_as_to_flower_is_explained(federation):
    app = ClientApp()

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"num-examples": 4})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    strategy = federation.strategy(min_nodes=2, retries=0)
    with pytest.raises(QuorumError, match=r"missing metric: server-round.*is the client made by"):
        strategy.start(InProcessGrid(app, 2), federation.initial_arrays(), num_rounds=1)


def test_logs_name_the_partition(federation, caplog):
    def answer(reply, node, number):
        return None if (node, number) == (3, 2) else reply

    with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
        federation.run(rounds=2, grid=federation.grid(answer=answer), deadline=0.2)
    (text,) = [r.message for r in caplog.records if "dropped" in r.message]
    assert "training: dropped node" in text
    assert "(partition 2): no reply in time" in text


# -- what a newcomer stumbled over -------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": None}, "grid must be a Grid of Flower, got NoneType"),
        ({"on_round": "log"}, "on_round must be a function"),
        ({"evaluate_config": [1]}, "evaluate_config must be a ConfigRecord, got list"),
    ],
)
def test_a_wrong_start_is_refused_before_any_node_is_asked(federation, given, message):
    grid = federation.grid()
    with pytest.raises(InputError, match=message):
        federation.strategy().start(
            **{"grid": grid, "initial_arrays": federation.initial_arrays()} | given
        )
    assert grid.asked == []


@pytest.mark.parametrize("where", ["on_round", "evaluate_fn"])
def test_whatever_ends_a_run_its_rounds_are_kept(federation, vector, where):
    def fail(*arguments):
        number = arguments[0] if where == "evaluate_fn" else arguments[0].round
        if number == 2:
            raise ConnectionError("no logger")

    strategy = federation.strategy(evaluate_every=0)
    with pytest.raises(ConnectionError):
        strategy.start(
            federation.grid(), federation.initial_arrays(), num_rounds=4, **{where: fail}
        )
    whole = federation.run(rounds=2, evaluate_every=0)
    np.testing.assert_array_equal(vector(strategy.result.arrays), vector(whole.arrays))
    assert strategy.result.history.rounds[-1].round == 2


def test_a_metric_that_is_not_finite_is_left_out_and_the_training_counts(federation, vector):
    def answer(reply, node, number):
        reply.content["metrics"]["auc"] = float("nan") if node == 1 else float(node)
        return reply

    result = federation.run(rounds=2, grid=federation.grid(answer=answer))
    assert [row.good for row in result.history.rounds] == [8, 8]
    assert result.history.metric("train/auc") == [(1, 5.0), (2, 5.0)]


def test_nodes_with_the_same_partition_are_reported(federation, caplog):
    grid = federation.grid()
    for config in grid.configs.values():
        config["partition-id"] = 0
    with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
        federation.run(rounds=2, grid=grid)
    (text,) = [r.message for r in caplog.records if "same partition-id" in r.message]
    assert "0: 8 nodes" in text


def test_equal_reasons_are_told_once(federation):
    def load_data(context):
        raise ValueError("no data")

    grid = InProcessGrid(federation.app(load_data), 8)
    with pytest.raises(QuorumError) as raised:
        federation.strategy(retries=0).start(grid, federation.initial_arrays())
    assert str(raised.value).count("no data") == 1
    assert " and 3 more: error 2: ValueError: no data" in str(raised.value)


def test_another_number_of_local_steps_is_named(federation, tmp_path):
    path = tmp_path / "run.npz"
    federation.run(rounds=1, checkpoint=path)
    with pytest.raises(InputError, match="it was written with local_steps=4, not 5"):
        federation.run(rounds=2, resume_from=path, local_steps=5)


def test_mu_is_asked_for_where_the_coupling_uses_it():
    LocalStrategy("fedavgm(1,0.7)", eta=0.1, local_steps=4)
    with pytest.raises(InputError, match="'fedac-i' needs mu, a strong-convexity estimate; begin"):
        LocalStrategy("fedac-i", eta=0.1, local_steps=4)
