# SPDX-License-Identifier: Apache-2.0
"""Decoupled weight decay: compared with loops written by hand, one per method."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedac.algorithms import FEDAC_I, get
from fedac.errors import InputError
from fedac.torch import FedAc, LocalOptimizer, LocalSGD, synchronize
from fedac.torch._local_step import decayed_form

LR, MU, K, DECAY, STEPS = 0.3, 0.2, 4, 0.1, 9
NUMBERS = {"lr": LR, "mu": MU, "local_steps": K, "weight_decay": DECAY}
START = np.linspace(-2, 3, 7)


def gradient(w, t: int):
    """Return a noisy gradient of an array: a different curvature in every coordinate."""
    return np.linspace(0.2, 1.0, len(w)) * w + 0.1 * np.sin((t + 1) * np.arange(len(w)))


def new(dtype=torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.tensor(START, dtype=dtype))


def run(optimizer, w, steps: int = STEPS, *, after=lambda: None) -> None:
    for _ in range(steps):
        g = gradient(w.detach().double().numpy(), optimizer.steps)
        w.grad = torch.from_numpy(g).to(w.dtype)
        optimizer.step()
        after()


def assert_close(found, wanted) -> None:
    np.testing.assert_allclose(found.detach().double(), wanted, rtol=1e-12, atol=1e-12)


# -- the definition ----------------------------------------------------------------------------


def fedac_by_hand(lrs, *, decay=DECAY, mu=MU):
    """Return w_ag, w and w_md: FedAc-I whose sequences shrink, as a plain loop."""
    w_ag = w = w_md = START
    for t, lr in enumerate(lrs):
        gamma = max(np.sqrt(lr / (mu * K)), lr)
        alpha = 1 / (gamma * mu)
        beta = alpha + 1
        g, keep = gradient(w_md, t), 1 - lr * decay
        w_ag = keep * w_md - lr * g
        w = keep * ((1 - 1 / alpha) * w + w_md / alpha) - gamma * g
        w_md = w / beta + (1 - 1 / beta) * w_ag
    return w_ag, w, w_md


@pytest.mark.parametrize("foreach", [True, False])
def test_fedac_follows_a_plain_loop(foreach) -> None:
    w = new()
    optimizer = FedAc([w], **NUMBERS, foreach=foreach)
    run(optimizer, w)
    *sequences, w_md = fedac_by_hand([LR] * STEPS)
    for found, wanted in zip(optimizer.sequences(w), sequences, strict=True):
        assert_close(found, wanted)
    assert_close(w, w_md)
    optimizer.eval()
    assert_close(w, sequences[0])


@pytest.mark.parametrize("foreach", [True, False])
def test_local_sgd_follows_a_plain_loop(foreach) -> None:
    w = new()
    run(LocalSGD([w], LR, K, DECAY, foreach=foreach), w)
    wanted = START
    for t in range(STEPS):
        wanted = (1 - LR * DECAY) * wanted - LR * gradient(wanted, t)
    assert_close(w, wanted)


def test_local_sgd_is_sgd_of_pytorch_where_decay_needs_no_decoupling() -> None:
    ours, theirs = new(), new()
    run(LocalSGD([ours], LR, K, weight_decay=DECAY), ours)
    sgd = torch.optim.SGD([theirs], LR, weight_decay=DECAY)
    for t in range(STEPS):
        theirs.grad = torch.from_numpy(gradient(theirs.detach().numpy(), t))
        sgd.step()
    assert_close(ours, theirs.detach())


@pytest.mark.parametrize("make", [FedAc, LocalSGD])
def test_without_gradients_parameters_shrink_as_those_of_adamw(make) -> None:
    ours, theirs = new(), new()
    settings = {n: v for n, v in NUMBERS.items() if make is FedAc or n != "mu"}
    optimizer = make([ours], **settings)
    adamw = torch.optim.AdamW([theirs], lr=LR, weight_decay=DECAY)
    for _ in range(STEPS):
        ours.grad, theirs.grad = torch.zeros_like(ours), torch.zeros_like(theirs)
        optimizer.step()
        adamw.step()
    assert_close(ours, theirs.detach())
    optimizer.eval()
    assert_close(ours, theirs.detach())


def test_momentum_does_not_shrink() -> None:
    w = new()
    run(optimizer := LocalOptimizer([w], "momentum(0.9)", **NUMBERS), w)
    x, u = START, np.zeros(7)
    for t in range(STEPS):
        u = 0.9 * u + gradient(x, t)
        x = (1 - LR * DECAY) * x - LR * u
    for found, wanted in zip(optimizer.sequences(w), (x, u), strict=True):
        assert_close(found, wanted)


def test_control_variates_do_not_shrink() -> None:
    w = new()
    optimizer = LocalOptimizer([w], "scaffold", **NUMBERS)
    c, c_m = (torch.full((7,), x, dtype=torch.float64) for x in (0.5, 0.2))
    optimizer.set_sequences(w, [w.detach().clone(), c], [c_m])
    run(optimizer, w, K)
    x, gradients = START, np.zeros(7)
    for t in range(K):
        g = gradient(x, t)
        gradients = gradients + g
        x = (1 - LR * DECAY) * x - LR * (g + 0.3)
    for found, wanted in zip(optimizer.sequences(w), (x, 0.3 + 0 * x, gradients), strict=True):
        assert_close(found, wanted)


def test_the_point_where_a_round_began_stays() -> None:
    w = new()
    run(optimizer := LocalOptimizer([w], "fedprox(0.5)", **NUMBERS), w, K)
    x = START
    for t in range(K):
        x = (1 - LR * DECAY) * (x - LR * 0.5 * (x - START)) - LR * gradient(x, t)
    for found, wanted in zip(optimizer.sequences(w), (x, START), strict=True):
        assert_close(found, wanted)


@pytest.mark.parametrize(
    ("name", "shrinking"),
    [
        ("fedavg", ["w"]),
        ("fedavg-weighted", ["w"]),
        ("fedac-i", ["w_ag", "w"]),
        ("fedac-ii+local", ["w_ag", "w"]),
        ("fedac-i+cv+nesterov(1,0.3)", ["w_ag", "w"]),
        ("gpa(0.5,0.75)", ["x", "z"]),
        ("momentum(0.9)", ["w"]),
        ("fedprox(0.1)", ["w"]),
        ("scaffnew", ["w"]),
        ("diloco", ["w"]),
    ],
)
def test_only_iterates_shrink(name: str, shrinking) -> None:
    algorithm = get(name)
    hp = algorithm.couple(eta=LR, mu=MU, K=K)
    plain, decayed = (decayed_form(algorithm, hp, decay) for decay in (0.0, DECAY))
    pairs = zip(algorithm.local_sequences, plain.update, decayed.update, strict=True)
    assert [name for name, before, after in pairs if before != after] == shrinking
    assert decayed.query == plain.query
    assert [row[-1] for row in decayed.update] == [row[-1] for row in plain.update]


# -- settings ----------------------------------------------------------------------------------


def test_groups_have_their_own() -> None:
    first, second, third = new(), new(), new()
    groups = [
        {"params": [first], "lr": 0.1, "mu": 0.4},
        {"params": [second], "weight_decay": 0.0},
        {"params": [third], "weight_decay": 0.5},
    ]
    optimizer = FedAc(groups, **NUMBERS)
    for _ in range(STEPS):
        for w in (first, second, third):
            w.grad = torch.from_numpy(gradient(w.detach().numpy(), optimizer.steps))
        optimizer.step()
    for w, lr, mu, decay in ((first, 0.1, 0.4, DECAY), (second, LR, MU, 0.0), (third, LR, MU, 0.5)):
        assert_close(w, fedac_by_hand([lr] * STEPS, mu=mu, decay=decay)[-1])


def test_it_follows_a_scheduler() -> None:
    w = new()
    optimizer = FedAc([w], **NUMBERS)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    run(optimizer, w, after=scheduler.step)
    assert_close(w, fedac_by_hand([LR * 0.8**t for t in range(STEPS)])[-1])


def test_nothing_shrinks_while_lr_is_zero_or_without_a_gradient() -> None:
    w, unused = new(), new()
    optimizer = FedAc([w, unused], **NUMBERS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t > 0))
    run(optimizer, w, 1)
    assert_close(w, START)
    scheduler.step()
    run(optimizer, w, 1)
    assert (w.detach().numpy() != START).all()
    assert_close(unused, START)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [FedAc, LocalSGD])
def test_half_precision_loses_no_small_decay(make, dtype) -> None:
    # A step shrinks a parameter at 1 by 1e-4: less than half a unit of its last place.
    w = nn.Parameter(torch.ones(3, dtype=dtype))
    mu = {"mu": MU} if make is FedAc else {}
    optimizer = make([w], lr=1e-3, **mu, local_steps=K, weight_decay=0.1)
    for _ in range(1000):
        w.grad = torch.zeros_like(w)
        optimizer.step()
    torch.testing.assert_close(w.detach().double(), torch.full((3,), 0.9999**1000).double(),
                               rtol=5e-3, atol=0)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight_decay": -0.1}, "weight_decay must be a finite number, at least 0, got -0.1"),
        ({"weight_decay": float("nan")}, "weight_decay must be a finite number"),
        ({"lr": 0.5, "weight_decay": 2.0}, r"lr \* weight_decay must be below 1, got 0.5 \* 2.0"),
    ],
)
def test_impossible_settings_are_refused(given, message) -> None:
    with pytest.raises(InputError, match=message):
        FedAc([new()], **NUMBERS | given)
    with pytest.raises(InputError, match=message):
        FedAc([{"params": [new()], **given}], **NUMBERS)
    optimizer = FedAc([w := new()], **NUMBERS)
    optimizer.param_groups[0].update(given)
    with pytest.raises(InputError, match=message):
        run(optimizer, w, 1)
    assert_close(w, START)


# -- saving, and other processes ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["fedac-i", "fedavg", "fedac-i+cv+nesterov(1,0.3)"])
@pytest.mark.usefixtures("alone")
def test_a_resumed_run_is_bit_identical(name: str, dtype, tmp_path) -> None:
    def begin(**given):
        w = new(dtype)
        optimizer = LocalOptimizer([w], name, **NUMBERS | given)
        return w, optimizer, synchronize(optimizer)

    whole, optimizer, averages = begin()
    run(optimizer, whole, 2 * K)
    averages.checkpoint(tmp_path / "run.pt")
    resumed, other, more = begin(weight_decay=0.7)  # the checkpoint's is restored
    more.resume(tmp_path / "run.pt")
    assert other.param_groups[0]["weight_decay"] == DECAY
    saved = (whole.detach().clone(), copy.deepcopy(optimizer.state_dict()))
    for w, each in ((whole, optimizer), (resumed, other)):
        run(each, w, K + 1)
    loaded, third, _ = begin(weight_decay=0.0)
    with torch.no_grad():
        loaded.copy_(saved[0])
    third.load_state_dict(saved[1])
    run(third, loaded, K + 1)
    assert torch.equal(whole, resumed)
    assert torch.equal(whole, loaded)


def test_processes_follow_a_plain_loop(processes) -> None:
    gradients = np.random.default_rng(0).standard_normal((4, 12, 3))
    ended = processes(
        "steps",
        gradients=gradients.tolist(),
        optimizer={"algorithm": "fedac-i", **NUMBERS},
        options={},
        examples=[1] * 4,
    )
    hp, keep = FEDAC_I.couple(eta=LR, mu=MU, K=K), 1 - LR * DECAY
    states = np.zeros((4, 2, 3))
    for t in range(12):
        for m, (w_ag, w) in enumerate(states):
            w_md = FEDAC_I.query((w_ag, w), hp)
            # The gradient's part does not shrink, and the update is linear.
            states[m] = FEDAC_I.update((keep * w_ag, keep * w), keep * w_md, gradients[m, t], hp)
        if (t + 1) % K == 0:
            states[:] = states.mean(axis=0)
    for rank, process in enumerate(ended):
        assert process.code == 0, process.err
        np.testing.assert_allclose(process.result["states"][-1], states[rank], atol=1e-12)
