# SPDX-License-Identifier: Apache-2.0
"""Control variates: after every round c is the weighted mean of the clients' c_m."""

from __future__ import annotations

import json
import logging
import runpy
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord, MessageType
from flwr.clientapp import ClientApp, mod

from fedac.data import split
from fedac.errors import InputError
from fedac.flower import (
    Checkpoint,
    InProcessGrid,
    LocalStrategy,
    QuorumError,
    client_app,
    local_training,
    tell_number,
    torch_arrays,
)
from fedac.objectives import LogisticRegression

CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five, LogisticModel, K, L2, SEED = (
    CONFTEST[name] for name in ("Five", "LogisticModel", "K", "L2", "SEED")
)
ROUNDS = 12
METHODS = ["scaffold", "fedac-i+cv", "fedac-ii+local+cv+nesterov(1, 0.3)", "scaffold-m"]


class Growing(Five):
    """Five clients that differ; some get other numbers of rows in later rounds."""

    changes = MappingProxyType({})  # by client, from which round on it has half of its rows

    def own_rows(self, context):
        client = context.node_config["partition-id"]
        rows = self.clients.rows_of(client)
        if context.run_config["server-round"] >= self.changes.get(client, 10**9):
            rows = rows[: len(rows) // 2]
        return LogisticRegression(self.F.X[rows], self.F.y[rows], l2=L2)


class Watched:
    """A run in which c, or FedDyn's z, is compared with the clients' own after every round."""

    def __init__(self, federation, algorithm, path, *, lost=(), joins=None, dtype=None, **options):
        self.federation, self.path, self.lost, self.gaps = federation, path, set(lost), []
        self.weighting = options["weighting"]
        self.names = ("z", "z_m") if "feddyn" in algorithm else ("c", "c_m")
        self.grid = federation.grid(answer=self.answer)
        self.all, self.joins = dict(self.grid.configs), joins or {}
        self.grid.configs = {n: c for n, c in self.all.items() if n not in self.joins}
        self.known: dict[int, float] = {}  # how every client counts, by node
        self.c_m: dict[int, np.ndarray] = {}
        initial = ArrayRecord(
            [a.numpy().astype(dtype or float) for a in federation.initial_arrays().values()]
        )
        options = {"eta": 0.1 * federation.eta, "evaluate_every": 0, "quorum": 1} | options
        options |= {"min_nodes": len(self.grid.configs), "deadline": 0.3 if lost else 60.0}
        self.strategy = federation.strategy(algorithm, checkpoint=path, **options)
        self.note_newcomers(1)
        self.result = self.strategy.start(
            self.grid, initial, num_rounds=ROUNDS, on_round=self.compare
        )

    def examples(self, node: int, number: int) -> float:
        if self.weighting == "uniform":
            return 1.0
        client = self.all[node]["partition-id"]
        rows = len(self.federation.clients.rows_of(client))
        return rows // 2 if number >= self.federation.changes.get(client, 10**9) else rows

    def note_newcomers(self, number: int) -> None:
        for node in self.grid.configs:
            self.known.setdefault(node, self.examples(node, number))

    def answer(self, reply, node, number):
        return None if (node, number) in self.lost else reply

    def compare(self, row) -> None:
        used = [n for r, n in self.grid.asked if r == row.round and (n, r) not in self.lost]
        assert row.good == len(used)
        assert row.memory_lost == 0
        for node in used:
            records = self.grid.states[node].array_records
            (mine,) = [record for key, record in records.items() if key.endswith(f"/{row.round}")]
            self.c_m[node] = self.vector(self.names[1], {k: a.numpy() for k, a in mine.items()})
            self.known[node] = self.examples(node, row.round)
        held = Checkpoint.load(self.path)
        c = self.vector(self.names[0], {**held.arrays, **held.server})
        total = sum(self.known.values())
        mean = sum(self.known[n] / total * c_m for n, c_m in self.c_m.items())
        self.gaps.append(abs(c - mean).max() / max(1.0, abs(mean).max()))
        for node in [node for node, r in self.joins.items() if r == row.round + 1]:
            self.grid.configs[node] = self.all[node]
        self.note_newcomers(row.round + 1)

    @staticmethod
    def vector(name, arrays) -> np.ndarray:
        return np.concatenate([arrays[f"{name}/{i}"].ravel().astype(float) for i in range(2)])


@pytest.mark.parametrize("algorithm", [*METHODS, "feddyn(0.1)"])
@pytest.mark.parametrize(
    ("weighting", "options", "most"),
    [
        ("examples", {}, 1e-12),
        ("uniform", {}, 1e-12),
        ("examples", {"dtype": np.float32}, 1e-5),
        ("uniform", {"wire": "int8"}, 1e-12),
    ],
    ids=["float64", "float64-uniform", "float32", "int8-uniform"],
)
def test_c_is_the_mean_of_all_c_m(algorithm, weighting, options, most, tmp_path):
    """Half of the clients a round, newcomers, counts that change, and replies that are lost."""
    federation = Growing(2)
    federation.changes = {1: 4, 3: 7, 4: 9}
    run = Watched(
        federation, algorithm, tmp_path / "run.npz", weighting=weighting, sample=0.5,
        joins={2: 3, 4: 6}, lost=[(1, 2), (3, 5), (5, 5), (5, 8)], **options,
    )  # fmt: skip
    assert len(run.gaps) == ROUNDS
    assert len(run.c_m) == 5
    assert max(run.gaps) <= most, run.gaps


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn(0.1)"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_c_is_the_mean_with_all_clients(weighting, algorithm, tmp_path):
    """Nodes that join later, and one that has lost its first replies."""
    federation = Growing(2)
    run = Watched(
        federation, algorithm, tmp_path / "run.npz", weighting=weighting,
        joins={2: 3, 4: 5}, lost=[(1, 1), (1, 2), (3, 6)],
    )  # fmt: skip
    assert max(run.gaps) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "fedac-i+cv"])
