# SPDX-License-Identifier: Apache-2.0
"""Networks with deadlines, availability and asynchronous rounds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedac
from fedac import Link
from fedac.errors import InputError
from fedac.simulation.engines.network import checkpoint, engine
from fedac.simulation.simulator import SimulationInterrupted

SIZES = (2, 3, 3, 4, 5, 10, 14, 20)  # rows of the clients
OWNERS = np.repeat(np.arange(8), SIZES)
ROWS = [np.flatnonzero(m == OWNERS) for m in range(8)]
SPEEDS = [1.0, 2.0, 3.5, 1.25, 6.0, 0.75, 2.5, 0.5]
ETA, MU, SEED, K = 0.2, 0.3, 5, 3
LINK = Link(latency=0.25, gradient=1.0, speeds=SPEEDS)
METHODS = ["fedavg", "fedac-i", "scaffold", "fedavg+nesterov(0.7,0.9)", "mimelite(0.9)", "fedexp",
           "fedcm(0.3)"]  # fmt: skip
MODES = {
    "buffer(1)": {"mode": "buffer(1)"},
    "buffer(3)": {"mode": "buffer(3)", "participation": 5},
    "deadline": {"mode": "deadline(7s)", "oversample": 1.5, "participation": 4},
    "availability": {"availability": "share(0.6, 20s)", "participation": 3},
    "buffer, availability": {"mode": "buffer(2)", "availability": "share(0.7, 30s)"},
    "until": {"mode": "until(8s)"},
}
both_backends = pytest.mark.parametrize("backend", ["loop", "batched"])
both_weightings = pytest.mark.parametrize("weighting", ["examples", "uniform"])
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors are no work for several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((61, 4))
    return torch.tensor(X), torch.tensor(rng.integers(0, 3, 61))


def make_module(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), *middle, nn.Linear(5, 3)).double()


X, Y = make_data()
MLP = make_module(nn.Tanh())
START = parameters_to_vector(MLP.parameters()).detach().clone()


def make_task(module: nn.Module = MLP, **options: Any) -> fedac.Network:
    return fedac.Network(module, X, Y, **options)


def run(methods: Any, task: Any = None, **options: Any) -> fedac.Result:
    usual = {
        "clients": OWNERS, "K": K, "rounds": 12, "batch": "full", "eta": ETA, "mu": MU,
        "seed": SEED, "precision": "float64", "backend": "batched", "threads": 1, "link": LINK,
    }  # fmt: skip
    return fedac.simulate(task or make_task(), methods, **(usual | options))


def reference(methods: Any, task: Any = None, **options: Any) -> fedac.Result:
    return run(methods, task, **(options | {"engine": "reference", "backend": None}))


def assert_same(one: fedac.Result, other: fedac.Result, tolerance: float = 0.0) -> None:
    assert len(one.runs) == len(other.runs)
    for mine, theirs in zip(one.runs, other.runs, strict=True):
        assert (mine.algorithm, mine.status) == (theirs.algorithm, theirs.status)
        np.testing.assert_allclose(theirs.w, mine.w, rtol=0, atol=tolerance)
        np.testing.assert_allclose(theirs.loss, mine.loss, rtol=tolerance, atol=tolerance)


# Against the reference engine.


def as_softmax(w: np.ndarray) -> np.ndarray:
    """Return nn.Linear's weight (classes, columns) in the order of SoftmaxRegression."""
    return w.reshape(3, 4).T.ravel()


