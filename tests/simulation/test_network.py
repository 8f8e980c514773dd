# SPDX-License-Identifier: Apache-2.0
"""Networks: every rule against loops typed from the papers, and everything that must not matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedac
from fedac.algorithms import get
from fedac.errors import InputError, LargeMemoryWarning
from fedac.federation.sampling import epoch_order, participants
from fedac.simulation.engines.network import checkpoint, engine, memory
from fedac.simulation.simulator import SimulationInterrupted

SIZES = (1, 2, 3, 5, 20, 30)  # rows of the clients
OWNERS = np.repeat(np.arange(6), SIZES)
ROWS = [np.flatnonzero(m == OWNERS) for m in range(6)]
ETA, MU, SEED = 0.2, 0.3, 5
both_backends = pytest.mark.parametrize("backend", ["loop", "batched"])
both_weightings = pytest.mark.parametrize("weighting", ["examples", "uniform"])


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


def make_mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


X, Y = make_data()
MLP = make_mlp()
START = parameters_to_vector(MLP.parameters()).detach().clone()


# The plain side: nothing of fedac but the draws.


class Client(NamedTuple):
    m: int
    p: float  # its weight among those present
    batches: list[np.ndarray]  # the rows of every local step


class Round(NamedTuple):
    clients: list[Client]
    share: float  # the total weight of those present, if everyone together weighs 1


def gradient(w: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    vector_to_parameters(w, MLP.parameters())
    loss = functional.cross_entropy(MLP(X[rows]), Y[rows])
    return parameters_to_vector(torch.autograd.grad(loss, list(MLP.parameters())))


def make_rounds(weighting: str, batches_of: Callable, count: int, rounds: int = 4) -> list[Round]:
    p = np.array(SIZES) / 61 if weighting == "examples" else np.full(6, 1 / 6)
    found = []
    for r in range(rounds):
        present = participants(SEED, r, 6, count)
        share = sum(p[m] for m in present)
        found.append(Round([Client(m, p[m] / share, batches_of(m, r)) for m in present], share))
    return found


def local_sgd(w: torch.Tensor, this: Round, eta: float = ETA) -> torch.Tensor:
    """Return the mean of the clients' models after local steps from w."""
    mean = torch.zeros_like(w)
    for _, p, batches in this.clients:
        x = w
        for rows in batches:
            x = x - eta * gradient(x, rows)
        mean = mean + p * x
    return mean


def plain_fedavg(rounds: list[Round], K: int) -> torch.Tensor:
    w = START
    for this in rounds:
        w = local_sgd(w, this)
    return w


def plain_scaffold(rounds: list[Round], K: int) -> torch.Tensor:
    w, c, own = START, 0 * START, dict.fromkeys(range(6), 0 * START)
    for this in rounds:
        mean, change = torch.zeros_like(w), torch.zeros_like(w)
        for m, p, batches in this.clients:
            x = w
            for rows in batches:
                x = x - ETA * (gradient(x, rows) - own[m] + c)
            new = own[m] - c + (w - x) / (len(batches) * ETA)  # option II
            mean, change = mean + p * x, change + p * (new - own[m])
            own[m] = new
        w, c = mean, c + this.share * change
    return w


def coupled(K: int) -> tuple[float, float, float]:
    gamma = max(math.sqrt(ETA / (MU * K)), ETA)
    alpha = 1 / (gamma * MU)
    return gamma, alpha, alpha + 1


def plain_fedac(rounds: list[Round], K: int) -> torch.Tensor:
    gamma, alpha, beta = coupled(K)
    w = w_ag = START
    for this in rounds:
        mean, mean_ag = torch.zeros_like(w), torch.zeros_like(w)
        for _, p, batches in this.clients:
            x, x_ag = w, w_ag
            for rows in batches:
                x_md = x / beta + (1 - 1 / beta) * x_ag
                g = gradient(x_md, rows)
                x_ag = x_md - ETA * g
                x = (1 - 1 / alpha) * x + x_md / alpha - gamma * g
            mean, mean_ag = mean + p * x, mean_ag + p * x_ag
        w, w_ag = mean, mean_ag
    return w_ag


def plain_fedac_with_all(rounds: list[Round], K: int) -> torch.Tensor:
    """Control variates and Nesterov(1, 0.3) on the server, which does not apply to c."""
    gamma, alpha, beta = coupled(K)
    zero = 0 * START
    w, w_ag, u, u_ag, c, own = START, START, zero, zero, zero, dict.fromkeys(range(6), zero)
    for this in rounds:
        mean, mean_ag, change = zero, zero, zero
        for m, p, batches in this.clients:
            x, x_ag, total = w, w_ag, zero
            for rows in batches:
                x_md = x / beta + (1 - 1 / beta) * x_ag
                g = gradient(x_md, rows)
                total = total + g
                corrected = g - own[m] + c
                x_ag = x_md - ETA * corrected
                x = (1 - 1 / alpha) * x + x_md / alpha - gamma * corrected
            new = total / len(batches)
            mean, mean_ag = mean + p * x, mean_ag + p * x_ag
            change, own[m] = change + p * (new - own[m]), new
        delta, delta_ag = w - mean, w_ag - mean_ag
        u, u_ag = 0.3 * u + delta, 0.3 * u_ag + delta_ag
        w, w_ag = w - (0.3 * u + delta), w_ag - (0.3 * u_ag + delta_ag)
        c = c + this.share * change
    return w_ag