def test_half_of_unequal_clients_reach_the_pooled_optimum(algorithm):
    """Full gradients, 10 clients by dirichlet(0.3): a share of 1/2 for all made the loss grow."""
    F = CONFTEST["make_objective"]()
    clients = split(F.y, clients=10, by="dirichlet(0.3)", seed=2)
    sizes = [len(clients.rows_of(m)) for m in range(10)]
    assert max(sizes) > 5 * min(sizes)

    def own_rows(context):
        rows = clients.rows_of(context.node_config["partition-id"])
        return LogisticRegression(F.X[rows], F.y[rows], l2=L2)

    app = client_app(own_rows, lambda own: LogisticModel(own, "full"))
    strategy = LocalStrategy(
        algorithm, eta=0.05, mu=L2, local_steps=4, sample=0.5, min_nodes=10, evaluate_every=0,
        weighting="examples",
    )  # fmt: skip
    start = ArrayRecord(CONFTEST["to_arrays"](np.zeros(F.dim)))
    result = strategy.start(InProcessGrid(app, 10), start, num_rounds=400)
    w = CONFTEST["to_vector"]([array.numpy() for array in result.arrays.values()])
    w_star = np.zeros(F.dim)
    for _ in range(5000):
        w_star -= F.gradient(w_star) / F.smoothness
    assert abs(F.gradient(w_star)).max() < 1e-12
    assert F.value(w) - F.value(w_star) < 1e-6