@both_backends
@both_weightings
@every_mode
def test_a_linear_layer_is_softmax_regression(mode, weighting, backend) -> None:
    layer = nn.Linear(4, 3, bias=False).double()
    F = fedac.SoftmaxRegression(X.numpy(), Y.numpy(), l2=0.1)
    options = {"weighting": weighting, **mode}
    ours = run(METHODS, make_task(layer, l2=0.1), backend=backend, **options)
    start = as_softmax(layer.weight.detach().numpy())
    theirs = reference(METHODS, F, start=start, **options)
    assert ours.engine == "network"
    for mine, other in zip(ours.runs, theirs.runs, strict=True):
        np.testing.assert_allclose(as_softmax(mine.w), other.w, rtol=0, atol=1e-9)
        np.testing.assert_allclose(mine.loss, other.loss, rtol=1e-9)
        np.testing.assert_array_equal(mine.timeline.seconds, other.timeline.seconds)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 2},
        {"batch": 2, "wire": "int8"},
        {"batch": 4, "K": None, "epochs": 1},
        {"batch": 2, "K": [1, 2, 3, 4, 5, 1, 2, 3]},
        {"batch": 1, "eta": fedac.Decay(0.3, "1/sqrt(r)")},
        {"batch": 3, "clients": None, "M": 8},
    ],
    ids=["draws", "int8", "epochs", "steps", "decay", "workers"],
)
@every_mode
def test_all_draws_are_those_of_the_reference_engine(mode, options) -> None:
    if "until" in mode.get("mode", "") and isinstance(options.get("K", 1), list | None):
        pytest.skip("until(8s) decides on the steps")
    methods = ["fedavg", "scaffold", "fedac-i+cv+nesterov(1,0.3)", "mb-sgd"]
    ours, theirs = (one(methods, **options, **mode) for one in (run, reference))
    assert_same(ours, theirs, 1e-9)
    assert ours.gradient_queries == theirs.gradient_queries


# Against an event loop in plain PyTorch.


class Plain:
    """FedAvg and SCAFFOLD with stale clients, on a module with buffers."""

    def __init__(self, module: nn.Module, method: str, p: np.ndarray) -> None:
        self.module, self.method, self.p = module, method, p
        self.w = parameters_to_vector(module.parameters()).detach().clone()
        self.buffers = [each.double().clone() for each in module.buffers()]
        self.c, self.own = 0 * self.w, [0 * self.w] * len(p)

    def work(self, m: int, sent: tuple[Any, ...]) -> tuple[Any, ...]:
        w, buffers, c = sent
        for mine, value in zip(self.module.buffers(), buffers, strict=True):
            mine.copy_(value if mine.is_floating_point() else value.round())
        x, total = w, 0 * w
        for _ in range(K):
            vector_to_parameters(x, self.module.parameters())
            loss = functional.cross_entropy(self.module(X[ROWS[m]]), Y[ROWS[m]])
            g = parameters_to_vector(torch.autograd.grad(loss, [*self.module.parameters()]))
            total = total + g
            x = x - ETA * (g - self.own[m] + c if self.method == "scaffold" else g)
        change = total / K - self.own[m]
        self.own[m] = total / K
        return x - w, [each.double().clone() for each in self.module.buffers()], change

    def step(self, arrived: list[tuple[int, tuple[Any, ...], int]]) -> None:
        """Take a step of the server with messages (client, what it sent, staleness)."""
        total = sum(self.p[m] for m, _, _ in arrived)
        self.buffers = [0 * each for each in self.buffers]
        for m, (move, buffers, change), staleness in arrived:
            self.w = self.w + self.p[m] / total * (1 + staleness) ** -0.5 * move
            self.c = self.c + self.p[m] * change
            pairs = zip(self.buffers, buffers, strict=True)
            self.buffers = [mean + self.p[m] / total * each for mean, each in pairs]