def plain_fedadam(rounds: list[Round], K: int) -> torch.Tensor:
    w, m, v = START, 0 * START, 0 * START + 1e-6
    for this in rounds:
        delta = local_sgd(w, this) - w
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        w = w + 0.1 * m / (v.sqrt() + 1e-3)
    return w


def plain_minibatch(rounds: list[Round], K: int) -> torch.Tensor:
    w = START
    for this in rounds:
        g = torch.zeros_like(w)
        for _, p, batches in this.clients:
            for rows in batches:
                g = g + p * gradient(w, rows) / len(batches)
        w = w - ETA * g
    return w


def plain_diloco(rounds: list[Round], K: int, state: str = "local") -> torch.Tensor:
    """PyTorch's AdamW on every client, and Nesterov on the server.

    The state of AdamW stays on the client, or is reset or averaged after a round; averages do not
    include the number of steps.
    """
    w, u = START, 0 * START
    clients = [[p.detach().clone().requires_grad_() for p in MLP.parameters()] for _ in range(6)]
    inside = [torch.optim.AdamW(each, lr=ETA) for each in clients]
    moments = {name: [torch.zeros_like(p) for p in clients[0]] for name in MOMENTS}
    for this in rounds:
        mean = torch.zeros_like(w)
        means = {name: [0 * each for each in moments[name]] for name in MOMENTS}
        for m, p, batches in this.clients:
            vector_to_parameters(w.clone(), clients[m])  # which become views of it
            if state == "reset":
                inside[m] = torch.optim.AdamW(clients[m], lr=ETA)
            for name in MOMENTS if state == "average" else ():
                for one, held in zip(clients[m], moments[name], strict=True):
                    of_one = inside[m].state[one]
                    of_one.setdefault("step", torch.tensor(0.0))
                    of_one[name] = held.clone()
            for rows in batches:
                vector = parameters_to_vector(clients[m]).detach()
                found = torch.split(gradient(vector, rows), [one.numel() for one in clients[m]])
                for one, g in zip(clients[m], found, strict=True):
                    one.grad = g.view(one.shape)
                inside[m].step()
            mean = mean + p * parameters_to_vector(clients[m]).detach()
            for name in MOMENTS:
                for total, one in zip(means[name], clients[m], strict=True):
                    total += p * inside[m].state[one][name]
        moments = means
        delta = w - mean
        u = 0.9 * u + delta
        w = w - 0.7 * (0.9 * u + delta)
    return w


def plain_feddyn(rounds: list[Round], K: int, a: float = 0.3) -> torch.Tensor:
    """As in the paper: clients keep gradients of their last points, the server their mean h."""
    w, h, own = START, 0 * START, dict.fromkeys(range(6), 0 * START)
    for this in rounds:
        mean, moved = torch.zeros_like(w), torch.zeros_like(w)
        for m, p, batches in this.clients:
            x = w
            for rows in batches:
                x = x - ETA * (gradient(x, rows) - own[m] + a * (x - w))
            own[m] = own[m] - a * (x - w)
            mean, moved = mean + p * x, moved + p * (x - w)
        h = h - a * this.share * moved
        w = mean - h / a
    return w


def plain_fedcm(
    rounds: list[Round], K: int, a: float = 0.3, variates: bool = False, gamma: float = 1.0
) -> torch.Tensor:
    """FedCM and, with control variates, SCAFFOLD-M: D is the mean move of a step, over -eta."""
    zero = 0 * START
    w, D, c, own = START, zero, zero, dict.fromkeys(range(6), zero)
    for this in rounds:
        moved, change = zero, zero
        for m, p, batches in this.clients:
            x, total = w, zero
            for rows in batches:
                g = gradient(x, rows)
                total = total + g
                x = x - ETA * (a * (g - own[m] + c if variates else g) + (1 - a) * D)
            new = total / len(batches)
            moved, change = moved + p * (w - x), change + p * (new - own[m])
            own[m] = new
        steps = sum(p * len(batches) for _, p, batches in this.clients)
        D, w, c = moved / (steps * ETA), w - gamma * moved, c + this.share * change
    return w


def plain_fednova(rounds: list[Round], K: int) -> torch.Tensor:
    w = START
    for this in rounds:
        normalized, steps = torch.zeros_like(w), 0.0
        for _, p, batches in this.clients:
            x = w
            for rows in batches:
                x = x - ETA * gradient(x, rows)
            normalized, steps = normalized + p * (w - x) / len(batches), steps + p * len(batches)
        w = w - steps * normalized
    return w


def plain_fedexp(rounds: list[Round], K: int, eps: float = 1e-3) -> torch.Tensor:
    w = START
    for this in rounds:
        mean, squares = torch.zeros_like(w), 0.0
        for _, p, batches in this.clients:
            x = w
            for rows in batches:
                x = x - ETA * gradient(x, rows)
            mean, squares = mean + p * (w - x), squares + p * float((w - x) @ (w - x))
        w = w - max(1.0, squares / (2 * (float(mean @ mean) + eps))) * mean
    return w


