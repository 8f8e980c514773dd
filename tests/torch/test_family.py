# SPDX-License-Identifier: Apache-2.0
"""Compositions in real processes: they follow the simulator, and their identities hold."""

import numpy as np
import pytest
import torch

from fedac import Clients, Decay, LogisticRegression, Schedule, simulate
from fedac.algorithms import get

pytestmark = pytest.mark.slow

OWNERS = np.repeat([2, 0, 3, 1], [1, 6, 13, 25])  # rank 2 has one row, rank 1 has 25
WORLD, DIM = 4, 6
L2, SEED, K, T, ETA = 0.05, 5, 8, 32, 0.3
IRREGULAR = [1, 4, 12, 18, 25, 32]

# The step size of a server that takes steps of its own size.
SMALL = "(0.05, 0.9, 0.99, 0.001)"


def run(algorithm, *, batch=4, weighting="uniform", by=None, at=None):
    eta = ETA if by is None else [ETA, by]
    return {"algorithm": algorithm, "eta": eta, "batch": batch, "weighting": weighting, "at": at}


RUNS = {
    # Nothing is kept: two sequences that are averaged, and one that only the client has.
    "momentum": run("momentum(0.8)", batch=1),
    "gpa": run("gpa(0.8, 0.6)", weighting="examples"),
    "fedprox": run("fedprox(0.3)", batch="full", weighting="examples"),
    "fedprox, falling": run("fedprox(0.3)", by="1/sqrt(r)", at=IRREGULAR),
    # Memory.
    "scaffold": run("scaffold", batch="full"),
    "scaffold, by examples": run("scaffold", weighting="examples", at=IRREGULAR),
    "scaffnew": run("scaffnew", batch="full"),
    "scaffnew, falling": run("scaffnew", weighting="examples", by="halve(2)"),
    "fedac-i at home": run("fedac-i+local", weighting="examples", by="inverse(3)"),
    "momentum at home": run("momentum(0.5)+local", batch=1, at=IRREGULAR),
    "fedac-i, cv": run("fedac-i+cv", weighting="examples", by="inverse(3)", at=IRREGULAR),
    "prox, cv": run("prox(0.3)+cv", batch="full", weighting="examples"),
    "fedac-ii, both memories": run("fedac-ii+local+cv"),
    # A server rule.
    "diloco": run("diloco"),
    "diloco, falling": run("diloco(1, 0.5)", weighting="examples", by="1/sqrt(r)", at=IRREGULAR),
    "fedavgm": run("fedavgm(0.7, 0.5)", batch="full", weighting="examples"),
    "fedadam": run(f"fedadam{SMALL}", weighting="examples"),
    "fedyogi": run(f"fedyogi{SMALL}", batch="full"),
    "fedadagrad": run("fedadagrad(0.1, 0.5)", by="halve(2)"),
    "slowmo": run("slowmo", by="1/r"),
    "outer-nesterov": run("outer-nesterov(0.8)", weighting="examples", at=IRREGULAR),
    "fedac-i, accelerated": run("fedac-i+accelerated(0.5)", by="inverse(3)"),
    # Both.
    "fedac-i at home, nesterov": run(
        "fedac-i+local+nesterov(1, 0.3)", weighting="examples", by="halve(2)"
    ),
    "fedac-ii, everything": run("fedac-ii+local+cv+momentum(1, 0.5)", weighting="examples"),
    "scaffold, adam": run(f"sgd+cv+adam{SMALL}", batch="full", by="1/sqrt(r)", at=IRREGULAR),
    "fedac-i, cv, accelerated": run("fedac-i+cv+accelerated(0.5)", weighting="examples"),
    # They ask for more of a round, or a sequence is only broadcast.
    "feddyn": run("feddyn(0.1)", batch="full"),
    "feddyn, by examples": run("feddyn(0.5)", weighting="examples", by="1/sqrt(r)"),
    "fedcm": run("fedcm(0.2)", weighting="examples", by="halve(2)", at=IRREGULAR),
    "scaffold-m": run("fedavg+fedcm(0.3)+cv", batch="full"),
    "scaffold-m, by examples": run("scaffold-m(0.3)", weighting="examples"),
    "fednova": run("fednova", weighting="examples", at=IRREGULAR),
    "led": run("led", batch="full"),
    "fedexp": run("fedexp", batch="full"),
    "fedexp, by examples": run("fedexp", weighting="examples", at=IRREGULAR),
    "fedac-i, exp": run("fedac-i+exp", weighting="examples", by="inverse(3)"),
    "everything asked for": run("fedavg+exp+fedcm(0.3)+cv", weighting="examples"),
    "mimelite": run("mimelite(0.9)", weighting="examples", by="1/sqrt(r)"),
    "mimelite, cv": run("mimelite(0.5)+cv", at=IRREGULAR),
    "mimelite, nesterov": run("mimelite(0.8)+nesterov(0.7, 0.5)", weighting="examples"),
    "mimelite, exp": run("mimelite(0.8)+exp", batch="full"),
}
RESUMED = [
    "fedac-i, cv", "diloco, falling", "fedac-ii, everything", "scaffnew, falling",
    "feddyn, by examples", "fedcm", "everything asked for", "mimelite, cv",
]  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    y = np.where(np.arange(len(OWNERS)) % 7 < 3, 1.0, -1.0)
    X = rng.standard_normal((len(OWNERS), DIM)) + OWNERS[:, None] * y[:, None] / 2
    return LogisticRegression(X, y, l2=L2), X, y, rng.standard_normal(DIM)


