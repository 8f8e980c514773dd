# SPDX-License-Identifier: Apache-2.0
"""A training loop of the user's own makes the steps of the algorithm, whatever the loop is."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import two_clients

pytest.importorskip("flwr", reason="Flower is not installed: make install")
pytest.importorskip("torch", reason="PyTorch is not installed: make install")

import torch
from flwr.clientapp import ClientApp

from fedac.algorithms import FEDAC_I, ClientWork, RoundInfo, compose, get
from fedac.algorithms.server import ServerRule
from fedac.flower import (
    InProcessGrid,
    LocalStrategy,
    QuorumError,
    Step,
    TorchModel,
    client_app,
    local_training,
    tell_number,
    torch_arrays,
)

CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five, SEED, K, L2 = (CONFTEST[name] for name in ("Five", "SEED", "K", "L2"))
W_0 = np.linspace(-1, 1, 12)
BATCH, ROUNDS, EPOCHS = 3, 4, (1, 3, 2, 5, 4)  # of the five clients


def linear():
    module = torch.nn.Linear(12, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(W_0))
    return module


def loss(module, batch):
    margins = batch[1] * module(batch[0])[:, 0]
    penalty = L2 / 2 * module.weight.square().sum()
    return penalty - torch.nn.functional.logsigmoid(margins).mean()


class Own:
    """A federation whose clients have an app of their own; `loop(model, local, data, i)` trains."""

    def __init__(self, loop, *, optimizer=None, memory_folder=None, make=linear):
        self.federation = Five(BATCH)
        self.federation.w_0, self.make = W_0, make
        self.app = tell_number(ClientApp(), lambda context: len(self.load_data(context)[0]))

        @self.app.train()
        def train(message, context):
            model, data = make(), self.load_data(context)
            own = None if optimizer is None else optimizer(model)
            with local_training(
                message, context, model, own, memory_folder=memory_folder,
                full_gradient=lambda: loss(model, data).backward(),
            ) as local:  # fmt: skip
                loop(model, local, data, context.node_config["partition-id"])
            return local.reply({"num-examples": len(data[0])})

    def load_data(self, context):
        own = self.federation.own_rows(context)
        return torch.from_numpy(own.X), torch.from_numpy(own.y)

    def gradient(self, i, w):
        """Return the gradient of client i, by NumPy."""
        rows = self.federation.clients.rows_of(i)
        X, y = self.federation.F.X[rows], self.federation.F.y[rows]
        return L2 * w - X.T @ (y / (1 + np.exp(y * (X @ w)))) / len(y)

    def run(self, algorithm, rounds=ROUNDS, *, app=None, grid=None, **options):
        options = {"evaluate_every": 0, "eta": 0.3 * self.federation.eta} | options
        return self.federation.strategy(algorithm, **options).start(
            grid or InProcessGrid(app or self.app, 5), torch_arrays(self.make()), num_rounds=rounds
        )

    def reference(self, algorithm, steps, *, change=lambda hp, i: hp, clip=None):
        """Return all that the server holds, by the record's own functions on NumPy vectors."""
        algorithm = get(algorithm)
        hp = algorithm.couple(eta=0.3 * self.federation.eta, mu=L2, K=K)
        sequences, server = algorithm.split(algorithm.start(W_0))
        memories = [algorithm.begin_memory(sequences)] * 5
        for r in range(ROUNDS):
            messages = []
            for m in range(5):
                local = algorithm.enter(sequences, memories[m], hp)
                for i in range(steps[m]):
                    w_md = algorithm.query(local, hp)
                    g = self.gradient(m, w_md)
                    if clip is not None:
                        g = g * min(1.0, clip / (np.linalg.norm(g) + 1e-6))  # as PyTorch does
                    local = algorithm.update(local, w_md, g, change(hp, i))
                message, memories[m] = algorithm.leave(
                    local, sequences, memories[m], hp, ClientWork(steps=steps[m])
                )
                messages.append(message)
            mean = tuple(np.mean(vectors, axis=0) for vectors in zip(*messages, strict=True))
            sequences, server = algorithm.serve(mean, sequences, server, hp, RoundInfo(number=r))
        return dict(zip(algorithm.state_names, (*sequences, *server), strict=True))


