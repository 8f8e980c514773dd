# SPDX-License-Identifier: Apache-2.0
"""What methods ask of PyTorch besides local steps: the full gradient, moves and steps."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fedac.algorithms import compose
from fedac.algorithms.server import ServerRule
from fedac.errors import InputError
from fedac.torch import LocalOptimizer, synchronize

NUMBERS = {"lr": 0.1, "mu": 0.5, "local_steps": 4}


@dataclass(frozen=True)
class ByLength(ServerRule):
    """A server step as long as the moves are, to see their lengths."""

    asks = ("moves",)

    def step(self, x, delta, kept, hp, this):
        return x - (this.spread + this.moved) * delta, kept


class Training:
    """A model with two parameters, and a loss over rows that are always the same."""

    def __init__(self, algorithm, *, dtype=torch.float64, **options) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
        self.X = torch.linspace(-1, 1, 24).reshape(8, 3).to(dtype)
        self.seen: list[torch.Tensor] = []
        if "mimelite" in getattr(algorithm, "name", algorithm):
            options["full_gradient"] = self.full_gradient
        first, *others = self.model.parameters()
        groups = [{"params": [first]}, {"params": others, "lr": 0.05}]
        self.optimizer = LocalOptimizer(groups, algorithm, **NUMBERS, **options)

    def full_gradient(self) -> None:
        self.seen.append(self.point())
        self.loss(self.X).backward()

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.model(rows) - rows.sum(1, keepdim=True)).square().mean()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss(self.X[self.optimizer.steps % 8 :][:2]).backward()
            self.optimizer.step()

    def point(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def output(self) -> torch.Tensor:
        self.optimizer.eval()
        found = self.point()
        self.optimizer.train()
        return found


METHODS = [
    "feddyn(0.3)", "fedcm(0.2)", "scaffold-m", "fednova", "fedexp", "led", "mimelite(0.5)+cv",
    "mimelite(0.8)+nesterov(0.7,0.5)", compose("fedac-i", ByLength()),
]  # fmt: skip


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_evaluating_early_is_ending_the_round_alone(method) -> None:
    training = Training(method)
    averages = synchronize(training.optimizer)
    training.run(6)
    early, point = training.output(), training.point()
    assert torch.equal(training.point(), point)
    averages.synchronize()
    torch.testing.assert_close(training.output(), early, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_full_gradient_is_taken_where_the_round_began(dtype) -> None:
    training = Training("mimelite(0.5)", dtype=dtype)
    synchronize(training.optimizer)
    began = []
    for _ in range(3):
        began.append(training.point())
        training.run(3)
        before = training.point()
        grads = [p.grad.clone() for p in training.model.parameters()]
        training.output()  # it asks for the gradient too
        assert torch.equal(training.point(), before)
        for p, grad in zip(training.model.parameters(), grads, strict=True):
            assert torch.equal(p.grad, grad)
        training.run(1)
    assert len(training.seen) == 6
    for r, point in enumerate(began):
        assert torch.equal(training.seen[2 * r], point)
        assert torch.equal(training.seen[2 * r + 1], point)
    assert not torch.equal(began[0], began[1])


@pytest.mark.usefixtures("alone")
def test_a_full_gradient_that_fails_changes_nothing() -> None:
    training = Training("mimelite(0.5)")
    averages = synchronize(training.optimizer)
    training.run(3)
    before = training.point()

    def fail() -> None:
        raise ZeroDivisionError("must call backward")

    for function in (lambda: None, fail):
        training.optimizer.full_gradient = function
        with pytest.raises((InputError, ZeroDivisionError), match=r"must call backward"):
            averages.synchronize()
        assert torch.equal(training.point(), before)
        assert training.model[0].weight.grad is not None
    training.optimizer.full_gradient = training.full_gradient
    averages.synchronize()
    training.run(4)
    assert averages.rounds == 2


def test_a_copy_needs_a_full_gradient_of_its_own() -> None:
    training = Training("mimelite(0.5)")
    training.run(2)
    twin = copy.deepcopy(training)
    with pytest.raises(InputError, match=r"a copy of an optimizer lacks full_gradient.*; set"):
        twin.optimizer.eval()
    twin.optimizer.train()
    twin.optimizer.full_gradient = twin.full_gradient
    assert torch.equal(twin.output(), training.output())


@pytest.mark.usefixtures("alone")
def test_an_average_over_steps_needs_loaders_of_one_length() -> None:
    averages = synchronize(Training("fedavg-weighted").optimizer)
    expected = pytest.raises(InputError, match="'fedavg-weighted' counts local steps, so all")
    with expected, averages.join():
        pass
    averages = synchronize(Training("fedavg").optimizer)
    with averages.join():
        pass


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("mimelite(0.5)", {}, r"'mimelite\(0.5\)' needs the gradient of all rows of a worker: "
         r"pass full_gradient=, a function that calls backward\(\) on their mean loss"),
        ("mimelite(0.5)", {"full_gradient": 1.0}, "pass full_gradient=, a function"),
        ("fedavg", {"full_gradient": list}, "'fedavg' needs no full_gradient; leave it out"),
        ("dualavg(0.01)", {}, r"'dualavg\(0.01\)' is not linear in its state.*PyTorch"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused(algorithm, options, message) -> None:
    with pytest.raises(InputError, match=message):
        LocalOptimizer([nn.Parameter(torch.ones(2))], algorithm, **NUMBERS, **options)