def plain_fedac_exp(rounds: list[Round], K: int, eps: float = 1e-6) -> torch.Tensor:
    """One factor for both sequences, with the squares of both moves."""
    gamma, alpha, beta = coupled(K)
    w = w_ag = START
    for this in rounds:
        mean, mean_ag, squares = torch.zeros_like(w), torch.zeros_like(w), 0.0
        for _, p, batches in this.clients:
            x, x_ag = w, w_ag
            for rows in batches:
                x_md = x / beta + (1 - 1 / beta) * x_ag
                g = gradient(x_md, rows)
                x_ag = x_md - ETA * g
                x = (1 - 1 / alpha) * x + x_md / alpha - gamma * g
            mean, mean_ag = mean + p * (w - x), mean_ag + p * (w_ag - x_ag)
            squares += p * float((w - x) @ (w - x) + (w_ag - x_ag) @ (w_ag - x_ag))
        of_mean = float(mean @ mean + mean_ag @ mean_ag)
        factor = max(1.0, squares / (2 * (of_mean + eps)))
        w, w_ag = w - factor * mean, w_ag - factor * mean_ag
    return w_ag


def plain_mimelite(rounds: list[Round], K: int, beta: float = 0.9) -> torch.Tensor:
    w, u = START, 0 * START
    for this in rounds:
        mean, full = torch.zeros_like(w), torch.zeros_like(w)
        for m, p, batches in this.clients:
            x = w
            for rows in batches:
                x = x - ETA * ((1 - beta) * gradient(x, rows) + beta * u)
            mean, full = mean + p * x, full + p * gradient(w, ROWS[m])
        w, u = mean, (1 - beta) * full + beta * u
    return w


def plain_dualavg(rounds: list[Round], K: int, l1: float = 0.1) -> torch.Tensor:
    def primal(z: torch.Tensor, spent: float) -> torch.Tensor:
        return z.sign() * (z.abs() - l1 * spent).clamp(min=0)

    z, spent = START, 0.0
    for this in rounds:
        mean, steps = torch.zeros_like(z), 0.0
        for _, p, batches in this.clients:
            y = z
            for k, rows in enumerate(batches):
                y = y - ETA * gradient(primal(y, spent + k * ETA), rows)
            mean, steps = mean + p * y, steps + p * len(batches)
        z, spent = mean, spent + steps * ETA
    return primal(z, spent)


MOMENTS = ("exp_avg", "exp_avg_sq")  # PyTorch's names
# A new rule needs one line here, and its loop above.
PLAIN: dict[str, Callable[[list[Round], int], torch.Tensor]] = {
    "fedavg": plain_fedavg,
    "scaffold": plain_scaffold,
    "fedac-i": plain_fedac,
    "fedac-i+cv+nesterov(1,0.3)": plain_fedac_with_all,
    "fedadam": plain_fedadam,
    "mb-sgd": plain_minibatch,
    "adamw+nesterov(0.7,0.9)": plain_diloco,
    "adamw+reset+nesterov(0.7,0.9)": partial(plain_diloco, state="reset"),
    "adamw+average+nesterov(0.7,0.9)": partial(plain_diloco, state="average"),
    "feddyn(0.3)": plain_feddyn,
    "fedcm(0.3)": plain_fedcm,
    "fedcm(0.3)+step(1.5)": partial(plain_fedcm, gamma=1.5),
    "scaffold-m(0.3)": partial(plain_fedcm, variates=True),
    "fednova": plain_fednova,
    "fedexp": plain_fedexp,
    "fedac-i+exp(1e-6)": plain_fedac_exp,
    "mimelite(0.9)": plain_mimelite,
    "dualavg(0.1)": plain_dualavg,
}


def typed(name: str) -> str:
    """Return the name of a method as the table above has it."""
    return next(method for method in PLAIN if get(method).name == name)


@cache
def plain(method: str, weighting: str, *, epochs: bool) -> torch.Tensor:
    """Return the output of a plain loop, with full gradients or two epochs of batches of 8."""
    if epochs:
        K, rounds = mean_steps(weighting), make_rounds(weighting, epochs_of, count=4)
    else:
        K, rounds = 3, make_rounds(weighting, lambda m, r: [ROWS[m]] * 3, count=3)
    return PLAIN[method](rounds, K)


def epochs_of(m: int, r: int) -> list[np.ndarray]:
    found = []
    for epoch in (2 * r, 2 * r + 1):
        order = ROWS[m][epoch_order(SEED, m, epoch, SIZES[m])]
        found += [order[first : first + 8] for first in range(0, SIZES[m], 8)]
    return found


def mean_steps(weighting: str) -> int:
    p = np.array(SIZES) / 61 if weighting == "examples" else np.full(6, 1 / 6)
    return math.ceil(float(p @ [2, 2, 2, 2, 6, 8]))  # of two epochs of batches of 8


# Our side.


def make_task(module: nn.Module | None = None, **options) -> fedac.Network:
    return fedac.Network(make_mlp() if module is None else module, X, Y, **options)