def play_buffer(plain: Plain, Z: int, places: int, frame: Any) -> None:
    """Play 12 server steps, event by event; chance is taken from the works in `frame`."""
    idle, busy, buffer, version, now = set(range(8)), [], [], 0, 0.0
    while version < 12:
        started = frame.loc[np.isclose(frame["begun"], now, atol=1e-9), "client"].tolist()
        assert {*started} <= idle
        assert len(busy) + len(started) == places
        for m in started:
            idle.remove(m)
            sent = (plain.w, plain.buffers, plain.c)
            heapq.heappush(busy, (now + 0.25 + K * SPEEDS[m], m, version, sent))
        now = busy[0][0]
        while busy and busy[0][0] == now and version < 12:
            _, m, begun, sent = heapq.heappop(busy)
            idle.add(m)
            buffer.append((m, plain.work(m, sent), begun))
            if len(buffer) == Z:
                plain.step([(m, what, version - v) for m, what, v in buffer])
                version, buffer = version + 1, []


@both_backends
@both_weightings
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize(("Z", "places"), [(1, 8), (3, 5), (4, 4)])
def test_an_mlp_equals_a_plain_event_loop(Z, places, method, weighting, backend) -> None:
    options = {"mode": f"buffer({Z})", "participation": places, "weighting": weighting}
    result = run(method, backend=backend, **options)
    p = np.array(SIZES) / 61 if weighting == "examples" else np.full(8, 1 / 8)
    plain = Plain(make_module(nn.Tanh()), method, p)
    play_buffer(plain, Z, places, result.timeline)
    np.testing.assert_allclose(result.best.w, plain.w, rtol=0, atol=1e-9)
    assert np.abs(result.best.w - START.numpy()).max() > 0.05  # it went somewhere
    if Z > 1:
        assert result.timeline.duplicated(["client", "update"]).any()  # a client twice in a step


@both_backends
def test_averaged_buffers_come_with_their_version_and_count_alike(backend) -> None:
    module = make_module(nn.BatchNorm1d(5), nn.Tanh())
    result = run("fedavg", make_task(module), mode="buffer(3)", participation=5, backend=backend)
    plain = Plain(make_module(nn.BatchNorm1d(5), nn.Tanh()), "fedavg", np.array(SIZES) / 61)
    play_buffer(plain, 3, 5, result.timeline)
    np.testing.assert_allclose(result.best.w, plain.w, rtol=0, atol=1e-9)
    expected = np.concatenate([each.reshape(-1).numpy() for each in plain.buffers])
    np.testing.assert_allclose(result.best.buffers, expected, rtol=0, atol=1e-9)


# What must not matter, and what must stay.


@both_backends
@pytest.mark.parametrize("mode", ["buffer(8)", "deadline(60s)"])
def test_clients_of_one_speed_are_synchronous_to_the_last_bit(mode, backend) -> None:
    task = make_task(make_module(nn.Tanh(), nn.BatchNorm1d(5), nn.Dropout(0.2)))
    options = {"batch": 2, "wire": "int8", "rounds": 5, "precision": "float32", "backend": backend}
    methods = ["fedac-i+cv+nesterov(1,0.3)", "mimelite(0.9)", "fedexp", "adamw+average"]
    usual = run(methods, task, link=None, **options)
    found = run(methods, task, link=Link(gradient=1.0), mode=mode, **options)
    assert_same(usual, found)
    for one, other in zip(usual.runs, found.runs, strict=True):
        np.testing.assert_array_equal(one.buffers, other.buffers)


@pytest.mark.parametrize(
    ("mode", "buffers"), [*((mode, "mean") for mode in MODES), ("buffer(3)", "local")]
)
def test_chunks_and_back_ends_do_not_matter(monkeypatch, mode, buffers) -> None:
    module = make_module(nn.Tanh(), nn.BatchNorm1d(5), nn.Dropout(0.2))
    options = {"task": make_task(module, buffers=buffers), "batch": 4, "rounds": 6, **MODES[mode]}
    methods = ["fedavg", "mimelite(0.9)", "fedexp", "adamw", "fedac-i+cv+nesterov(1,0.3)"]
    whole = run(methods, **options)
    assert_same(whole, run(methods, **options))  # dropout, too, is reproducible
    assert_same(whole, run(methods, backend="loop", **options), 1e-9)
    monkeypatch.setattr(engine, "CHUNK_BYTES", 1)  # one client at a time
    assert_same(whole, run(methods, **options), 1e-9)