def assert_same(result, wanted):
    held = {
        key.partition("/")[0]: array for key, array in {**result.sequences, **result.server}.items()
    }
    assert set(held) == set(wanted)
    for name, vector in wanted.items():
        np.testing.assert_allclose(held[name].ravel(), vector.ravel(), rtol=1e-9, atol=1e-12)


def assert_equal_runs(one, other, **tolerance):
    for mine, theirs in ((one.sequences, other.sequences), (one.server, other.server)):
        assert mine.keys() == theirs.keys()
        for key, array in theirs.items():
            np.testing.assert_allclose(
                mine[key], array, **{"rtol": 1e-12, "atol": 1e-14} | tolerance
            )


def step(model, local, batch):
    local.optimizer.zero_grad()
    loss(model, batch).backward()
    local.optimizer.step()


def drawn(model, local, data, i):
    """K steps on the draws of the simulator."""
    for _ in range(K):
        now = Step(t=local.optimizer.steps, seed=SEED, worker=i)
        rows = torch.from_numpy(now.rows(len(data[0]), BATCH))
        step(model, local, tuple(part[rows] for part in data))


def epochs(model, local, data, i):
    """As many steps as this client likes, each on all its rows."""
    for _ in range(EPOCHS[i]):
        step(model, local, data)


LINEAR = [each for each in two_clients.BY_HAND if each.method not in two_clients.NOT_LINEAR]


@pytest.mark.parametrize("by_hand", LINEAR, ids=two_clients.name_of)
def test_rounds_by_hand(by_hand):
    app = tell_number(ClientApp(), lambda context: 1)

    def make():
        module = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        torch.nn.init.constant_(module.weight, two_clients.START)
        return module

    @app.train()
    def train(message, context):
        model, m = make(), context.node_config["partition-id"]

        def backward():
            ((model.weight - two_clients.TARGETS[m]) ** 2 / 2).sum().backward()

        with local_training(message, context, model, full_gradient=backward) as local:
            for _ in range(by_hand.steps[m]):
                local.optimizer.zero_grad()
                backward()
                local.optimizer.step()
        return local.reply({"num-examples": 1})

    for rounds, expected in enumerate(by_hand.states, start=1):
        strategy = LocalStrategy(
            by_hand.method, eta=two_clients.ETA, mu=1.0, local_steps=max(by_hand.steps),
            min_nodes=2, evaluate_every=0,
        )  # fmt: skip
        grid = InProcessGrid(app, 2)
        result = strategy.start(grid, torch_arrays(make()), num_rounds=rounds)
        held = {**result.sequences, **result.server}
        found = {key.partition("/")[0]: array.item() for key, array in held.items()}
        assert found == pytest.approx(expected, rel=1e-14)
        assert result.arrays["weight"].numpy().item() == found["w"]


# -- the same steps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedac-i",
        "fedavg-weighted",
        "fedadam",
        "scaffold",
        "scaffnew",
        "fedprox(0.3)",
        "fedac-ii+local+cv+momentum(1, 0.5)",
    ],
)
def test_with_k_steps_it_is_torch_model_and_the_simulator(algorithm):
    own = Own(drawn)
    options = {"eta": 0.2 * own.federation.eta, "weighting": "examples"}
    result = own.run(algorithm, **options)
    run = own.federation.simulated(algorithm, ROUNDS, **options)
    assert_same(result, run.state)
    np.testing.assert_allclose(result.arrays["weight"].numpy().ravel(), run.w, rtol=1e-9)
    theirs = client_app(own.load_data, lambda data: TorchModel(linear(), data, loss, batch_size=3))
    assert_equal_runs(result, own.run(algorithm, app=theirs, **options), rtol=0, atol=0)
    assert result.history.metric("train/local-steps") == [(r + 1, K) for r in range(ROUNDS)]


@pytest.mark.parametrize(
    "algorithm", ["fedac-i", "scaffold", "scaffnew", "fedac-i+cv", "fedac-i+local+nesterov(1, 0.3)"]
)
def test_clients_may_take_different_numbers_of_steps(algorithm):
    own = Own(epochs)
    result = own.run(algorithm)
    assert_same(result, own.reference(algorithm, EPOCHS))
    assert result.history.metric("train/local-steps")[0] == (1, pytest.approx(np.mean(EPOCHS)))


class PerStep(ServerRule):
    """A rule that asks for the steps of clients whose round is FedAvg's."""

    asks = ("steps",)

    def step(self, x, delta, kept, hp, this):
        return x - delta / this.steps, kept