def train(processes, folder, problem, runs, **more):
    """Return for every run what its ranks return."""
    _, X, y, start = problem
    np.savez(folder / "problem.npz", X=X, y=y, start=start, **more)
    common = {"K": K, "T": T, "mu": L2, "l2": L2, "seed": SEED}
    given = [common | run for run in runs.values()]
    ended = processes("logistic", problem=str(folder / "problem.npz"), runs=given)
    for process in ended:
        assert process.code == 0, process.err
    by_run = zip(*(process.result for process in ended), strict=True)
    return dict(zip(runs, by_run, strict=True))


@pytest.fixture(scope="module")
def in_processes(processes, problem, tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    runs = dict(RUNS)
    for name in RESUMED:
        after = 12 if RUNS[name]["at"] else 16
        path = f"{folder}/{RESUMED.index(name)}.pt"
        runs[f"{name}, resumed"] = RUNS[name] | {"resume": {"after": after, "path": path}}
    return train(processes, folder, problem, runs, owners=OWNERS)


@pytest.mark.parametrize("name", RUNS)
def test_processes_reproduce_the_simulators_clients(in_processes, problem, name: str) -> None:
    F, _, _, start = problem
    this, states, outputs = dict(RUNS[name]), [], []
    eta, at = this.pop("eta"), this.pop("at")
    simulate(
        F, clients=Clients(OWNERS), K=Schedule.at(at) if at else K, T=T, mu=L2, seed=SEED,
        eta=Decay(*eta) if isinstance(eta, list) else eta, start=start, record_every=1,
        engine="reference", **this,
        callbacks=[
            lambda record: states.append(np.stack(record.state)),
            lambda record: outputs.append(record.w),
        ],
    )  # fmt: skip
    assert np.abs(states[-1]).max() < 100
    for rank in in_processes[name]:
        np.testing.assert_allclose(rank["states"], states[1:], rtol=0, atol=1e-9)
        np.testing.assert_allclose(rank["outputs"], outputs[1:], rtol=0, atol=1e-9)
        assert torch.equal(rank["states"], in_processes[name][0]["states"])


@pytest.mark.parametrize("name", RUNS)
def test_what_travels_is_what_the_record_says(in_processes, name: str) -> None:
    rounds = len(IRREGULAR) if RUNS[name]["at"] else T // K
    method = get(RUNS[name]["algorithm"])
    asked = ("moves" in method.asks) + ("steps" in method.asks)  # of one parameter group
    numbers = method.vectors_up * DIM + asked + 4 * WORLD
    for rank in in_processes[name]:
        assert rank["all_reduces"] == [numbers] * rounds
        assert rank["bytes"] == 8 * numbers * rounds


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(in_processes, name: str) -> None:
    for whole, resumed in zip(in_processes[name], in_processes[f"{name}, resumed"], strict=True):
        assert torch.equal(whole["states"], resumed["states"])


def test_pieces_matter(in_processes) -> None:
    ends = {name: ranks[0]["outputs"][-1] for name, ranks in in_processes.items()}
    for one, other in [
        ("scaffold", "fedyogi"),
        ("fedac-ii, both memories", "fedac-ii, everything"),
        ("diloco", "fedadam"),
        ("fedadam", "fedyogi"),
        ("fedexp", "feddyn"),
        ("fedexp", "scaffold-m"),
        ("mimelite", "fedexp, by examples"),
        ("mimelite", "mimelite, nesterov"),
    ]:
        assert abs(ends[one] - ends[other]).max() > 1e-3


# -- identities --------------------------------------------------------------------------------

# They are FedAvg or FedAc for any data.
AS_FEDAVG = [
    "fedavg+momentum(1, 0)", "fedavg+nesterov(1, 0)", "slowmo(1, 0)", "fedavg+step(1)", "prox(0)",
    "fedac as fedavg", "gpa(0, 0)", "momentum(0)", "momentum(0)+local", "gpa(0, 0)+local",
    "fednova", "fedavg+exp(1e300)", "fedcm(1)", "mimelite(0)",
]  # fmt: skip
AS_FEDAC = [
    "fedac-i+momentum(1, 0)", "fedac-i+nesterov(1, 0)", "fedac-i+slowmo(1, 0)",
    "fedac-i+exp(1e300)",
]  # fmt: skip
ROUNDS = [8, 1]
ON_MEAN = {"weighting": "examples", "batch": "full", "eta": ETA}


@pytest.fixture(scope="module")
def alike(processes, problem, tmp_path_factory):
    """Return runs on split rows and full gradients: by length of a round, and algorithm."""
    runs = {
        (k, name): ON_MEAN | {"algorithm": name, "K": k}
        for k in ROUNDS
        for name in ("fedavg", "fedac-i", *AS_FEDAVG, *AS_FEDAC)
    }
    runs["gpa"] = run("gpa(0.75, 0.75)")
    runs["fedac"] = run("fedac as gpa") | {"eta": ETA / 4}
    for name in ("scaffold", "diloco(0.7, 0.9)", "sgd+cv+nesterov(0.7, 0.9)"):
        runs[1, name] = ON_MEAN | {"algorithm": name, "K": 1}
    return train(processes, tmp_path_factory.mktemp("alike"), problem, runs, owners=OWNERS)


def assert_same(ranks, others, what="outputs") -> None:
    for mine, theirs in zip(ranks, others, strict=True):
        np.testing.assert_allclose(mine[what], theirs[what], rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", ROUNDS)
@pytest.mark.parametrize("name", AS_FEDAVG)
def test_methods_that_are_fedavg(alike, name: str, k: int) -> None:
    assert_same(alike[k, name], alike[k, "fedavg"])


@pytest.mark.parametrize("k", ROUNDS)
@pytest.mark.parametrize("name", AS_FEDAC)
def test_methods_that_are_fedac(alike, name: str, k: int) -> None:
    assert_same(alike[k, name], alike[k, "fedac-i"])


def test_gpa_is_fedac(alike) -> None:
    assert_same(alike["gpa"], alike["fedac"], what="states")


def test_scaffnew_is_scaffold_if_all_take_part(in_processes) -> None:
    assert_same(in_processes["scaffnew"], in_processes["scaffold"])


def test_led_is_scaffnew(in_processes) -> None:
    assert_same(in_processes["led"], in_processes["scaffnew"])


@pytest.fixture(scope="module")
def equal_data(processes, problem, tmp_path_factory):
    """Return runs in which all workers have all rows."""
    runs = {
        (k, name): {"algorithm": name, "K": k, "batch": "full", "eta": ETA}
        for k in ROUNDS
        for name in ("fedavg", "scaffold", "scaffnew", "fedac-i", "fedac-i+cv")
    }
    return train(processes, tmp_path_factory.mktemp("equal"), problem, runs)


@pytest.mark.parametrize("k", ROUNDS)
def test_control_variates_of_equal_clients_do_nothing(equal_data, k: int) -> None:
    assert_same(equal_data[k, "scaffold"], equal_data[k, "fedavg"])
    assert_same(equal_data[k, "scaffnew"], equal_data[k, "fedavg"])
    assert_same(equal_data[k, "fedac-i+cv"], equal_data[k, "fedac-i"])


def pooled(problem, **options):
    """Return what PyTorch's SGD does with all rows in one process."""
    _, X, y, start = problem
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    w = torch.nn.Parameter(torch.from_numpy(start.copy()))
    sgd, points = torch.optim.SGD([w], **options), []
    for _ in range(T):
        sgd.zero_grad()
        loss = -torch.nn.functional.logsigmoid(y * (X @ w)).mean()
        (loss + L2 / 2 * (w @ w)).backward()
        sgd.step()
        points.append(w.detach().clone())
    return torch.stack(points)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_one_step_a_round_is_gradient_descent(alike, problem, name: str) -> None:
    wanted = pooled(problem, lr=ETA)
    for rank in alike[1, name]:
        np.testing.assert_allclose(rank["outputs"], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["diloco(0.7, 0.9)", "sgd+cv+nesterov(0.7, 0.9)"])
def test_one_step_a_round_with_nesterov_is_sgd_of_pytorch(alike, problem, name: str) -> None:
    wanted = pooled(problem, lr=0.7 * ETA, momentum=0.9, nesterov=True)
    for rank in alike[1, name]:
        np.testing.assert_allclose(rank["outputs"], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    ["scaffold", "scaffnew", "fedac-i+cv", "feddyn(1)", "scaffold-m(0.5)", "fedavg", "fedac-i"],
)
def test_with_corrections_the_pooled_optimum_is_reached(processes, name: str) -> None:
    curvature = [[1.0, 0.2], [0.3, 0.8], [0.5, 0.4], [0.9, 0.6]]
    minimizer = [[1.0, -2.0], [3.0, 0.5], [-4.0, 1.0], [0.0, 2.0]]
    ended = processes(
        "quadratics", curvature=curvature, minimizer=minimizer, algorithm=name, K=4, steps=480
    )
    a, b = np.array(curvature), np.array(minimizer)
    optimum = (a * b).mean(axis=0) / a.mean(axis=0)
    for process in ended:
        assert process.code == 0, process.err
        gap = np.abs(process.result.numpy() - optimum).max()
        assert gap > 0.02 if name in ("fedavg", "fedac-i") else gap < 1e-12
