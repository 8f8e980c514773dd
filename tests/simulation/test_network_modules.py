# SPDX-License-Identifier: Apache-2.0
"""Networks: modules of every kind in both back ends, and one clear line for every bad input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import fedac
from fedac import Network
from fedac.errors import InputError, SlowEngineWarning
from fedac.objectives.network.layers import WORTH_HALVING, seeded_dropouts
from fedac.simulation.engines.network import engine

# vmap runs some operations one by one, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

SIZES = (5, 6, 9, 12)  # rows of the clients
OWNERS = np.repeat(np.arange(4), SIZES)
ROWS = [np.flatnonzero(m == OWNERS) for m in range(4)]
Y = torch.arange(32) % 3


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors are no work for several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(32, *shape, generator=torch.Generator().manual_seed(0))


VECTORS, IMAGES, WORDS = inputs(6), inputs(1, 4, 4), inputs(5, 8)
TOKENS = torch.randint(0, 11, (32, 6), generator=torch.Generator().manual_seed(0))
LARGE = inputs(1, 43, 41)  # of odd sizes, so that pooling leaves out pixels

# Modules.


def head(*layers: nn.Module, columns: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(columns, 3))


def between(*layers: nn.Module) -> nn.Module:
    """Return a network for VECTORS with these layers on 8 columns."""
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))


def frozen() -> nn.Module:
    module = between(nn.ReLU())
    module[0].requires_grad_(False)
    return module


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(11, 5), kind(5, 7, batch_first=True)
        self.out = nn.Linear(7, 3)

    def forward(self, x):
        return self.out(self.cells(self.tokens(x))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.heads(x, x, x, need_weights=False)[0].mean(1))


class Mean(nn.Module):
    """The mean over places, of a module for WORDS."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inside, self.out = module, nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.inside(x).mean(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x + functional.relu(self.block(x)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.out(self.second(torch.tanh(self.first(x))))


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.products = nn.Bilinear(3, 3, 3)

    def forward(self, x):
        return self.products(x[:, :3], x[:, 3:])