ASKING = [
    compose("fedavg", PerStep()),
    "feddyn(0.1)",
    "fedcm(0.2)",
    "fedavg+fedcm(0.3)+cv",
    "fednova",
    "fedavg+fednova+cv+nesterov",
    "fedexp",
    "fedavg+fednova+exp",
    "fedac-i+exp",
    "mimelite(0.9)",
    "mimelite+cv",
    "mimelite+nesterov",
]


def unequal(own, algorithm, weighting, rounds=ROUNDS):
    """Return the simulator's run with these numbers of steps, and our options; half take part."""
    eta, sizes = 0.3 * own.federation.eta, own.federation.clients.sizes
    run = own.federation.simulated(
        algorithm, rounds, K=EPOCHS, record_every=None, batch="full",
        weighting=weighting, participation=0.5, eta=eta,
    )  # fmt: skip
    # K of the coupling, as in the simulator.
    mean = np.average(EPOCHS, weights=sizes if weighting == "examples" else None)
    steps = {"local_steps": int(np.ceil(mean)), "sample": 0.5}
    return run, steps | {"weighting": weighting, "eta": eta}


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("algorithm", ASKING)
def test_different_numbers_of_steps_match_the_simulator(algorithm, weighting):
    own = Own(epochs)
    run, options = unequal(own, algorithm, weighting)
    assert_same(own.run(algorithm, **options), run.state)


@pytest.mark.parametrize("algorithm", ASKING)
def test_a_resumed_run_matches_the_simulator(algorithm, tmp_path):
    path, folder = tmp_path / "run.npz", tmp_path / "memory"
    folder.mkdir()
    own = Own(epochs, memory_folder=folder)
    run, options = unequal(own, algorithm, "examples", rounds=6)
    own.run(algorithm, 3, checkpoint=path, **options)
    assert_same(own.run(algorithm, 6, resume_from=path, **options), run.state)


def test_an_output_that_counts_steps_needs_all_of_them():
    with pytest.raises(QuorumError, match=r"'fedavg-weighted' counts local steps: .*local_steps=4"):
        Own(epochs).run("fedavg-weighted", retries=0)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedac-i", "scaffold"])
def test_clipped_gradients(algorithm):
    def loop(model, local, data, i):
        for _ in range(3):
            local.optimizer.zero_grad()
            loss(model, data).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
            local.optimizer.step()

    norms = []
    own = Own(loop)
    assert_same(own.run(algorithm), own.reference(algorithm, [3] * 5, clip=0.05))
    assert max(norms) > 0.05


def test_gradients_add_up_over_batches():
    def halves(model, local, data, i):
        for _ in range(2):
            local.optimizer.zero_grad()
            for part in (data[0][::2], data[1][::2]), (data[0][1::2], data[1][1::2]):
                (loss(model, part) * len(part[0]) / len(data[0])).backward()
            local.optimizer.step()

    own = Own(halves)
    assert_same(own.run("fedac-i"), own.reference("fedac-i", [2] * 5))