def run(methods, task: fedac.Network | None = None, **options) -> fedac.Result:
    usual = {
        "clients": OWNERS, "K": 3, "rounds": 4, "batch": "full", "eta": ETA, "mu": MU,
        "seed": SEED, "precision": "float64", "backend": "batched", "threads": 1,
    }  # fmt: skip
    return fedac.simulate(task or make_task(), methods, **(usual | options))


def assert_same(one: fedac.Result, other: fedac.Result, tolerance: float = 0.0) -> None:
    assert len(one.runs) == len(other.runs)
    for mine, theirs in zip(one.runs, other.runs, strict=True):
        assert (mine.algorithm, mine.eta, mine.status) == (
            theirs.algorithm, theirs.eta, theirs.status,
        )  # fmt: skip
        np.testing.assert_allclose(theirs.w, mine.w, rtol=0, atol=tolerance)
        np.testing.assert_allclose(theirs.loss, mine.loss, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("engine", ["loop", "batched", "reference"])
@both_weightings
def test_every_rule_equals_a_plain_loop(weighting, engine):
    how = {"backend": engine}
    if engine == "reference":
        how = {"backend": None, "engine": engine}
    result = run(list(PLAIN), weighting=weighting, participation=0.5, **how)
    for ours in result.runs:
        theirs = plain(typed(ours.algorithm), weighting, epochs=False)
        np.testing.assert_allclose(ours.w, theirs, rtol=0, atol=1e-9, err_msg=ours.algorithm)
        assert np.abs(ours.w - START.numpy()).max() > 0.01  # it went somewhere


@pytest.mark.parametrize("engine", ["loop", "batched", "reference"])
@both_weightings
def test_epochs_equal_a_plain_loop(weighting, engine):
    how = {"backend": engine}
    if engine == "reference":
        how = {"backend": None, "engine": engine}
    options = {"K": None, "epochs": 2, "batch": 8, "participation": 4}
    result = run(list(PLAIN), weighting=weighting, **options, **how)
    assert mean_steps(weighting) == result.schedule.K
    for ours in result.runs:
        theirs = plain(typed(ours.algorithm), weighting, epochs=True)
        np.testing.assert_allclose(ours.w, theirs, rtol=0, atol=1e-9, err_msg=ours.algorithm)


@both_backends
@both_weightings
@pytest.mark.parametrize(
    ("method", "twin"),
    [
        ("fednova", "fedavg"),
        ("fedavg+exp(1e300)", "fedavg"),
        ("fedcm(1)", "fedavg"),
        ("mimelite(0)", "fedavg"),
        ("fedcm(1)+cv", "scaffold"),
        ("led", "scaffnew"),
    ],
)
def test_identities(method, twin, weighting, backend):
    participation = 1.0 if get(method).everybody else 0.5
    options = {"weighting": weighting, "backend": backend, "participation": participation}
    one, other = (run(name, batch=2, **options).runs[0].w for name in (method, twin))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def plain_scaffnew(rounds: list[Round], K: int) -> torch.Tensor:
    """Control variates h_m that move by (x - y_m)/(K eta), with the same K for all clients.

    With every client's own K_m the mean of h_m would not stay zero.
    """
    w, h, sent = START, dict.fromkeys(range(6), 0 * START), dict.fromkeys(range(6), START)
    for this in rounds:
        mean = torch.zeros_like(w)
        for m, p, batches in this.clients:
            h[m] = h[m] + (w - sent[m]) / (K * ETA)
            x = w
            for rows in batches:
                x = x - ETA * (gradient(x, rows) - h[m])
            mean, sent[m] = mean + p * x, x
        w = mean
    return w


@both_backends
@both_weightings
def test_scaffnew_divides_by_the_most_steps_of_any_client(weighting, backend):
    found = run(
        "scaffnew", K=None, epochs=2, batch=8, weighting=weighting, backend=backend
    ).runs[0].w  # fmt: skip
    rounds = make_rounds(weighting, epochs_of, count=6)
    np.testing.assert_allclose(found, plain_scaffnew(rounds, K=8), rtol=0, atol=1e-9)


def test_an_epoch_visits_every_row_once():
    result = run("fedavg", K=None, epochs=2, batch=8)
    for m, size in enumerate(SIZES):
        (batches,) = result.federation.batches(np.array([m]), next(iter(result.schedule)))
        assert len(batches) == 2 * math.ceil(size / 8)
        for epoch in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
            assert sorted(np.concatenate(epoch)) == ROWS[m].tolist()
    assert result.gradient_queries == 4 * 2 * 61


# Linear models: the reference engine computes their gradients by formulas.

EVERY_KIND = ["fedavg", "scaffold", "fedac-ii+cv", "fedyogi", "gpa(0.8,0.6)", "mb-ac-sgd"]


def as_softmax(w: np.ndarray) -> np.ndarray:
    """Return nn.Linear's weight (classes, columns) in the order of SoftmaxRegression."""
    return w.reshape(3, 4).T.ravel()


@both_backends
@pytest.mark.parametrize("batch", [1, 4, "full"])
def test_a_linear_layer_is_softmax_regression(backend, batch):
    layer = nn.Linear(4, 3, bias=False).double()
    task = make_task(layer, l2=0.1)
    F = fedac.SoftmaxRegression(X.numpy(), Y.numpy(), l2=0.1)
    options = {"batch": batch, "participation": 0.5, "eta": [0.2, 0.05]}
    ours = run(EVERY_KIND, task, backend=backend, **options)
    start = as_softmax(layer.weight.detach().numpy())
    theirs = run(EVERY_KIND, F, backend=None, engine="reference", start=start, **options)
    for mine, other in zip(ours.runs, theirs.runs, strict=True):
        np.testing.assert_allclose(as_softmax(mine.w), other.w, rtol=0, atol=1e-9)
        np.testing.assert_allclose(mine.loss, other.loss, rtol=1e-9)


@both_backends
def test_two_outputs_are_logistic_regression(backend):
    # Outputs 0 and w x: a module whose first output is fixed.
    class Logistic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((4,), 0.1, dtype=torch.float64))

        def forward(self, x):
            score = x @ self.w
            return torch.stack([torch.zeros_like(score), score], dim=1)

    labels = (Y > 0).long()
    task = fedac.Network(Logistic(), X, labels, l2=0.05)
    F = fedac.LogisticRegression(X.numpy(), 2.0 * labels.numpy() - 1, l2=0.05)
    options = {"batch": 2, "weighting": "uniform", "participation": 0.5}
    ours = run(EVERY_KIND, task, backend=backend, **options)
    theirs = run(EVERY_KIND, F, backend=None, engine="reference", start=[0.1] * 4, **options)
    assert_same(ours, theirs, 1e-9)


