# SPDX-License-Identifier: Apache-2.0
"""Identities of the family hold in a federation, to 1e-12."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")

from flwr.app import ArrayRecord

from fedac.algorithms import fedac
from fedac.flower import InProcessGrid, LocalStrategy, client_app

# `make quick` checks these identities in the simulator, and Flower against the simulator.
pytestmark = pytest.mark.slow
CONFTEST = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Five, Federation, LogisticModel = (
    CONFTEST[name] for name in ("Five", "Federation", "LogisticModel")
)
ROUNDS = 6


def outputs(federation, algorithm, **options) -> np.ndarray:
    """Return the output after every round, by rows."""
    seen = []

    def note(server_round, arrays):
        seen.append(np.concatenate([array.numpy().ravel() for array in arrays.values()]))

    strategy = federation.strategy(algorithm, evaluate_every=0, **options)
    strategy.start(
        federation.grid(), federation.initial_arrays(), num_rounds=ROUNDS, evaluate_fn=note
    )
    return np.array(seen)


def assert_same(mine: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-12)
    assert abs(mine[-1] - mine[0]).max() > 1e-2


@pytest.mark.parametrize("local_steps", [1, 4])
@pytest.mark.parametrize(
    "algorithm",
    ["fedavg+momentum(1, 0)", "fedavg+nesterov(1, 0)", "fedavg+slowmo(1, 0)", "fedavg+step(1)",
     "prox(0)", "momentum(0)", "momentum(0)+local", "gpa(0, 0)", "fednova", "fedavg+exp(1e300)",
     "fedcm(1)", "mimelite(0)"],
)  # fmt: skip
def test_this_is_fedavg(algorithm, local_steps):
    federation = Five(2)
    options = {"local_steps": local_steps, "weighting": "examples"}
    assert_same(outputs(federation, algorithm, **options), outputs(federation, "fedavg", **options))


@pytest.mark.parametrize(
    ("algorithm", "twin"), [("led", "scaffnew"), ("led", "scaffold"), ("fedcm(1)+cv", "scaffold")]
)
def test_this_is_scaffold_if_all_take_part(algorithm, twin):
    federation = Five(2)
    assert_same(outputs(federation, algorithm), outputs(federation, twin))


@pytest.mark.parametrize("local_steps", [1, 4])
@pytest.mark.parametrize("pieces", ["", "+cv", "+nesterov(1, 0)", "+local+cv+step(1)"])
def test_fedac_without_acceleration_is_fedavg(pieces, local_steps):
    """With the same pieces on both sides."""
    from fedac.algorithms import compose

    federation = Five(2)
    options = {"local_steps": local_steps}
    plain = fedac(gamma=federation.eta, alpha=1.0, beta=1.0)
    names = pieces.split("+")[1:]
    mine = compose(plain, *names)
    other = compose("fedavg", *(name for name in names if name != "local"))
    assert_same(outputs(federation, mine, **options), outputs(federation, other, **options))


class Alike(Federation):
    """Five clients that have the same rows, and take full gradients."""

    nodes = 5

    def app(self, load_data=None):
        return client_app(lambda context: self.F, lambda F: LogisticModel(F, "full"))


@pytest.mark.parametrize("local_steps", [1, 4])
@pytest.mark.parametrize("rule", ["fedavg", "fedac-i", "momentum(0.5)"])
def test_control_variates_of_clients_that_are_alike_do_nothing(rule, local_steps):
    options = {"local_steps": local_steps, "eta": 0.3}
    assert_same(outputs(Alike(), f"{rule}+cv", **options), outputs(Alike(), rule, **options))


@pytest.mark.parametrize("m", [0.0, 0.5, 0.9])
def test_gpa_is_a_fedac(m):
    federation = Five(2)
    beta = 1 / (1 - m)
    twin = fedac(gamma=federation.eta, alpha=1e300, beta=beta)
    mine = outputs(federation, f"gpa({m}, {m})")
    assert_same(mine, outputs(federation, twin, eta=federation.eta / beta))


def test_one_full_step_is_gradient_descent_on_all_rows():
    federation = Five("full")
    points = [federation.w_0]
    for _ in range(ROUNDS):
        points.append(points[-1] - federation.eta * federation.F.gradient(points[-1]))
    mine = outputs(federation, "fedavg", local_steps=1, weighting="examples")
    assert_same(mine, np.array(points))


class Quadratics:
    """Five clients with quadratics of their own: (w - b)' A (w - b)/2."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        roots = [np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(5)]
        self.A = np.array([Q @ np.diag([0.5, 0.7, 1.0]) @ Q.T for Q in roots])
        self.b = rng.normal(size=(5, 3))
        self.optimum = np.linalg.solve(self.A.sum(0), np.einsum("mij,mj->i", self.A, self.b))

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return np.einsum("mij,mj->i", self.A, w - self.b) / 5

    def run(self, algorithm, *, eta=0.5, local_steps=4, rounds=150) -> np.ndarray:
        class Model:
            n_examples = 1

            def __init__(self, part):
                self.A, self.b = part

            def gradient(self, w, step):
                return [self.A @ (w[0] - self.b)]

        def own(context):
            m = context.node_config["partition-id"]
            return self.A[m], self.b[m]

        strategy = LocalStrategy(
            algorithm, eta=eta, mu=0.5, local_steps=local_steps, min_nodes=5, evaluate_every=0
        )
        result = strategy.start(
            InProcessGrid(client_app(own, Model), 5), ArrayRecord([np.ones(3)]), num_rounds=rounds
        )
        return result.arrays["0"].numpy()


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "scaffnew", "fedavg+cv+step(1)"])
def test_one_full_step_on_clients_that_differ_is_gradient_descent(algorithm):
    problem, w = Quadratics(), np.ones(3)
    for _ in range(10):
        w = w - 0.3 * problem.gradient(w)
    mine = problem.run(algorithm, eta=0.3, local_steps=1, rounds=10)
    np.testing.assert_allclose(mine, w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory", ["", "+cv"])
def test_one_full_step_with_nesterov_is_pytorchs_sgd(memory):
    torch = pytest.importorskip("torch")
    problem = Quadratics()
    A, b = torch.tensor(problem.A), torch.tensor(problem.b)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.7 * 0.3, momentum=0.9, nesterov=True)
    for _ in range(10):
        optimizer.zero_grad()
        (torch.einsum("mi,mij,mj->", w - b, A, w - b) / 10).backward()
        optimizer.step()
    mine = problem.run(f"fedavg{memory}+nesterov(0.7, 0.9)", eta=0.3, local_steps=1, rounds=10)
    np.testing.assert_allclose(mine, w.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_who_reaches_the_pooled_optimum():
    problem = Quadratics()
    exact = ("scaffold", "scaffnew", "fedavg+cv+momentum(1, 0.3)", "feddyn(1)", "scaffold-m(0.5)")
    for algorithm in exact:
        assert abs(problem.run(algorithm) - problem.optimum).max() < 1e-12, algorithm
    for algorithm in ("fedavg", "fedavg+momentum(1, 0.3)"):
        assert abs(problem.run(algorithm) - problem.optimum).max() > 1e-3, algorithm