def scheduled(model, local, data, i):
    scheduler = torch.optim.lr_scheduler.StepLR(local.optimizer, step_size=2, gamma=0.5)
    for _ in range(EPOCHS[i]):
        step(model, local, data)
        scheduler.step()


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [
        ("fedavg", lambda hp, i: replace(hp, eta=hp.eta / 2 ** (i // 2))),
        ("momentum(0.8)", lambda hp, i: replace(hp, eta=hp.eta / 2 ** (i // 2))),
        ("fedadam", lambda hp, i: replace(hp, eta=hp.eta / 2 ** (i // 2))),
        (
            "fedac-i",
            lambda hp, i: replace(hp, eta=hp.eta / 2 ** (i // 2), gamma=hp.gamma / 2 ** (i // 2)),
        ),
    ],
)
def test_a_scheduler_scales_the_step(algorithm, change):
    own = Own(scheduled)
    result = own.run(algorithm)
    assert_same(result, own.reference(algorithm, EPOCHS, change=change))
    unscaled = own.reference(algorithm, EPOCHS)
    assert not all(
        np.allclose(result.sequences[f"{name}/weight"].ravel(), unscaled[name])
        for name in get(algorithm).sequences
    )


@pytest.mark.parametrize("algorithm", ["scaffold", "fedac-i+cv", "fedprox(0.3)", "scaffnew"])
def test_a_scheduler_is_refused_where_the_round_is_more_than_its_steps(algorithm):
    with pytest.raises(QuorumError, match=r"needs the step size of the server.*eta=fedac\.Decay"):
        Own(scheduled).run(algorithm, retries=0)


# -- what else a loop does ----------------------------------------------------------------------


def test_evaluating_within_the_loop_changes_nothing():
    """And what is evaluated is the output; after the block the model holds it too."""
    seen = []

    def watching(model, local, data, i):
        epochs(model, local, data, i)
        training = model.weight.detach().clone()
        local.optimizer.eval()
        seen.append((model, model.weight.detach().clone(), training))
        local.optimizer.train()
        assert torch.equal(model.weight, training)

    mine, theirs = Own(watching).run("fedac-i"), Own(epochs).run("fedac-i")
    assert_equal_runs(mine, theirs, rtol=0, atol=0)
    assert len(seen) == 5 * ROUNDS
    for model, output, training in seen:
        assert torch.equal(model.weight, output)
        assert not torch.equal(output, training)


def test_draws_depend_on_seed_client_and_round_only(tmp_path):
    def noisy():
        module = torch.nn.Sequential(torch.nn.Dropout(0.3), linear())
        module.weight = module[1].weight
        return module

    def shuffled(model, local, data, i):
        rows = torch.utils.data.TensorDataset(*data)
        for batch in torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True):
            step(model, local, batch)

    def run(rounds=ROUNDS, **options):
        torch.seed()  # as in a process of its own
        return Own(shuffled, make=noisy).run("fedac-i", rounds, **options)

    whole, path = run(), tmp_path / "run.npz"
    assert_equal_runs(run(), whole, rtol=0, atol=0)
    run(2, checkpoint=path)
    assert_equal_runs(run(resume_from=path), whole, rtol=0, atol=0)
    other = run(seed=SEED + 1)
    assert not np.allclose(other.arrays["weight"].numpy(), whole.arrays["weight"].numpy())


def test_buffers_and_half_precision():
    def make():
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 1))
        torch.nn.init.constant_(module[1].weight, 0.1)
        module.weight = module[1].weight
        return module.to(torch.bfloat16)

    def loop(model, local, data, i):
        for _ in range(3):
            step(model, local, tuple(part.bfloat16() for part in data))

    result = Own(loop, make=make).run("fedac-i")
    assert not result.history.dropped
    assert result.sequences["buffer/0.running_mean"].any()
    assert {array.dtype for array in result.sequences.values()} == {np.dtype("float32")}
    make().load_state_dict(result.arrays.to_torch_state_dict())


def test_round_and_config_are_at_hand():
    from flwr.app import ConfigRecord

    seen = []

    def loop(model, local, data, i):
        seen.append((local.round, local.config))
        step(model, local, data)

    own = Own(loop)
    own.federation.strategy("fedavg", evaluate_every=0).start(
        InProcessGrid(own.app, 5),
        torch_arrays(linear()),
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    assert seen == [(r, {"lr": 0.1, "server-round": r}) for r in (1, 2) for _ in range(5)]


def test_an_algorithm_is_what_was_given_not_its_name():
    """Twice the step of w: clients know the coefficients, whatever their `fedac-i` is."""

    def update(state, w_md, g, hp):
        return FEDAC_I.update(state, w_md, g, replace(hp, gamma=2 * hp.gamma))

    mine = replace(FEDAC_I, update=update)
    assert mine.name == "fedac-i"
    own = Own(epochs)
    result = own.run(mine)
    assert_same(result, own.reference(mine, EPOCHS))
    assert not np.allclose(result.sequences["w/weight"], own.run("fedac-i").sequences["w/weight"])


# -- an optimizer of the user's own -------------------------------------------------------------


def test_adamw_inside_and_diloco_outside_is_the_same_loop_written_plainly():
    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=0.02)

    own = Own(epochs, optimizer=adamw)
    result = own.run("diloco(0.7, 0.9)")
    w, u = torch.from_numpy(W_0)[None], 0.0
    for _ in range(ROUNDS):
        ends = []
        for m in range(5):
            model, rows = linear(), own.federation.clients.rows_of(m)
            F = own.federation.F
            data = torch.from_numpy(F.X[rows]), torch.from_numpy(F.y[rows])
            with torch.no_grad():
                model.weight.copy_(w)
            optimizer = adamw(model)
            for _ in range(EPOCHS[m]):
                optimizer.zero_grad()
                loss(model, data).backward()
                optimizer.step()
            ends.append(model.weight.detach())
        delta = w - torch.stack(ends).mean(dim=0)
        u = 0.9 * u + delta  # Nesterov momentum on the server, as PyTorch's SGD has it
        w = w - 0.7 * (delta + 0.9 * u)
    np.testing.assert_allclose(result.sequences["w/weight"], w.numpy(), rtol=1e-9)
    assert result.history.metric("train/local-steps")[0][1] > 1


def test_an_optimizer_of_some_parameters_leaves_the_others():
    def make():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(12, 3), torch.nn.Linear(3, 1)).double()
        module.weight = module[1].weight
        return module

    own = Own(
        epochs, make=make, optimizer=lambda model: torch.optim.SGD(model[1].parameters(), lr=0.1)
    )
    result, start = own.run("fedavg"), make()
    first = start[0].weight.detach().numpy()
    np.testing.assert_allclose(result.arrays["0.weight"].numpy(), first, rtol=1e-15)
    assert not np.allclose(result.arrays["1.bias"].numpy(), start[1].bias.detach().numpy())


def test_an_optimizer_that_is_kept_continues():
    """A client may keep its own optimizer, and its momentum, from round to round."""
    model = linear()
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    own = Own(
        lambda model, local, data, i: step(model, local, data),
        make=lambda: model,
        optimizer=lambda model: momentum,
    )
    strategy = own.federation.strategy("fedavg", evaluate_every=0, min_nodes=1)
    result = strategy.start(InProcessGrid(own.app, 1), torch_arrays(linear()), num_rounds=3)
    w, u = W_0, 0.0
    for _ in range(3):
        u = 0.9 * u + own.gradient(0, w)
        w = w - 0.1 * u
    np.testing.assert_allclose(result.sequences["w/weight"].ravel(), w, rtol=1e-9)


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "wire"), [("fedac-i", "bfloat16"), ("scaffold", "int8")])
def test_rounded_replies(algorithm, wire):
    own = Own(drawn)
    theirs = client_app(own.load_data, lambda data: TorchModel(linear(), data, loss, batch_size=3))
    options = {"wire": wire, "wire_seed": 3}
    result = own.run(algorithm, **options)
    assert_equal_runs(result, own.run(algorithm, app=theirs, **options), rtol=0, atol=0)
    exact = own.run(algorithm)
    assert not np.array_equal(result.arrays["weight"].numpy(), exact.arrays["weight"].numpy())


class Flaky(InProcessGrid):
    """Loses the first reply of every node in every round, after it has moved its memory."""

    pull_seconds = 600.0  # the deadline is for lost replies, not for a busy machine

    def answer(self, message):
        reply = super().answer(message)
        asked = (message.metadata.dst_node_id, message.metadata.group_id)
        seen = self.__dict__.setdefault("seen", set())
        if asked in seen:
            return reply
        seen.add(asked)
        return None


@pytest.mark.parametrize("algorithm", ["scaffold", "fedac-i+local"])
def test_a_lost_reply_leaves_no_trace_in_the_memory(algorithm):
    own = Own(epochs)
    result = own.run(algorithm, grid=Flaky(own.app, 5), quorum=5, deadline=0.05)
    assert [row.attempts for row in result.history.rounds] == [2] * ROUNDS
    assert_same(result, own.reference(algorithm, EPOCHS))


def test_a_resumed_run_finds_the_memory(tmp_path):
    path, folder = tmp_path / "run.npz", tmp_path / "memory"
    folder.mkdir()
    own = Own(epochs, memory_folder=folder)
    own.run("scaffold", 2, checkpoint=path)
    resumed = own.run("scaffold", resume_from=path)
    assert_same(resumed, own.reference("scaffold", EPOCHS))
    assert sum(row.memory_lost for row in resumed.history.rounds) == 0


def test_a_folder_is_found_by_its_path_as_text(tmp_path):
    Own(epochs, memory_folder=str(tmp_path)).run("scaffold", 1)
    assert len(list(tmp_path.glob("client-*.npz"))) == 5