@pytest.mark.parametrize("wire", ["int8", "bfloat16"])
def test_rounded_messages_equal_the_reference_engine(wire):
    layer = nn.Linear(4, 3, bias=False).double()
    F = fedac.SoftmaxRegression(X.numpy(), Y.numpy(), l2=0.0)
    # The draws of int8 belong to places: put the classes in the order of the layer.
    methods = ["fedavg", "fedac-i+cv", "mb-sgd"]
    ours = run(methods, make_task(layer), wire=wire, batch=2)
    reference = run(methods, make_task(layer), wire=wire, batch=2, engine="reference", backend=None)
    assert_same(ours, reference, 1e-9)
    exact = run(methods, make_task(layer), batch=2)
    assert all(np.abs(a.w - b.w).max() > 1e-6 for a, b in zip(ours.runs, exact.runs, strict=True))
    assert ours.runs[0].bytes_up < exact.runs[0].bytes_up
    if wire == "bfloat16":  # rounds without draws, so also in another order
        start = as_softmax(layer.weight.detach().numpy())
        options = {"engine": "reference", "backend": None, "start": start, "mu": MU}
        theirs = run(methods, F, wire=wire, batch=2, **options)
        for mine, other in zip(ours.runs, theirs.runs, strict=True):
            np.testing.assert_allclose(as_softmax(mine.w), other.w, rtol=0, atol=1e-9)


# What must not matter.

SOME = ["fedavg", "scaffold", "fedac-i+cv+nesterov(1,0.3)", "fedadam", "mb-sgd"]
KINDS_OF_ROUNDS = {
    "draws": {"batch": 2},
    "full": {"batch": "full", "participation": 0.5},
    "epochs": {"K": None, "epochs": 1, "batch": 4},
}
kinds_of_rounds = pytest.mark.parametrize("options", KINDS_OF_ROUNDS.values(), ids=KINDS_OF_ROUNDS)


@both_backends
@kinds_of_rounds
def test_chunks_do_not_matter(monkeypatch, options, backend):
    whole = run(SOME, backend=backend, **options)
    monkeypatch.setattr(engine, "CHUNK_BYTES", 1)  # one client at a time
    alone = run(SOME, backend=backend, **options)
    assert_same(whole, alone, 1e-12)


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@kinds_of_rounds
def test_back_ends_agree(options, precision, tolerance):
    loop = run(SOME, backend="loop", precision=precision, **options)
    batched = run(SOME, backend="batched", precision=precision, **options)
    assert (loop.backend, batched.backend) == ("loop", "batched")
    assert_same(loop, batched, tolerance)


@pytest.mark.slow  # compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, in its compiler
@pytest.mark.parametrize(
    "options",
    [
        {"batch": 2, "eta": [0.2, 0.05]},
        {"task": "norm", "batch": 4, "clients": np.arange(61) % 6, "precision": "float32"},
        KINDS_OF_ROUNDS["epochs"],
    ],
    ids=["methods and lanes", "buffers and dropout", "unequal steps"],
)
def test_compiled_steps_agree_with_the_loop(options):
    options = dict(options)
    if options.pop("task", None):
        layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 3)
        norm = nn.Sequential(*layers).double()
        options["task"] = make_task(norm)
    methods = [*SOME, "momentum(0.9)"]
    loop = run(methods, backend="loop", **options)
    compiled = run(methods, backend=None, compile=True, **options)
    assert compiled.backend == "batched"
    assert_same(loop, compiled, 1e-12 if "precision" not in options else 1e-5)


class Stubborn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        torch._dynamo.graph_break()
        return self.layer(x)


