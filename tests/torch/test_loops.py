# SPDX-License-Identifier: Apache-2.0
"""Loops that people write: accumulation, scalers, clipping, warm-up and `torch.compile`.

Every loop ends where one without the feature ends, with an optimizer of ours and with AdamW inside.
"""

import math
import shutil
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.optim import lr_scheduler as schedulers

from fedac.algorithms import FEDAC_I
from fedac.torch import FedAc, synchronize

K, STEPS = 5, 20
FUSED = "fused AdamW"
KINDS = ["FedAc", "AdamW"]

pytestmark = pytest.mark.usefixtures("alone")
every_kind = pytest.mark.parametrize("kind", KINDS)


class Training:
    """A model, an optimizer, and a synchronizer unless it is to be left out."""

    def __init__(self, kind: str, *, lr: float = 0.05, alone: bool = False, **options) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        if kind == "FedAc":
            self.optimizer = FedAc(self.model.parameters(), lr, 0.1, K, weight_decay=0.01)
        else:
            fused = kind == FUSED
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr, fused=fused)
            options = {"local_steps": K, **options}
        self.averages = None if alone else synchronize(self.optimizer, **options)

    def loss(self, t: int, rows: slice = slice(None)) -> Tensor:
        """Return the loss of a batch, or of some of its rows."""
        x = torch.sin(torch.arange(32.0, dtype=torch.float64).view(8, 4) * (t + 1))[rows]
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def backward(self, t: int) -> None:
        self.optimizer.zero_grad()
        self.loss(t).backward()

    def run(self, steps: int = STEPS) -> "Training":
        for t in range(steps):
            self.backward(t)
            self.optimizer.step()
        return self

    def numbers(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


# -- accumulated and clipped gradients ---------------------------------------------------------


@every_kind
def test_accumulated_gradients_are_those_of_the_whole_batch(kind: str) -> None:
    training = Training(kind)
    for t in range(STEPS):
        training.optimizer.zero_grad()
        for part in range(4):
            (training.loss(t, slice(2 * part, 2 * part + 2)) / 4).backward()
        training.optimizer.step()
    assert training.averages.steps == STEPS
    assert training.averages.rounds == STEPS // K
    assert_close(training.numbers(), Training(kind).run().numbers())


def clip_by_hand(training: Training, limit: float) -> bool:
    """Scale all gradients if their norm is above the limit; return whether it was."""
    gradients = [p.grad for p in training.model.parameters()]
    norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
    for g in gradients:
        g *= min(1.0, limit / (norm + 1e-6))
    return norm > limit


@every_kind
def test_clipped_gradients(kind: str) -> None:
    clipped, by_hand = Training(kind), Training(kind)
    above = []
    for t in range(STEPS):
        for training in (clipped, by_hand):
            training.backward(t)
        nn.utils.clip_grad_norm_(clipped.model.parameters(), 0.7)
        above.append(clip_by_hand(by_hand, 0.7))
        for training in (clipped, by_hand):
            training.optimizer.step()
    assert len(set(above)) == 2
    assert_close(clipped.numbers(), by_hand.numbers())


# -- a GradScaler ------------------------------------------------------------------------------

BAD = {3, 4, 11}  # batches whose gradients are infinite


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, FUSED])
def test_a_step_that_a_scaler_skips_does_not_count(kind: str, unscale: bool) -> None:
    scaled, plain = Training(kind), Training(kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)  # a power of 2, so it rounds nothing
    for t in range(STEPS):
        scaled.optimizer.zero_grad()
        scaler.scale(scaled.loss(t) * (math.inf if t in BAD else 1.0)).backward()
        if unscale:
            scaler.unscale_(scaled.optimizer)
            nn.utils.clip_grad_norm_(scaled.model.parameters(), 0.7)
        scaler.step(scaled.optimizer)
        scaler.update()
        if t not in BAD:
            plain.backward(t)
            if unscale:
                nn.utils.clip_grad_norm_(plain.model.parameters(), 0.7)
            plain.optimizer.step()
        assert scaled.averages.steps == plain.averages.steps
    assert scaled.averages.steps == STEPS - len(BAD)
    assert scaled.averages.rounds == (STEPS - len(BAD)) // K
    assert scaler.get_scale() == 2.0 ** (10 - len(BAD))
    assert torch.equal(scaled.numbers(), plain.numbers())


@pytest.mark.parametrize("kind", [*KINDS, FUSED])
def test_processes_that_skip_different_batches_stay_together(processes, kind: str) -> None:
    by_scaler, by_hand = (
        processes("skipping", world=2, kind=kind, K=K, steps=STEPS, scaled=scaled)
        for scaled in (True, False)
    )
    for process, wanted in zip(by_scaler, by_hand, strict=True):
        assert process.code == 0, process.err
        assert process.result["rounds"] == STEPS // K
        assert torch.equal(process.result["w"], wanted.result["w"])
    assert torch.equal(by_scaler[0].result["w"], by_scaler[1].result["w"])
    assert [process.result["batches"] for process in by_scaler] == [STEPS, STEPS + 2]