class DropoutTwice(nn.Module):
    """One dropout layer that drops two tensors of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.4)
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.drop(torch.relu(self.first(x)))
        return self.out(self.drop(torch.relu(self.second(x))))


class ChangesInput(Residual):
    def forward(self, x):
        x -= 0.5
        x *= 2
        return super().forward(x)


def dropout_in_two_places() -> nn.Module:
    drop = nn.Dropout(0.4)
    return between(drop, nn.Linear(8, 8), drop)


def shared_activation() -> nn.Module:
    activation = nn.Sequential(nn.Tanh(), nn.Dropout(0.4))
    return between(activation, nn.Linear(8, 8), activation)


BATCHED: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (lambda: between(nn.ReLU()), VECTORS),
    "in-place relu": (lambda: between(nn.ReLU(inplace=True)), VECTORS),
    "conv2d": (
        lambda: head(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), columns=27), inputs(1, 8, 8),
    ),
    "conv2d-large": (
        lambda: head(nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), columns=3 * 21 * 20), LARGE,
    ),
    "conv1d": (lambda: head(nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), columns=9), inputs(2, 8)),
    "conv3d": (lambda: head(nn.Conv3d(1, 2, 2), columns=16), inputs(1, 3, 3, 3)),
    "transposed": (lambda: head(nn.ConvTranspose2d(1, 2, 3), columns=72), IMAGES),
    "grouped": (
        lambda: head(
            nn.Conv2d(4, 8, 3, groups=4), nn.Tanh(), nn.Conv2d(8, 4, 1, groups=2), columns=16
        ),
        inputs(4, 4, 4),
    ),
    "average pooling": (
        lambda: head(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), columns=4),
        inputs(1, 8, 8),
    ),
    "batchnorm1d": (lambda: between(nn.BatchNorm1d(8), nn.ReLU()), VECTORS),
    "batchnorm without statistics": (
        lambda: head(nn.BatchNorm2d(1, track_running_stats=False), columns=16), IMAGES,
    ),
    "batchnorm2d": (lambda: head(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), columns=16), IMAGES),
    "groupnorm": (lambda: head(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), columns=16), IMAGES),
    "layernorm": (lambda: between(nn.LayerNorm(8)), VECTORS),
    "instancenorm": (
        lambda: head(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), columns=16), IMAGES,
    ),
    "dropout": (lambda: between(nn.ReLU(), nn.Dropout(0.4)), VECTORS),
    "dropout2d": (lambda: head(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.4), columns=16), IMAGES),
    "dropout layer called twice": (DropoutTwice, VECTORS),
    "dropout layer in two places": (dropout_in_two_places, VECTORS),
    "input in place": (ChangesInput, VECTORS),
    "embedding": (lambda: head(nn.Embedding(11, 4), columns=24), TOKENS),
    "embedding bag": (lambda: head(nn.EmbeddingBag(11, 4), columns=4), TOKENS),
    "attention": (Attention, WORDS),
    "transformer": (
        lambda: Mean(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)), WORDS,
    ),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(6, 3)), VECTORS),
    "tied": (Tied, VECTORS),
    "frozen": (frozen, VECTORS),
    "residual": (Residual, VECTORS),
    "prelu": (lambda: between(nn.PReLU(8)), VECTORS),
    "bilinear": (Products, VECTORS),
    "models.softmax": (lambda: fedac.models.softmax((6,), 3), VECTORS),
    "models.mlp": (lambda: fedac.models.mlp(7, 5)((6,), 3), VECTORS),
    "models.cnn": (lambda: fedac.models.cnn((8, 8), 3), inputs(8, 8)),
}  # fmt: skip


def make(maker: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return maker()


def run(task: Network, **options: Any) -> fedac.Result:
    usual = {"clients": OWNERS, "batch": 4, "K": 2, "rounds": 2, "eta": [0.1, 0.03], "threads": 1}
    methods = options.pop("methods", ["fedavg", "scaffold"])
    return fedac.simulate(task, methods, **(usual | {"record_every": 2} | options))


def assert_close(one: fedac.Result, other: fedac.Result, tolerance: float = 1e-5) -> None:
    assert len(one.runs) == len(other.runs) == 4
    for mine, theirs in zip(one.runs, other.runs, strict=True):
        np.testing.assert_allclose(mine.w, theirs.w, rtol=0, atol=tolerance)
        np.testing.assert_allclose(mine.loss, theirs.loss, rtol=tolerance, atol=0)
        for name, buffer in one.module(mine).named_buffers():
            other_buffer = other.module(theirs).get_buffer(name)
            np.testing.assert_allclose(buffer, other_buffer, rtol=0, atol=tolerance)


def assert_back_ends_agree(task: Network) -> None:
    loop, batched = (run(task, backend=backend) for backend in ("loop", "batched"))
    assert_close(loop, batched)
    for found in loop.runs:
        assert np.abs(found.w - task.start(1)).max() > 2e-3  # it went somewhere
        assert found.loss[0] != found.loss[1] != found.loss[2]


# Both back ends.


@pytest.mark.parametrize("kind", BATCHED)
def test_back_ends_agree(kind):
    maker, X = BATCHED[kind]
    assert_back_ends_agree(Network(make(maker), X, Y))


def test_a_layer_in_two_places_counts_twice():
    assert_back_ends_agree(Network(make(shared_activation), VECTORS, Y))


def test_large_pooling_takes_the_fast_way():
    large, small = 4 * 3 * 43 * 41, 4 * 3 * 6 * 6  # numbers in a batch of the two modules above
    assert small < WORTH_HALVING <= large


@pytest.mark.parametrize("kind", ["batchnorm1d", "batchnorm2d"])
def test_back_ends_agree_on_own_buffers(kind):
    maker, X = BATCHED[kind]
    mean, local = (Network(make(maker), X, Y, buffers=buffers) for buffers in ("mean", "local"))
    assert_back_ends_agree(local)
    # Own statistics are those of other rounds, so they differ from averaged ones.
    options = {"rounds": 4, "participation": 0.5}
    of_mean, of_own = (run(task, **options).runs[0] for task in (mean, local))
    assert np.abs(of_mean.buffers - of_own.buffers).max() > 1e-4


def test_back_ends_agree_on_tokens():
    rows = torch.randint(0, 11, (32, 9), generator=torch.Generator().manual_seed(1))
    module = make(lambda: fedac.models.char_gpt(1, 16, 8)((8,), 11))
    assert_back_ends_agree(Network(module, rows, loss="next-token"))


@pytest.mark.parametrize("loss", ["mse", functional.huber_loss], ids=["mse", "function"])
def test_back_ends_agree_on_numbers(loss):
    module = make(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)))
    assert_back_ends_agree(Network(module, VECTORS, VECTORS[:, :2] ** 2, loss=loss))


def test_constants_in_single_precision_are_fine():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    task = Network(make(lambda: between(nn.ReLU())), VECTORS, Y, loss=loss)
    assert_back_ends_agree(task)
    assert np.isfinite(task.value(task.start(1)))
    assert task.fingerprint() == task.fingerprint()


def test_a_module_that_changes_its_input_leaves_the_data_alone():
    class Copies(ChangesInput):
        def forward(self, x):
            return super().forward(x.clone())

    X = VECTORS.clone()
    result = run(Network(make(ChangesInput), X, Y, test=(X, Y)), backend="loop")
    assert torch.equal(X, VECTORS)
    same = run(Network(make(Copies), X, Y, test=(X, Y)), backend="loop")
    assert_close(result, same, 0.0)
    assert result.runs[0].metrics["loss"].tolist() == same.runs[0].metrics["loss"].tolist()


# Modules for the loop.


class InPlace(Residual):
    def forward(self, x):
        total = torch.zeros(len(x), 6)
        total += self.block(x)
        return self.out(total)


class Branch(Residual):
    def forward(self, x):
        z = self.block(x)
        return self.out(z if z.sum() > 0 else 2 * z)


class Item(Residual):
    def forward(self, x):
        return self.out(self.block(x) / (1 + x.abs().max().item()))


class Mask(Residual):
    def forward(self, x):
        z = self.block(x)
        return self.out(z) + z[z > 0].mean()


class Checkpointed(Residual):
    def forward(self, x):
        return self.out(checkpoint(self.block, x, use_reentrant=False).relu())


LOOPED: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, str]] = {
    "in place": (InPlace, VECTORS, "broadcast shape"),
    "branch": (Branch, VECTORS, "data-dependent control flow"),
    "item": (Item, VECTORS, r"\.item\(\)"),
    "mask": (Mask, VECTORS, "dynamic shape|nonzero"),
    "checkpoint": (Checkpointed, VECTORS, "inside a function being vmapped"),
    "sparse": (lambda: head(nn.Embedding(11, 4, sparse=True), columns=24), TOKENS, "parse"),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(6, 3)), VECTORS, "aten::div.out",
    ),
    "cumulative batchnorm": (
        lambda: between(nn.BatchNorm1d(8, momentum=None)), VECTORS, r"\.item\(\)",
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), TOKENS, "aten::lstm"),
    "gru": (lambda: Recurrent(nn.GRU), TOKENS, "aten::gru"),
}  # fmt: skip


def plain_fedavg(module: nn.Module, X: torch.Tensor) -> nn.Module:
    """Return a module after two rounds of two steps on all rows of the four clients."""
    server = copy.deepcopy(module).train()
    for _ in range(2):
        states = []
        for rows in ROWS:
            client = copy.deepcopy(server)
            optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                functional.cross_entropy(client(X[rows]), Y[rows]).backward()
                optimizer.step()
            states.append(client.state_dict())
        server.load_state_dict({
            name: sum(n / 32 * state[name] for n, state in zip(SIZES, states, strict=True))
            for name in states[0]
        })  # fmt: skip
    return server


@pytest.mark.parametrize("kind", LOOPED)
def test_other_modules_run_by_the_loop_like_plain_pytorch(kind):
    maker, X, reason = LOOPED[kind]
    module = make(maker)
    with pytest.warns(SlowEngineWarning, match=f"cannot be batched: .*({reason})") as caught:
        result = run(Network(module, X, Y), methods="fedavg", batch="full", eta=0.1)
    assert result.backend == "loop"
    assert "\n" not in str(caught[0].message)
    trained = result.module(result.runs[0]).state_dict()
    moved = 0.0
    for name, value in plain_fedavg(module, X).state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-5)
        moved = max(moved, float((value - module.state_dict()[name]).abs().max()))
    assert moved > 1e-3


@pytest.mark.parametrize("kind", ["lstm", "branch"])
def test_a_module_that_cannot_be_batched_says_so(kind):
    maker, X, reason = LOOPED[kind]
    with pytest.raises(InputError, match=reason):
        run(Network(make(maker), X, Y), backend="batched")


class Noise(Residual):
    """Noise in training and in evaluation."""

    def forward(self, x):
        return super().forward(x + torch.rand(x.shape))


class FunctionalDropout(Residual):
    def forward(self, x):
        return super().forward(functional.dropout(x, 0.3, self.training))


RANDOM: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "noise": (Noise, VECTORS),
    "functional dropout": (FunctionalDropout, VECTORS),
    "alpha dropout": (lambda: between(nn.SELU(), nn.AlphaDropout(0.3)), VECTORS),
    "transformer": (
        lambda: Mean(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)), WORDS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RANDOM)
def test_random_numbers_outside_of_dropout_layers_need_the_loop(kind, monkeypatch):
    maker, X = RANDOM[kind]
    task = Network(make(maker), X, Y)
    with pytest.warns(SlowEngineWarning, match="random numbers outside of dropout layers"):
        result = run(task)
    assert result.backend == "loop"
    with pytest.raises(InputError, match="outside of dropout layers"):
        run(task, backend="batched")
    # They belong to seed, client and step: not to the chunk, nor to the caller's random numbers.
    monkeypatch.setattr(engine, "CHUNK_BYTES", 1)
    torch.manual_seed(77)
    expected = torch.rand(3)
    torch.manual_seed(77)
    assert_close(run(task, backend="loop"), result, 1e-6)
    assert torch.equal(torch.rand(3), expected)
    other = run(task, backend="loop", seed=2, batch="full")
    same = run(task, backend="loop", seed=1, batch="full")
    assert np.abs(other.runs[0].w - same.runs[0].w).max() > 1e-5
    w = task.start(1)
    assert task.value(w) == task.value(w)
    assert task.fingerprint() == Network(make(maker), X, Y).fingerprint()


# Dropout.


@pytest.mark.parametrize("backend", ["loop", "batched"])
@pytest.mark.parametrize("kind", ["dropout", "dropout2d", "dropout layer called twice"])
def test_masks_are_a_function_of_seed_client_and_step(kind, backend, monkeypatch):
    maker, X = BATCHED[kind]
    task = Network(make(maker), X, Y)
    options = {"backend": backend, "batch": "full"}  # nothing else is random
    whole = run(task, **options)
    monkeypatch.setattr(engine, "CHUNK_BYTES", 1)
    assert_close(run(task, **options), whole)
    other = run(task, **options, seed=2)
    assert np.abs(other.runs[0].w - whole.runs[0].w).max() > 1e-4
    # Clients with the same rows draw masks of their own: their mean is not what one of them does.
    alone = run(Network(make(maker), X[:8], Y[:8]), clients=np.zeros(8, int), **options)
    twins = Network(make(maker), X[:8].repeat(4, *(1 for _ in X.shape[1:])), Y[:8].repeat(4))
    four = run(twins, clients=np.repeat(np.arange(4), 8), **options)
    assert np.abs(alone.runs[0].w - four.runs[0].w).max() > 1e-4


def test_a_layer_called_twice_draws_two_masks():
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.out = nn.Dropout(0.5), nn.Linear(6, 3)

        def forward(self, x):
            self.seen = self.drop(torch.ones(40, 40)), self.drop(torch.ones(40, 40))
            return self.out(x)

    module = Network(Masks(), VECTORS, Y).module.train()
    (layer,) = seeded_dropouts(module)
    seen = []
    for key in (5, 5, 6):
        layer.key = torch.tensor(key)
        module(VECTORS)
        seen.append(module.seen)
    (a, b), (same_a, same_b), (c, _) = seen
    assert torch.equal(a, same_a)
    assert torch.equal(b, same_b)
    for one, other in ((a, b), (a, c)):
        assert 0.4 < float((one == other).double().mean()) < 0.6  # independent
    for mask in (a, b, c):
        assert set(mask.unique().tolist()) == {0.0, 2.0}
        assert 0.9 < float(mask.mean()) < 1.1


def test_dropout_layers_come_back():
    task = Network(make(dropout_in_two_places), VECTORS, Y)
    assert [type(layer) for layer in task.module_of(task.start(1))] == [
        nn.Linear, nn.Dropout, nn.Linear, nn.Dropout, nn.Linear,
    ]  # fmt: skip


# Batch normalization.


def plain_training(module: nn.Module, batches: Any) -> dict[str, torch.Tensor]:
    """Return the state of a module after SGD on batches of VECTORS."""
    client = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    for rows in batches:
        optimizer.zero_grad()
        functional.cross_entropy(client(VECTORS[rows]), Y[rows]).backward()
        optimizer.step()
    return client.state_dict()


@pytest.mark.parametrize("backend", ["loop", "batched"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("clients", [1, 4])
def test_running_statistics_equal_plain_pytorch(clients, weighting, backend):
    module = make(BATCHED["batchnorm1d"][0])
    owners = OWNERS if clients == 4 else np.zeros(32, int)
    result = run(
        Network(module, VECTORS, Y), methods="fedavg", eta=0.1, rounds=1, K=3, batch=8,
        clients=owners, weighting=weighting, backend=backend,
    )  # fmt: skip
    batches = result.federation.batches(np.arange(clients), next(iter(result.schedule)))
    states = [plain_training(module, own) for own in batches]
    sizes = np.bincount(owners) if weighting == "examples" else np.ones(clients)
    found = result.module(result.runs[0]).state_dict()
    for name, value in found.items():
        mean = sum(n / sizes.sum() * s[name].double() for n, s in zip(sizes, states, strict=True))
        np.testing.assert_allclose(value, mean, rtol=0, atol=1e-5, err_msg=name)
    assert int(found["1.num_batches_tracked"]) == 3
    assert float((found["1.running_var"] - 1).abs().max()) > 0.05


# Networks as values.


def test_the_caller_keeps_its_module():
    own = make(DropoutTwice)
    before = copy.deepcopy(own.state_dict())
    for module in (own, lambda: own):  # a function, too, may return a module that is kept
        run(Network(module, VECTORS, Y))
        assert isinstance(own.drop, nn.Dropout)
        for name, value in own.state_dict().items():
            assert torch.equal(value, before[name])


def test_a_fingerprint_does_not_depend_on_what_was_computed():
    task = Network(make(Residual), VECTORS, Y)
    before = task.fingerprint()
    task.value(task.start(1) + 1)
    assert task.fingerprint() == before


def test_other_test_rows_are_evaluated():
    task = Network(make(Residual), VECTORS, Y)
    w = task.start(1)
    assert task.evaluate(w) == {}
    tested = task.tested_on((VECTORS[:8], Y[:8]))
    assert tested.evaluate(w)["loss"] == pytest.approx(
        float(functional.cross_entropy(task.module_of(w)(VECTORS[:8]), Y[:8]).detach()), rel=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_of_any_precision_runs_in_that_of_the_simulation(dtype):
    module = make(Residual)
    module.block.to(dtype)
    module.block.bias.requires_grad_(False)
    task = Network(module, VECTORS, Y)
    assert len(task.fingerprint()) == 64
    result = run(task, backend="loop")
    assert result.module(result.runs[0]).block.weight.dtype == dtype
    assert_close(result, run(Network(copy.deepcopy(module).float(), VECTORS, Y)))


def test_labels_of_many_kinds_mean_the_same():
    module = make(Residual)
    names = np.array(["cat", "dog", "eel"])[Y]
    same = [
        Y.numpy(), Y.double(), Y - 1, names, names.tolist(), pd.Series(names),
        pd.Series(names).astype("category"), np.array(Y.tolist(), object), Y.to(torch.uint8),
    ]  # fmt: skip
    for labels in same:
        task = Network(module, VECTORS, labels, test=(VECTORS, labels))
        assert torch.equal(task.y, Y)
        assert torch.equal(task.test[1], Y)


def test_data_sets_of_pairs_equal_arrays():
    class Pairs(Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, i):
            return VECTORS[i].numpy(), int(Y[i])

    for data in (TensorDataset(VECTORS, Y), Pairs(), Subset(Pairs(), range(32))):
        task = Network(make(Residual), data, test=data)
        assert torch.equal(task.X, VECTORS)
        assert torch.equal(task.test[1], Y)


# One line for each mistake.

ROWS12 = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
LABELS, NUMBERS = np.arange(12) % 3, ROWS12.sum(1)
CLIENTS = np.arange(12) % 3


def linear(columns: int = 4, outputs: int = 3) -> nn.Module:
    return nn.Linear(columns, outputs)


def task(module: Any = None, X: Any = ROWS12, y: Any = LABELS, **options: Any) -> Network:
    return Network(linear() if module is None else module, X, y, **options)


def simulate(found: Any = None, method: str = "fedavg", **options: Any) -> fedac.Result:
    usual = {"clients": CLIENTS, "K": 2, "rounds": 2, "eta": 0.1, "batch": 2, "threads": 1}
    return fedac.simulate(task() if found is None else found, method, **(usual | options))


def least_squares() -> fedac.LeastSquares:
    return fedac.LeastSquares(ROWS12, NUMBERS)


def changed(array: np.ndarray, value: float) -> np.ndarray:
    array = np.array(array, np.float64)
    array[3] = value
    return array


class Items(Dataset):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Broken(Items):
    def __getitem__(self, i):
        raise OSError(f"no file {i}.png")


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(4), 0)])


class Fails(nn.Linear):
    def forward(self, x):
        raise KeyError("first\nsecond")


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class NoRows(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean(0)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 3, dtype=torch.complex64))


class NotCopied(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.lines = (line for line in ())


class Grows:
    """Makes a larger module at every call."""

    width = 2

    def __call__(self) -> nn.Module:
        self.width += 1
        return linear(outputs=self.width)


def hooked() -> nn.Module:
    module = linear()
    module.weight.register_hook(lambda g: g.clamp(-1, 1))
    return module


def raises(*_: Any) -> Any:
    raise RuntimeError("no file weights.bin\nsecond line")


def norm() -> Network:
    return task(nn.Sequential(linear(), nn.BatchNorm1d(3)))


def tokens(highest: int) -> Network:
    X = np.zeros((12, 4), int)
    X[-1] = highest
    return task(head(nn.Embedding(5, 3), columns=12), X)


PER_ROW = nn.CrossEntropyLoss(reduction="none")
ZEROS = torch.zeros(4)
GOOD = (ROWS12, LABELS)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # Inputs.
    "lengths": (lambda: task(y=LABELS[:5]), "X has 12 rows but y has 5"),
    "no rows": (lambda: task(X=ROWS12[:0], y=LABELS[:0]), "X of the data has no rows"),
    "ragged": (lambda: task(X=[[1.0, 2.0], [1.0]], y=[0, 1]), "X of the data must be an array"),
    "scalar": (lambda: task(X=3.0, y=[1]), "must have a row for each example, got 3.0"),
    "None": (lambda: task(X=None), "must have a row for each example, got None"),
    "strings": (lambda: task(X=np.full((12, 4), "a")), "X of the data must be numbers, got <U1"),
    "objects": (lambda: task(X=np.full((12, 4), None)), "must be numbers, got object"),
    "complex": (lambda: task(X=ROWS12 * 1j), "must be real numbers, got complex64"),
    "complex tensor": (lambda: task(X=torch.tensor(ROWS12 * 1j)), "must be real numbers"),
    "NaN": (lambda: task(X=changed(ROWS12, np.nan)), "X of the data has nan in row 3"),
    "infinity": (lambda: task(X=torch.tensor(changed(ROWS12, np.inf))), "has inf in row 3"),
    "whole numbers": (lambda: task(X=np.ones((12, 4), int)), "unless X are tokens, pass floats"),
    "tokens as floats": (
        lambda: task(nn.Embedding(5, 3), np.ones((12, 4))), "tokens, pass whole numbers",
    ),
    "token out of range": (lambda: simulate(tokens(5), backend="loop"), "out of range"),
    # Targets.
    "y missing": (lambda: task(y=None), "y is missing: pass X and y of the data"),
    "y of pairs": (lambda: task(X=GOOD, y=None), "y is missing: pass X and y"),
    "y twice": (lambda: task(X=TensorDataset(ZEROS[:, None], ZEROS)), "y is given twice"),
    "y twice of ours": (
        lambda: task(X=fedac.Dataset("two", np.eye(4), np.array([0, 1, 0, 1]))), "given twice",
    ),
    "y scalar": (lambda: task(y=1), "y of the data must have a row for each example, got 1"),
    "y ragged": (lambda: task(y=[[0], [1, 2]]), "y of the data must be an array"),
    "y without columns": (lambda: task(y=np.zeros((12, 0))), "y of the data has no columns"),
    "y one-hot": (lambda: task(y=np.eye(3)[LABELS]), r"got \(12, 3\); use y.argmax\(1\)"),
    "y a column": (lambda: task(y=LABELS[:, None]), r"got \(12, 1\); use y\[:, 0\]"),
    "class out of range": (lambda: task(y=LABELS + 1), "has the class 3, .*for classes 0 to 2"),
    "too many names": (lambda: task(linear(4, 2), y=list("abc") * 4), "has the class 2, but"),
    "negative label": (lambda: task(y=[-1, 0, 1, 2] * 3), r"the labels \(-1, 0, 1, 2"),
    "minus one for unknown": (
        lambda: task(y=torch.tensor(LABELS) * 2 - 1, module=linear(4, 8)),
        "label -1; .* one output for each of the 3 labels, not 8",
    ),
    "ignored": (lambda: task(y=torch.tensor(changed(LABELS, -100))), "-100, PyTorch's mark"),
    "objects as y": (lambda: task(y=[1, None, "a"] * 4), "of one type, got NoneType, int, str"),
    "names with NaN": (
        lambda: task(y=pd.Series(["a", np.nan, "b"] * 4, dtype=object)), "got float, str; drop",
    ),
    "y NaN": (lambda: task(y=changed(LABELS, np.nan)), "y of the data has nan in row 3"),
    "y infinite": (lambda: task(y=changed(LABELS, -np.inf)), "y of the data has -inf in row 3"),
    "y NaN in regression": (
        lambda: task(linear(4, 1), y=changed(NUMBERS, np.nan), loss="mse"), "has nan in row 3",
    ),
    "numbers as classes": (lambda: task(y=NUMBERS), "which are not classes; use loss='mse'"),
    "names in regression": (
        lambda: task(linear(4, 1), y=list("abc") * 4, loss="mse"), "y of the data must be numbers",
    ),
    "next-token of floats": (
        lambda: task(X=ROWS12, y=None, loss="next-token"), "needs X of whole numbers",
    ),
    "next-token of one": (
        lambda: task(X=[[0], [1]], y=None, loss="next-token"), "needs X of whole numbers",
    ),
    "next-token out of range": (
        lambda: task(nn.Embedding(4, 4), [[0, 1, 7]], None, loss="next-token"), "has the class 7",
    ),
    "negative token": (
        lambda: task(nn.Embedding(4, 4), [[0, 1, -1]], None, loss="next-token"), "class -1",
    ),
    # Data sets of pairs.
    "items no pairs": (lambda: task(X=Items(ZEROS), y=None), "item 0 .* got Tensor"),
    "items dictionaries": (lambda: task(X=Items({"x": 1}), y=None), "item 0 .* got dict"),
    "items triples": (lambda: task(X=Items((ZEROS, 0, 1)), y=None), "item 0 .* got 3 parts"),
    "items of two shapes": (
        lambda: task(X=Items((ZEROS, 0), (torch.zeros(5), 1)), y=None), r"item 1 .* shape \(5,\)",
    ),
    "targets of two shapes": (
        lambda: task(X=Items((ZEROS, [0]), (ZEROS, [0, 1])), y=None), "the target of item 1",
    ),
    "no items": (lambda: task(X=Items(), y=None), "X of the data has no rows"),
    "items that fail": (lambda: task(X=Broken(1), y=None), "item 0 .* read: no file 0.png"),
    "items of text": (lambda: task(X=Items(("a", 0)), y=None), "must be numbers, got <U1"),
    "loader": (lambda: task(X=DataLoader(Items(1)), y=None), "map-style .* got DataLoader"),
    "stream": (lambda: task(X=Stream(), y=None), "map-style Dataset, .* got Stream"),
    # Losses.
    "loss unknown": (lambda: task(loss="crossentropy"), "did you mean 'cross-entropy'"),
    "loss a number": (lambda: task(loss=3), "loss must be a name or a function"),
    "loss a class": (lambda: task(loss=nn.MSELoss), r"pass an instance, such as MSELoss\(\)"),
    "loss of a sum": (lambda: task(loss=nn.MSELoss(reduction="sum")), "use reduction='mean'"),
    "loss per row": (lambda: task(loss=PER_ROW), "use reduction='mean', not 'none'"),
    "loss a vector": (lambda: task(loss=lambda o, t: PER_ROW(o, t)), r"one number.*shape \(4,\)"),
    "loss None": (lambda: task(loss=lambda o, t: None), "one number, .* got None"),
    "loss a float": (lambda: task(loss=lambda o, t: o.sum().item()), "return a tensor with one"),
    "loss NaN": (lambda: task(loss=lambda o, t: o.sum() * np.nan), "start is not finite"),
    "loss detached": (lambda: task(loss=lambda o, t: o.detach().mean()), "has no gradient"),
    "loss raises": (lambda: task(loss=raises), "the loss failed on .*: no file weights.bin$"),
    "outputs": (lambda: task(linear(4, 1)), "needs an output for each class"),
    "outputs of numbers": (
        lambda: task(linear(4, 2), y=NUMBERS, loss="mse"), r"has shape \(4, 2\), the targets",
    ),
    "l2 negative": (lambda: task(l2=-1), "l2 must be a finite number, at least 0"),
    "l2 NaN": (lambda: task(l2=np.nan), "l2 must be a finite number"),
    "l2 text": (lambda: task(l2="0.1"), "l2 must be a finite number"),
    # Modules.
    "no module": (lambda: task("mlp(3)"), "must be a torch.nn.Module or a function"),
    "tensor as module": (lambda: task(torch.zeros(3)), "must be a torch.nn.Module or a"),
    "no parameters": (lambda: task(nn.ReLU()), "no parameters that require gradients"),
    "all frozen": (lambda: task(linear().requires_grad_(False)), "no parameters that require"),
    "class with arguments": (lambda: task(nn.Linear), "the function that makes the module failed"),
    "function of a number": (lambda: task(lambda: 3), "return a torch.nn.Module, got int"),
    "function that fails": (lambda: task(raises), "failed: no file weights.bin$"),
    "function that grows": (
        lambda: simulate(task(Grows()), seed=2), "same layers for every seed, .* 20 param.* 15$",
    ),
    "wrong columns": (lambda: task(linear(5)), r"failed on an input of shape \(4, 4\)"),
    "module raises": (lambda: task(Fails(4, 3)), "the module failed on an input"),
    "module returns a pair": (lambda: task(Pair(4, 3)), "must return a tensor, got tuple"),
    "module returns no rows": (lambda: task(NoRows(4, 3)), "must return a row for each row"),
    "meta device": (lambda: task(nn.Linear(4, 3, device="meta")), "on the meta device"),
    "complex parameters": (lambda: task(Complex()), "the parameter 'w' is complex"),
    "lazy": (lambda: task(nn.LazyLinear(3)), "the parameter 'weight' is lazy"),
    "hook of a parameter": (lambda: task(hooked), "the parameter 'weight' has a hook"),
    "not copied": (lambda: task(NotCopied()), "the module cannot be copied: .*generator"),
    # Batch normalization.
    "buffers refused": (
        lambda: task(nn.Sequential(linear(), nn.BatchNorm1d(3)), buffers="refuse"), "changes its",
    ),
    "buffers unknown": (lambda: task(buffers="avg"), "unknown buffers 'avg'"),
    "one row per batch": (lambda: simulate(norm(), batch=1), "more than 1 value per channel"),
    "one row, loop": (lambda: simulate(norm(), batch=1, backend="loop"), "more than 1 value"),
    "one row, batched": (lambda: simulate(norm(), batch=1, backend="batched"), "than 1 value"),
    "one row at the end": (
        lambda: simulate(norm(), batch=3, K=None, epochs=1, backend="batched"), "than 1 value",
    ),
    # Metrics and test rows.
    "metric unknown": (lambda: task(metrics=["acuracy"]), "did you mean 'accuracy'"),
    "metric a number": (lambda: task(metrics={"a": 3}), "'a' must be a function"),
    "metrics a number": (lambda: task(metrics=3), "metrics must be names or functions by name"),
    "metrics functions": (lambda: task(metrics=[raises]), "give functions by name, as in"),
    "metric of numbers": (lambda: task(metrics=["r2"]), "needs targets that are numbers"),
    "metric of classes": (
        lambda: task(linear(4, 1), y=NUMBERS, loss="mse", metrics="accuracy"), "that are classes",
    ),
    "metric named loss": (lambda: task(metrics={"loss": raises}), "'loss' cannot be the name"),
    "metric raises": (
        lambda: simulate(task(metrics={"a": raises}, test=GOOD)), "'a' failed on .*weights.bin$",
    ),
    "metric a vector": (
        lambda: simulate(task(metrics={"a": lambda o, t: o}, test=GOOD)),
        r"'a' must return one number, got Tensor of shape \(12, 3\)",
    ),
    "metric None": (
        lambda: simulate(task(metrics={"a": lambda o, t: None}, test=GOOD)), "got NoneType",
    ),
    "test columns": (lambda: task(test=(ROWS12[:, :2], LABELS)), r"have shape \(2,\), those of"),
    "test columns later": (lambda: simulate(test=(ROWS12[:, :2], LABELS)), "inputs of the test"),
    "test targets": (lambda: task(test=(ROWS12, np.eye(3)[LABELS])), "targets of the test set"),
    "test class": (lambda: task(test=(ROWS12, LABELS + 1)), "y of the test set has the class 3"),
    "test label": (
        lambda: task(y=list("abc") * 4, test=(ROWS12, list("abd") * 4)), "has the label 'd', the",
    ),
    "test label of names": (lambda: task(test=(ROWS12, list("abc") * 4)), "has the label 'a'"),
    "test label below 0": (lambda: task(test=(ROWS12, LABELS - 1)), "has the label -1, the data"),
    "test fractions": (
        lambda: tokens(4).tested_on((ROWS12, LABELS)), "inputs of the data are whole numbers",
    ),
    "test without y": (lambda: task(test=ROWS12), "y is missing: pass X and y of the test set"),
    "test lengths": (lambda: task(test=(ROWS12, LABELS[:3])), "the test set: X has 12 rows but"),
    "test empty": (lambda: task(test=(ROWS12[:0], LABELS[:0])), "test set has no rows"),
    "test NaN": (lambda: task(test=(changed(ROWS12, np.nan), LABELS)), "test set has nan in row"),
    "test share": (lambda: task(test=0.2), "test must be a pair"),
    "test file": (lambda: simulate(test="test.csv"), "test must be a pair"),
    # Options of a simulation.
    "epochs and K": (lambda: simulate(epochs=1), "epochs and K"),
    "no epochs": (lambda: simulate(K=None, epochs=0), "epochs must be a whole number"),
    "back end unknown": (lambda: simulate(backend="vmap"), "unknown back end 'vmap'"),
    "back end of a line": (lambda: simulate(least_squares(), backend="loop"), "for networks"),
    "loop compiled": (lambda: simulate(backend="loop", compile=True), "compile=True needs"),
    "device unknown": (lambda: simulate(device="gpu"), "one of PyTorch's, .* got 'gpu'"),
    "device meta": (lambda: simulate(device="meta"), "device='meta' holds no numbers"),
    "precision unknown": (lambda: simulate(precision="float16"), "unknown precision 'float16'"),
    "bfloat16 of a line": (lambda: simulate(least_squares(), precision="bfloat16"), "networks"),
    "no batch": (lambda: simulate(batch=0), "batch must be a whole number"),
    "FedAc without mu": (lambda: simulate(method="fedac-i"), "mu"),
    "optimum": (lambda: fedac.optimum(task()), "Network has no hessian_product"),
    "fast engine": (lambda: simulate(engine="fast"), "needs a linear model"),
    "reference engine": (lambda: simulate(norm(), engine="reference"), "use engine='network'"),
    "network engine of a line": (lambda: simulate(least_squares(), engine="network"), "Network"),
    "clients": (lambda: simulate(clients=[0, 1, 2]), "clients hold 3 rows, .* has 12"),
    "start": (lambda: simulate(start=[0.0, 1.0]), "start must be 15 numbers"),
    "module as start": (lambda: simulate(start=linear()), "start must be numbers"),
}  # fmt: skip
if not torch.cuda.is_available():
    BAD["no device"] = (lambda: simulate(device="cuda"), "device='cuda' cannot be used")


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_gets_one_clear_line(mistake):
    act, line = BAD[mistake]
    with pytest.raises(InputError, match=line) as caught:
        act()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_batches_larger_than_a_client_are_fine():
    assert simulate(batch=100).runs[0].status == "ok"
    result = simulate(batch=100, K=None, epochs=1)
    assert result.schedule.K == 1