def test_clients_that_do_not_tell_their_examples_count_from_their_first_reply(caplog):
    """A ClientApp of the user's own, with and without `examples`: c is the mean of those known."""
    torch = pytest.importorskip("torch")
    data = [torch.randn(n, 3, generator=torch.Generator().manual_seed(n)) for n in (4, 16, 40)]

    def app(examples):
        mine = tell_number(ClientApp(), examples)

        @mine.train()
        def train(message, context):
            module, X = torch.nn.Linear(3, 1), data[context.node_config["partition-id"]]
            with local_training(message, context, module) as local:
                local.optimizer.zero_grad()
                module(X).square().mean().backward()
                local.optimizer.step()
            return local.reply({"num-examples": len(X)})

        return mine

    shares = {}
    for told in (True, False):
        count = (lambda c: len(data[c.node_config["partition-id"]])) if told else None
        grid = InProcessGrid(app(count), 3)
        strategy = LocalStrategy(
            "scaffold", eta=0.1, mu=0.1, local_steps=1, sample=1, min_nodes=3, evaluate_every=0,
            weighting="examples",
        )  # fmt: skip
        with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
            caplog.clear()
            result = strategy.start(grid, torch_arrays(torch.nn.Linear(3, 1)), num_rounds=1)
        said = [r for r in caplog.records if "did not report how many examples" in r.getMessage()]
        assert bool(said) is not told
        ((c_m, n),) = [
            (next(iter(state.array_records.values()))["c_m/weight"].numpy(), config)
            for state, config in zip(
                [grid.states.get(n) for n in grid.configs], (4, 16, 40), strict=True
            )
            if state is not None and state.array_records
        ]
        c = result.sequences["c/weight"]
        shares[told] = float((c / c_m).mean())
        assert shares[told] == pytest.approx(n / 60 if told else 1.0, rel=1e-6)


# -- memories ----------------------------------------------------------------------------------


def test_a_newcomer_is_told_nothing_of_others(tmp_path):
    """The numbers and rounds of all clients once went to every node without a used reply."""
    federation, told = Five(2, memory_folder=tmp_path), {}
    grid = federation.grid()
    newcomer, config = grid.configs.popitem()
    answer = grid.answer

    def note(message):
        if message.metadata.message_type == MessageType.TRAIN:
            task = json.loads(message.content["config"]["fedac/task"])
            key = message.metadata.dst_node_id, int(message.metadata.group_id)
            told[key] = task["memory_version"]
        return answer(message)

    def join(row):
        if row.round == 2:
            grid.configs[newcomer] = config  # a new client
            grid.configs[99] = grid.configs.pop(1)  # and one that comes back as another node

    grid.answer = note
    strategy = federation.strategy("scaffold", min_nodes=4, evaluate_every=0)
    strategy.start(grid, federation.initial_arrays(), num_rounds=4, on_round=join)
    assert all(set(entries) == {"run", "round", "weight"} for entries in told.values())
    assert told[newcomer, 3]["round"] == 0
    assert told[99, 3]["round"] == 2
    assert [row.memory_lost for row in strategy.history.rounds] == [0] * 4


@pytest.mark.parametrize(("algorithm", "mean"), [("scaffold", "c/0"), ("feddyn", "z/0")])
def test_a_client_that_comes_back_unrecognized_makes_all_begin_again(
    algorithm, mean, tmp_path, caplog
):
    """Its app tells no number: until it replies, the server takes it for a new client."""
    federation, path, c = Five(2, memory_folder=tmp_path / "memory"), tmp_path / "run.npz", []
    grid = federation.grid()
    honest = grid.client_app

    def silent(message, context):
        if message.metadata.message_type.startswith(MessageType.QUERY):
            raise ValueError("no such function")
        return honest(message, context)

    def note(row):
        held = Checkpoint.load(path)
        c.append(abs({**held.arrays, **held.server}[mean]).max())
        if row.round == 2:
            grid.configs[99] = grid.configs.pop(1)

    grid.client_app = silent
    strategy = federation.strategy(algorithm, evaluate_every=0, checkpoint=path)
    with caplog.at_level(logging.WARNING, logger="flwr.fedac"):
        strategy.start(grid, federation.initial_arrays(), num_rounds=4, on_round=note)
    assert [row.memory_lost for row in strategy.history.rounds] == [0, 0, 1, 0]
    assert [value > 0 for value in c] == [True, True, False, True]
    assert "1 of 1 nodes did not report a client id, so a client that returns" in caplog.text
    assert "round 3: all clients start their control variates again" in caplog.text