@pytest.mark.slow  # imports the compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_that_cannot_be_compiled_is_one_line():
    task = fedac.Network(Stubborn(), X.float(), Y)
    with pytest.raises(InputError, match=r"cannot be compiled: .*; omit compile=True") as caught:
        run("fedavg", task, backend=None, compile=True, precision="float32")
    assert "\n" not in str(caught.value)


@both_backends
def test_a_run_repeats_to_the_last_bit(backend):
    options = {"precision": "float32", "backend": backend, "batch": 2}
    assert_same(run(SOME, **options), run(SOME, **options))
    other = run(SOME, **(options | {"seed": SEED + 1}))
    assert np.abs(other.runs[0].w - run(SOME, **options).runs[0].w).max() > 1e-3


@both_backends
def test_methods_and_step_sizes_together_equal_each_alone(backend):
    methods = [*SOME, "mimelite", "fedexp", "fedcm+cv"]
    norm = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    how = {"task": make_task(norm), "batch": 2, "clients": np.arange(61) % 6, "backend": backend}
    together = run(methods, eta=[0.2, 0.05], **how)
    alone = [run(name, eta=eta, **how).runs[0] for name in methods for eta in (0.2, 0.05)]
    for mine, theirs in zip(together.runs, alone, strict=True):
        assert (mine.algorithm, mine.eta) == (theirs.algorithm, theirs.eta)
        np.testing.assert_allclose(mine.w, theirs.w, rtol=0, atol=1e-12)


def test_the_faster_back_end_is_chosen_and_named():
    result = run("fedavg", backend=None)
    assert result.engine == "network"
    assert result.backend in ("loop", "batched")
    assert_same(result, run("fedavg", backend="loop"), 1e-12)


def test_workers_without_clients_draw_from_all_rows():
    layer = nn.Linear(4, 3, bias=False).double()
    F = fedac.SoftmaxRegression(X.numpy(), Y.numpy(), l2=0.0)
    options = {"clients": None, "M": 4, "batch": 3, "backend": None}
    ours = run("fedac-i", make_task(layer), **options)
    start = as_softmax(layer.weight.detach().numpy())
    theirs = run("fedac-i", F, engine="reference", start=start, **options)
    np.testing.assert_allclose(as_softmax(ours.runs[0].w), theirs.runs[0].w, rtol=0, atol=1e-9)


def test_a_decaying_step_size_equals_a_plain_loop():
    w = START
    for r, this in enumerate(make_rounds("examples", lambda m, r: [ROWS[m]] * 3, count=6)):
        w = local_sgd(w, this, eta=0.4 / math.sqrt(r + 1))
    result = run("fedavg", eta=[fedac.Decay(0.4, "1/sqrt(r)"), 0.4])
    np.testing.assert_allclose(result.runs[0].w, w, rtol=0, atol=1e-9)
    assert result.runs[0].decay == "1/sqrt(r)"
    for method in ("fedac-i+cv", "mb-ac-sgd"):  # the coupling follows the step size
        layer = nn.Linear(4, 3, bias=False).double()
        options = {"eta": fedac.Decay(0.4, "halve(2)"), "backend": None}
        ours, theirs = (
            run(method, make_task(layer), engine=engine, **options)
            for engine in ("network", "reference")
        )
        assert_same(ours, theirs, 1e-9)


@both_backends
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_diverging_lane_does_not_disturb_others(wire, backend):
    options = {"batch": 2, "backend": backend, "wire": wire, "precision": "float32", "rounds": 8}
    # Nothing bounds the growth of a regression that is linear in its parameters.
    task = fedac.Network(nn.Linear(4, 1), X, X.sum(1), loss="mse", buffers="local")
    together = run(["fedavg", "scaffold"], task, eta=[0.01, 1e4, 0.02], **options)
    calm = run(["fedavg", "scaffold"], task, eta=[0.01, 0.02], **options)
    good = [found for found in together.runs if found.eta < 1]
    for mine, theirs in zip(good, calm.runs, strict=True):
        assert mine.status == "ok"
        np.testing.assert_allclose(mine.w, theirs.w, rtol=0, atol=1e-6)
    wild = [found for found in together.runs if found.eta > 1]
    assert [found.status for found in wild] == ["diverged", "diverged"]
    assert all(np.isfinite(found.loss).all() for found in wild)


def test_callbacks_see_every_record():
    seen = []
    result = run(["fedavg", "fedac-i"], callbacks=[seen.append], record_every=3)
    assert [(one.algorithm, one.step) for one in seen] == [
        (name, step) for step in (0, 3, 6, 9, 12) for name in ("fedavg", "fedac-i")
    ]
    assert [one.loss for one in seen[::2]] == result.runs[0].loss.tolist()
    np.testing.assert_array_equal(seen[-1].w, result.runs[1].w)
    np.testing.assert_array_equal(seen[0].w, START)


def test_an_interrupted_simulation_keeps_its_results():
    def stop(record):
        if record.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(SimulationInterrupted) as caught:
        run("fedavg", callbacks=[stop], record_every=3)
    (kept,) = caught.value.result.runs
    assert kept.steps.tolist() == [0, 3, 6]
    np.testing.assert_array_equal(kept.loss, run("fedavg", record_every=3).runs[0].loss[:3])