# -- schedules ---------------------------------------------------------------------------------

Schedule = Callable[[torch.optim.Optimizer], schedulers.LRScheduler]
SCHEDULES: dict[str, Schedule] = {
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.01, 1.0, 8),
    "LambdaLR from 0": lambda o: schedulers.LambdaLR(o, lambda t: min(1.0, t / 6)),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(
        o, max_lr=0.1, total_steps=STEPS, cycle_momentum=False
    ),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o,
        [schedulers.LinearLR(o, 0.1, 1.0, 4), schedulers.CosineAnnealingLR(o, STEPS - 4)],
        milestones=[4],
    ),
}


def run_with(training: Training, make: Schedule) -> list[float]:
    """Train with a schedule and return all lr."""
    scheduler, lrs = make(training.optimizer), []
    for t in range(STEPS):
        lrs.append(training.optimizer.param_groups[0]["lr"])
        training.backward(t)
        training.optimizer.step()
        scheduler.step()
    assert len(set(lrs)) > 5
    return lrs


@pytest.mark.parametrize("name", SCHEDULES)
def test_fedac_warms_up_as_a_plain_loop_does(name: str) -> None:
    training = Training("FedAc")
    lrs = run_with(training, SCHEDULES[name])
    other = Training("FedAc", alone=True)
    w_ag = w = w_md = other.numbers()
    for t, lr in enumerate(lrs):
        nn.utils.vector_to_parameters(w_md.clone(), other.model.parameters())
        other.backward(t)
        g = torch.cat([p.grad.reshape(-1) for p in other.model.parameters()])
        if lr != 0:
            hp, keep = FEDAC_I.couple(eta=lr, mu=0.1, K=K), 1 - lr * 0.01
            w_ag, w = FEDAC_I.update((keep * w_ag, keep * w), keep * w_md, g, hp)
            w_md = FEDAC_I.query((w_ag, w), hp)
    assert_close(training.numbers(), w_md)
    training.optimizer.eval()
    assert_close(training.numbers(), w_ag)
    assert training.averages.rounds == STEPS // K


@pytest.mark.parametrize("name", SCHEDULES)
def test_adamw_warms_up_as_it_does_alone(name: str) -> None:
    training, alone = Training("AdamW"), Training("AdamW", alone=True)
    assert run_with(training, SCHEDULES[name]) == run_with(alone, SCHEDULES[name])
    assert torch.equal(training.numbers(), alone.numbers())
    assert training.averages.rounds == STEPS // K


# -- torch.compile -----------------------------------------------------------------------------

LONG = 50


@pytest.fixture
def dynamo() -> Iterator[None]:
    """Forget what was compiled, before and after; compile as often as seems needed."""
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=1000):
        yield
    torch._dynamo.reset()
    counters.clear()


def compiled(training: Training, what: str, backend: str) -> np.ndarray:
    """Train with something compiled and a schedule; return the frames compiled so far, by step."""
    scheduler = schedulers.ExponentialLR(training.optimizer, 0.98)
    step = training.optimizer.step

    def train_step(t: Tensor) -> None:
        training.optimizer.zero_grad()
        x = torch.sin(torch.arange(32.0, dtype=torch.float64).view(8, 4) * (t + 1))
        (training.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        step()

    if what == "model":
        training.model = torch.compile(training.model, backend=backend)
    elif what == "step":
        step = torch.compile(training.optimizer.step, backend=backend)
    elif what == "loop":
        train_step = torch.compile(train_step, backend=backend)
    frames = []
    for t in range(LONG):
        train_step(torch.tensor(float(t), dtype=torch.float64))
        scheduler.step()
        frames.append(counters["frames"]["total"])
    return np.array(frames)


INDUCTOR = pytest.param(
    "loop",
    "inductor",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
    ],
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch compiles with what it warns of
@pytest.mark.parametrize(
    ("what", "backend"),
    [
        ("model", "eager"),
        pytest.param("step", "eager", marks=pytest.mark.slow),  # which is part of the loop
        ("loop", "eager"),
        INDUCTOR,
    ],
)
@every_kind
@pytest.mark.usefixtures("dynamo")
def test_nothing_is_compiled_again_and_again(kind: str, what: str, backend: str) -> None:
    training = Training(kind)
    frames = compiled(training, what, backend)
    assert frames[0] > 0
    assert frames[-1] == frames[2 * K]  # two rounds have seen all there is
    assert (training.averages.steps, training.averages.rounds) == (LONG, LONG // K)
    if kind == "AdamW":  # its compiled step rounds differently, with a synchronizer and without
        other = Training(kind, alone=True)
        compiled(other, what, backend)
    else:
        other = Training(kind)
        compiled(other, "nothing", backend)
    if backend == "eager":
        assert torch.equal(training.numbers(), other.numbers())
    else:
        torch.testing.assert_close(training.numbers(), other.numbers(), rtol=1e-9, atol=1e-9)