def test_two_nodes_with_one_number_are_told_apart():
    federation = Five(2)
    grid = federation.grid()
    grid.configs[2]["partition-id"] = 0
    result = federation.run("scaffold", 2, grid=grid, evaluate_every=0)
    assert [(row.good, row.bad) for row in result.history.rounds] == [(4, 1)] * 2
    assert "node 1 already is partition 0" in result.history.dropped[0].reason


# -- what control variates do not survive ------------------------------------------------------


def private() -> mod.LocalDpMod:
    return mod.LocalDpMod(clipping_norm=0.5, sensitivity=0.0, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedac-i+cv", "scaffnew"])
@pytest.mark.parametrize("modifier", [private(), mod.fixedclipping_mod], ids=["local", "fixed"])
def test_modifiers_that_change_arrays_are_refused(algorithm, modifier):
    """They clip a change of c_m towards c: |c| was 3.9e8 after 32 rounds."""
    from flwr.app import ConfigRecord

    federation = Five("full")
    app = client_app(federation.own_rows, lambda F: LogisticModel(F, "full"), mods=[modifier])
    strategy = federation.strategy(algorithm, retries=0)
    with pytest.raises(QuorumError, match=r"changed after training, by a modifier such as LocalDp"):
        strategy.start(
            InProcessGrid(app, 5), federation.initial_arrays(), num_rounds=2,
            train_config=ConfigRecord({"clipping_norm": 0.5}),
        )  # fmt: skip
    usual = federation.strategy("fedac-i+local")  # remembers nothing that it has sent
    usual.start(
        InProcessGrid(app, 5), federation.initial_arrays(), num_rounds=2,
        train_config=ConfigRecord({"clipping_norm": 0.5}),
    )  # fmt: skip
    assert [row.good for row in usual.history.rounds] == [5, 5]


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "clipped-mean"])
@pytest.mark.parametrize("algorithm", ["scaffold", "fedac-i+cv+nesterov(1, 0.3)", "scaffnew"])
def test_robust_rules_refuse_control_variates(federation, algorithm, rule):
    with pytest.raises(InputError, match=rf"aggregation='{rule}' and '.*' cannot be combined"):
        federation.strategy(algorithm, aggregation=rule)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedac-i", "fedac-i+local", "diloco(0.7, 0.5)"])
def test_robust_rules_hold_against_a_liar_in_every_round(
    federation, vector, algorithm, rule, tmp_path
):
    """One of eight adds 50 to all that it sends, for 20 rounds."""
    from flwr.app import Array

    honest, path = {}, tmp_path / "run.npz"

    def liar(reply, node, number):
        arrays = {key: array.numpy() for key, array in reply.content["arrays"].items()}
        if node == 3:
            lies = {key: Array(array + 50.0) for key, array in arrays.items()}
            reply.content["arrays"] = ArrayRecord(lies)
        else:
            honest.setdefault(number, []).append(arrays)
        return reply

    def compare(row):
        for key, array in Checkpoint.load(path).arrays.items():
            replies = np.array([arrays[key] for arrays in honest[row.round]])
            assert (array >= replies.min(axis=0) - 1e-12).all()
            assert (array <= replies.max(axis=0) + 1e-12).all()

    options = {"eta": 0.2 * federation.eta, "evaluate_every": 0}
    robust = options | {"aggregation": rule} | ({"trim": 0.2} if rule == "trimmed-mean" else {})
    strategy = federation.strategy(algorithm, checkpoint=path, **robust)
    lied = strategy.start(
        federation.grid(answer=liar), federation.initial_arrays(), num_rounds=20,
        on_round=None if "diloco" in algorithm else compare,
    )  # fmt: skip
    usual = federation.run(algorithm, 20, **robust)
    mean = federation.run(algorithm, 20, grid=federation.grid(answer=liar), **options)
    losses = [federation.F.value(vector(result.arrays)) for result in (lied, usual, mean)]
    assert losses[0] < losses[1] + 0.1
    assert losses[2] > 10