def test_memories_may_be_in_a_file(monkeypatch):
    in_memory = run("scaffold", participation=0.5)
    monkeypatch.setattr(memory, "free_memory", lambda: 0.0)
    with pytest.warns(LargeMemoryWarning, match="temporary file"):
        in_file = run("scaffold", participation=0.5)
    assert_same(in_memory, in_file)


def test_the_loss_is_that_of_the_weighting():
    vector_to_parameters(START, MLP.parameters())
    losses = functional.cross_entropy(MLP(X), Y, reduction="none").detach().numpy()
    of_clients = [losses[rows].mean() for rows in ROWS]
    l2 = 0.05 * float(START @ START)
    for weighting, mean in (("examples", losses.mean()), ("uniform", np.mean(of_clients))):
        found = run("fedavg", make_task(l2=0.1), weighting=weighting).runs[0].loss[0]
        assert found == pytest.approx(mean + l2, rel=1e-12)


# Results.


def test_metrics_of_clients_equal_a_plain_computation():
    owners = np.arange(61) % 20  # the worst decile are two clients
    result = run("fedavg", clients=owners)
    vector_to_parameters(torch.tensor(result.runs[0].w), MLP.parameters())
    losses = functional.cross_entropy(MLP(X), Y, reduction="none").detach().numpy()
    means = sorted(losses[owners == m].mean() for m in range(20))
    metrics = result.runs[0].metrics
    assert metrics["client-loss-spread"][-1] == pytest.approx(np.std(means), rel=1e-9)
    assert metrics["client-loss-worst"][-1] == pytest.approx(np.mean(means[-2:]), rel=1e-9)


def test_metrics_of_classes_equal_plain_numpy():
    rng = np.random.default_rng(1)
    inputs, labels = rng.standard_normal((200, 4)), rng.integers(0, 8, 200)
    layer = nn.Linear(4, 8).double()
    task = fedac.Network(
        layer, X, Y, test=(inputs, labels), metrics=["accuracy", "top-5", "perplexity"]
    )
    metrics = run("fedavg", task).runs[0].metrics
    scores = inputs @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    of_labels = log_p[np.arange(200), labels]
    assert metrics["accuracy"][0] == (scores.argmax(1) == labels).mean()
    rank = (log_p > of_labels[:, None]).sum(1)
    assert metrics["top-5"][0] == (rank < 5).mean()
    assert metrics["perplexity"][0] == pytest.approx(np.exp(-of_labels.mean()), rel=1e-9)
    assert metrics["loss"][0] == pytest.approx(-of_labels.mean(), rel=1e-9)


def test_metrics_of_numbers_equal_plain_numpy():
    rng = np.random.default_rng(2)
    inputs, targets = rng.standard_normal((50, 4)), rng.integers(0, 9, 50)  # whole ones too
    layer = nn.Linear(4, 1).double()
    task = fedac.Network(layer, X, X.sum(1), loss="mse", test=(inputs, targets))
    metrics = run("fedavg", task).runs[0].metrics
    errors = inputs @ layer.weight.detach().numpy()[0] + layer.bias.item() - targets
    assert metrics["loss"][0] == pytest.approx((errors**2).mean(), rel=1e-9)
    assert metrics["mae"][0] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
    r2 = 1 - (errors**2).sum() / ((targets - targets.mean()) ** 2).sum()
    assert metrics["r2"][0] == pytest.approx(r2, rel=1e-9)


def test_metrics_of_pixels_take_classes_from_the_second_axis():
    rng = np.random.default_rng(3)
    images, labels = rng.standard_normal((20, 1, 6)), rng.integers(0, 3, (20, 6))
    module = nn.Conv1d(1, 3, 1).double()
    task = fedac.Network(module, images, labels, test=(images, labels))
    found = run("fedavg", task, clients=np.arange(20) % 5).runs[0].metrics["accuracy"][0]
    scores = module(torch.tensor(images)).detach().numpy()
    assert found == (scores.argmax(1) == labels).mean()


def test_own_metrics_and_test_rows_of_simulate():
    def largest(output, target):
        return float(output.abs().max())

    task = make_task(metrics={"largest": largest})
    found = run("fedavg", task, test=(X[:5], Y[:5])).runs[0].metrics["largest"]
    vector_to_parameters(START, MLP.parameters())
    assert found[0] == float(MLP(X[:5]).detach().abs().max())


@pytest.mark.parametrize("metrics", ["accuracy", {"largest": lambda output, target: 1.0}])
def test_metrics_need_test_rows(metrics):
    name = metrics if isinstance(metrics, str) else "largest"
    with pytest.raises(InputError, match=rf"'{name}' needs a test set: add test=\(X, y\)"):
        run("fedavg", make_task(metrics=metrics))