def test_nobody_in_time_leaves_the_state_and_passes_the_time() -> None:
    result = run(["fedac-i", "mb-sgd"], mode="deadline(500ms)", rounds=3)
    for one in result.runs:
        assert (one.w == START.numpy()).all()
        assert one.timeline.seconds.tolist() == [0, 0.5, 1, 1.5]
        assert (one.loss == one.loss[0]).all()
        assert len(one.loss) == 4


def test_a_diverging_lane_does_not_disturb_stale_ones() -> None:
    options = {"task": make_task(l2=0.1), "mode": "buffer(2)", "participation": 5}
    (good,) = run("scaffold", **options).runs
    both = run("scaffold", eta=[1e9, ETA], **options)
    assert [one.status for one in both.runs] == ["diverged", "ok"]
    np.testing.assert_allclose(both.runs[1].w, good.w, rtol=0, atol=1e-12)


# Checkpoints.


@pytest.mark.parametrize("stop", [(0, 9), (3, 24)], ids=str)
@every_mode
def test_a_stopped_simulation_continues_from_its_checkpoint(
    tmp_path, monkeypatch, mode, stop
) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    monkeypatch.setattr(engine, "CHUNK_BYTES", 40_000)  # several chunks
    module = make_module(nn.Tanh(), nn.BatchNorm1d(5), nn.Dropout(0.2))
    methods = ["fedavg", "fedavg+nesterov(1,0.3)", "scaffold"]  # the last sends more bytes
    options = {
        "task": make_task(module, l2=0.1), "batch": 4, "record_every": 3, "link": LINK,
        "eta": {"fedavg": [0.05, 1e9], methods[1]: [0.05], "scaffold": [0.05]}, **mode,
    }  # fmt: skip
    whole = run(methods, **options)
    seen = []

    def look(record: Any) -> None:
        seen.append((record.run, record.step))
        if seen[-1] == stop:
            raise KeyboardInterrupt

    file = tmp_path / "run.ckpt"
    with pytest.raises(SimulationInterrupted):
        run(methods, checkpoint=file, callbacks=[look], **options)
    with np.load(tmp_path / ("run.ckpt.1" if stop[0] == 3 else "run.ckpt")) as stored:
        versions = [name for name in stored.files if name.startswith("sequences/0/0/")]
        assert len(versions) <= 8  # no more than there are clients at work
        assert (len(versions) > 1) == (mode.get("mode", "").startswith("buffer"))
    later = []
    continued = run(
        methods, checkpoint=file, **options,
        callbacks=[lambda record: later.append((record.run, record.step))],
    )  # fmt: skip
    assert_same(whole, continued)
    assert [one.status for one in whole.runs] == ["ok", "diverged", "ok", "ok"]
    for mine, other in zip(whole.runs, continued.runs, strict=True):
        np.testing.assert_array_equal(mine.steps, other.steps)
        np.testing.assert_array_equal(mine.buffers, other.buffers)
    assert not {*seen} & {*later}
    assert_same(whole, run(methods, checkpoint=file, on_progress=pytest.fail, **options))


def test_a_checkpoint_is_for_one_timeline(tmp_path) -> None:
    file = tmp_path / "run.ckpt"
    given = {"mode": "deadline(7s)", "oversample": 1.5, "participation": 4, "checkpoint": file}
    run("fedavg", **given)
    faster = Link(latency=0.25, gradient=1.0, speeds=[*SPEEDS[:-1], 0.4999999])
    rounds = {"mode": "rounds", "oversample": 1.0}
    for change in (rounds, {"mode": "deadline(8s)"}, {"oversample": 2.0}, {"link": faster},
                   {"availability": "share(0.9)"}):  # fmt: skip
        with pytest.raises(InputError, match="belongs to another simulation: use another file"):
            run("fedavg", **(given | change))