def test_the_trained_module_gives_the_recorded_metrics():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3))
    result = run(["fedavg", "fedac-i"], make_task(module, test=(X, Y)), clients=4, batch=4)
    for found in result.runs:
        trained = result.module(found)
        assert isinstance(trained[2], nn.Dropout)
        assert not trained.training
        trained.double()
        accuracy = float((trained(X).argmax(1) == Y).double().mean())
        loss = float(functional.cross_entropy(trained(X), Y).detach())
        assert accuracy == found.metrics["accuracy"][-1]
        assert loss == pytest.approx(found.metrics["loss"][-1], rel=1e-6)
    linear = fedac.simulate(
        fedac.LeastSquares(X.numpy(), X.numpy().sum(1)), "fedavg", M=2, K=1, T=1, eta=0.1,
        engine="reference",
    )  # fmt: skip
    with pytest.raises(InputError, match="network"):
        linear.module(linear.runs[0])


@both_backends
def test_batches_are_counted_as_whole_numbers(backend):
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    result = run(
        "fedavg", make_task(module), clients=np.arange(61) % 7, K=5, rounds=8, backend=backend,
        precision="float32",
    )  # fmt: skip
    assert result.module(result.best)[1].num_batches_tracked == 40  # means of 5, not below 5
    with pytest.raises(InputError, match="module needs one of the runs"):
        result.module(None)


def test_averaged_buffers_travel_and_own_buffers_do_not():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    sent = {}
    for buffers in ("mean", "local"):
        result = run("scaffold", make_task(module, buffers=buffers), clients=4, batch=4)
        sent[buffers] = (result.runs[0].bytes_up, result.runs[0].bytes_down)
    parameters = 4 * 6 + 6 + 2 * 6 + 6 * 3 + 3
    assert sent["local"] == (2 * 4 * parameters, 2 * 4 * parameters)
    # Mean, variance and the number of batches.
    assert sent["mean"] == tuple(sent["local"][0] + 4 * (6 + 6 + 1) for _ in range(2))


def test_a_result_has_a_table_and_a_page():
    result = run("fedavg", make_task(test=(X, Y)))
    frame = result.to_frame()
    assert frame["loss"].tolist() == result.runs[0].loss.tolist()
    assert frame["test_accuracy"].tolist() == result.runs[0].metrics["accuracy"].tolist()
    assert "network engine" in result._repr_html_()


# Checkpoints.


@pytest.mark.parametrize("stop", [3, 9])
def test_a_stopped_simulation_continues_from_its_checkpoint(tmp_path, monkeypatch, stop):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    task = fedac.Network(module, X, X.sum(1), loss="mse", buffers="local", test=(X, X.sum(1)))
    methods = ["fedavg", "fedac-i+cv+nesterov(1,0.3)", "adamw"]
    options = {
        "eta": {"fedavg": [0.05, 1e9], methods[1]: [0.05], "adamw": [0.01, 0.05]},
        "participation": 0.5, "batch": 4, "record_every": 3, "rounds": 6, "weighting": "uniform",
    }  # fmt: skip
    whole = run(methods, task, **options)
    seen = []

    def look(record):
        seen.append((record.run, record.step))
        if record.step == stop and record.run == len(whole.runs) - 1:
            raise KeyboardInterrupt

    file = tmp_path / "run.ckpt"
    with pytest.raises(SimulationInterrupted):
        run(methods, task, checkpoint=file, callbacks=[look], **options)
    later = []
    continued = run(
        methods, task, checkpoint=file, backend=None,
        callbacks=[lambda record: later.append((record.run, record.step))], **options,
    )  # fmt: skip
    assert continued.backend == "batched"  # as before the stop
    assert_same(whole, continued)
    assert [found.status for found in whole.runs] == ["ok", "diverged", "ok", "ok", "ok"]
    for mine, other in zip(whole.runs, continued.runs, strict=True):
        np.testing.assert_array_equal(mine.steps, other.steps)
        np.testing.assert_array_equal(mine.buffers, other.buffers)
        for name, values in mine.metrics.items():
            np.testing.assert_array_equal(values, other.metrics[name])
    assert not set(seen) & set(later)
    assert max(step for _, step in later) == 18
    # Once it has ended, nothing is left to do.
    again = run(methods, task, checkpoint=file, on_progress=pytest.fail, **options)
    assert_same(whole, again)


def test_a_checkpoint_is_for_one_simulation(tmp_path):
    file = tmp_path / "run.ckpt"
    run("fedavg", checkpoint=file)
    for change in ({"eta": 0.1}, {"seed": 1}, {"K": 2}, {"clients": OWNERS[::-1].copy()}):
        with pytest.raises(InputError, match="belongs to another simulation: use another file"):
            run("fedavg", checkpoint=file, **change)
    for changed in (make_task(test=(X, Y)), make_task(test=(X, Y), metrics=["top-5"])):
        with pytest.raises(InputError, match="belongs to another simulation"):
            run("fedavg", changed, checkpoint=file)
    with pytest.raises(InputError, match=r"folder of the checkpoint .* does not exist"):
        run("fedavg", checkpoint=tmp_path / "nowhere" / "run.ckpt")
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(InputError, match="it is damaged, or not a checkpoint of"):
        run("fedavg", checkpoint=file)
    F = fedac.SoftmaxRegression(X.numpy(), Y.numpy(), l2=0.1)
    with pytest.raises(InputError, match="checkpoint is for networks"):
        run("fedavg", F, backend=None, checkpoint=file)
