# SPDX-License-Identifier: Apache-2.0
"""Workers with numbers of steps of their own, or absent from rounds, follow the simulator."""

import numpy as np
import pytest
import torch
import two_clients

from fedac import Clients, LogisticRegression, simulate
from fedac.algorithms import get
from fedac.federation.sampling import participants

pytestmark = pytest.mark.slow

OWNERS = np.repeat([2, 0, 3, 1], [1, 6, 13, 25])  # rank 2 has one row, rank 1 has 25
WORLD, DIM, ROUNDS = 4, 6, 4
L2, SEED, ETA = 0.05, 5, 0.3
OWN = [3, 7, 1, 4]
EPOCH = [2, 7, 1, 4]  # batches of four rows, the last of which may be smaller
BATCH = 4


def run(algorithm, *, weighting="uniform", batch="full", **steps):
    return {"algorithm": algorithm, "weighting": weighting, "batch": batch, **(steps or {"K": OWN})}


EPOCHS = {"batch": BATCH, "epochs": 1}
SOME = {"K": 5, "participation": 2}
RUNS = {
    "fedavg": run("fedavg", weighting="examples"),
    "scaffold": run("scaffold", batch=BATCH),
    "fednova": run("fednova"),
    "fednova, by examples": run("fednova", weighting="examples", batch=BATCH),
    "fednova, epochs": run("fednova", **EPOCHS),
    "fednova, exp": run("fedavg+exp+fednova", weighting="examples"),
    "fednova, cv": run("fedavg+fednova+cv", **EPOCHS),
    "fedcm": run("fedcm(0.2)"),
    "scaffold-m": run("scaffold-m(0.3)", weighting="examples", **EPOCHS),
    "feddyn": run("feddyn(0.1)", weighting="examples"),
    "fedexp": run("fedexp", weighting="examples", **EPOCHS),
    "mimelite": run("mimelite(0.9)", **EPOCHS),
    "mimelite, cv": run("mimelite(0.5)+cv", weighting="examples"),
    "feddyn, some": run("feddyn(0.1)", **SOME),
    "feddyn, some by examples": run("feddyn(0.1)", weighting="examples", batch=BATCH, **SOME),
    "fedcm, some": run("fedcm(0.2)", weighting="examples", **SOME),
    "scaffold-m, some": run("scaffold-m(0.3)", **SOME),
    "fedexp, some": run("fedexp", weighting="examples", **SOME),
    "fedac-i, exp, some": run("fedac-i+exp", batch=BATCH, **SOME),
    "mimelite, cv, some": run("mimelite(0.5)+cv", weighting="examples", **SOME),
    "fednova, some": run("fednova", weighting="examples", K=OWN, participation=2),
    "scaffold-m, some, own": run("scaffold-m(0.3)", K=OWN, participation=2),
}
RESUMED = ["feddyn, some", "scaffold-m, some, own", "mimelite, cv", "fednova, epochs"]


def in_process(run, **more):
    """Return a run as the job of a rank takes it."""
    this = dict(run)
    K, count, epochs = this.pop("K", EPOCH), this.pop("participation", WORLD), "epochs" in this
    every = K if isinstance(K, list) else [K] * WORLD
    present = [participants(SEED, r, WORLD, count) for r in range(ROUNDS)]
    taken = [[every[m] if m in members else 0 for m in range(WORLD)] for members in present]
    # A round ends where the longest of its workers is.
    at = np.cumsum([max(row) for row in taken]).tolist()
    return this | {"K": max(every), "T": 0, "at": at, "taken": taken, "epochs": epochs} | more


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    y = np.where(np.arange(len(OWNERS)) % 7 < 3, 1.0, -1.0)
    X = rng.standard_normal((len(OWNERS), DIM)) + OWNERS[:, None] * y[:, None] / 2
    return LogisticRegression(X, y, l2=L2), X, y, rng.standard_normal(DIM)


@pytest.fixture(scope="module")
def in_processes(processes, problem, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    _, X, y, start = problem
    np.savez(folder / "problem.npz", X=X, y=y, start=start, owners=OWNERS)
    runs = {name: in_process(run) for name, run in RUNS.items()}
    for name in RESUMED:
        resume = {"after": 2, "path": f"{folder}/{RESUMED.index(name)}.pt"}
        runs[f"{name}, resumed"] = in_process(RUNS[name], resume=resume)
    common = {"eta": ETA, "mu": L2, "l2": L2, "seed": SEED}
    given = [common | run for run in runs.values()]
    ended = processes("logistic", problem=str(folder / "problem.npz"), runs=given)
    for process in ended:
        assert process.code == 0, process.err
    by_run = zip(*(process.result for process in ended), strict=True)
    return dict(zip(runs, by_run, strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_workers_reproduce_the_simulators_clients(in_processes, problem, name: str) -> None:
    F, _, _, start = problem
    states, outputs = [], []
    simulate(
        F, clients=Clients(OWNERS), rounds=ROUNDS, eta=ETA, mu=L2, seed=SEED, start=start,
        record_every=1, engine="reference", **RUNS[name],
        callbacks=[
            lambda record: states.append(np.stack(record.state)),
            lambda record: outputs.append(record.w),
        ],
    )  # fmt: skip
    assert len(states) == ROUNDS + 1
    for rank in in_processes[name]:
        np.testing.assert_allclose(rank["states"], states[1:], rtol=0, atol=1e-9)
        np.testing.assert_allclose(rank["outputs"], outputs[1:], rtol=0, atol=1e-9)
        assert torch.equal(rank["states"], in_processes[name][0]["states"])


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(in_processes, name: str) -> None:
    for whole, resumed in zip(in_processes[name], in_processes[f"{name}, resumed"], strict=True):
        assert torch.equal(whole["states"], resumed["states"])


def test_what_is_sent_is_what_the_record_says(in_processes) -> None:
    """Absent workers send as much as others, and zeros."""
    for name, ranks in in_processes.items():
        method = get((RUNS | {f"{one}, resumed": RUNS[one] for one in RESUMED})[name]["algorithm"])
        asked = ("moves" in method.asks) + ("steps" in method.asks)
        for rank in ranks:
            assert set(rank["all_reduces"]) == {method.vectors_up * DIM + asked + 4 * WORLD}


def test_steps_and_absences_matter(in_processes) -> None:
    ends = {name: ranks[0]["outputs"][-1] for name, ranks in in_processes.items()}
    for one, other in [
        ("fednova, by examples", "fedavg"),
        ("fednova", "fednova, by examples"),
        ("fednova, exp", "fednova, by examples"),
        ("feddyn", "feddyn, some by examples"),
        ("scaffold-m, some", "scaffold-m, some, own"),
    ]:
        assert abs(ends[one] - ends[other]).max() > 1e-3


# -- by hand, from the papers ------------------------------------------------------------------


LINEAR = [each for each in two_clients.BY_HAND if each.method not in two_clients.NOT_LINEAR]


def test_rounds_of_two_workers(processes) -> None:
    runs = [{"method": r.method, "steps": r.steps, "count": len(r.states)} for r in LINEAR]
    problem = {"targets": two_clients.TARGETS, "start": two_clients.START, "eta": two_clients.ETA}
    for process in processes("hand_jobs:rounds", world=2, runs=runs, **problem):
        assert process.code == 0, process.err
        for found, rounds in zip(process.result, LINEAR, strict=True):
            assert found == [pytest.approx(state, rel=1e-14) for state in rounds.states]


def by_hand(problem, method, weighting):
    """Return x after every round of FedExP or FedCM, with full gradients: a loop without fedac.

    FedExP, arXiv 2301.09604: with Delta_m = x - y_m, the server steps by max(1, sum p_m
    |Delta_m|^2 / (2 (|mean Delta|^2 + eps))). FedCM, arXiv 2106.10874: clients step along
    a g + (1-a) Delta; then Delta is their mean move over eta K.
    """
    _, X, y, x = problem
    K, a, eps, Delta = 5, 0.2, 1e-3, np.zeros(DIM)
    sizes = np.bincount(OWNERS)
    p = sizes / sizes.sum() if weighting == "examples" else np.full(WORLD, 1 / WORLD)
    points, steps = [], []
    for _ in range(ROUNDS):
        moves = []
        for m in range(WORLD):
            mine = np.flatnonzero(m == OWNERS)
            rows, labels, w = X[mine], y[mine], x.copy()
            for _ in range(K):
                wrong = 1 / (1 + np.exp(labels * (rows @ w)))
                g = L2 * w - (wrong * labels) @ rows / len(labels)
                w -= ETA * (a * g + (1 - a) * Delta if method == "fedcm(0.2)" else g)
            moves.append(x - w)
        mean = p @ np.array(moves)
        if method == "fedcm(0.2)":
            Delta, gamma = mean / (ETA * K), 1.0
        else:
            gamma = max(1.0, p @ np.square(moves).sum(1) / (2 * (mean @ mean + eps)))
        x = x - gamma * mean
        points.append(x)
        steps.append(gamma)
    assert method == "fedcm(0.2)" or max(steps) > 1.05  # else it is FedAvg
    return np.array(points)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("method", ["fedexp", "fedcm(0.2)"])
def test_processes_follow_a_plain_loop(processes, problem, tmp_path, method, weighting) -> None:
    _, X, y, start = problem
    np.savez(tmp_path / "problem.npz", X=X, y=y, start=start, owners=OWNERS)
    this = {"algorithm": method, "weighting": weighting, "batch": "full", "eta": ETA}
    this |= {"K": 5, "T": 5 * ROUNDS, "mu": L2, "l2": L2, "seed": SEED}
    wanted = by_hand(problem, method, weighting)
    for process in processes("logistic", problem=str(tmp_path / "problem.npz"), runs=[this]):
        assert process.code == 0, process.err
        np.testing.assert_allclose(process.result[0]["outputs"], wanted, rtol=0, atol=1e-12)


def test_led_reaches_the_pooled_optimum_with_steps_of_its_own(processes, problem, tmp_path) -> None:
    F, X, y, start = problem
    np.savez(tmp_path / "problem.npz", X=X, y=y, start=start, owners=OWNERS)
    common = {"batch": "full", "eta": ETA, "mu": L2, "l2": L2, "seed": SEED, "K": 7, "T": 0}
    runs = [
        common | {"algorithm": name, "weighting": "examples", "taken": [OWN] * 400}
        for name in ("led", "fedavg")
    ]
    for process in processes("logistic", problem=str(tmp_path / "problem.npz"), runs=runs):
        assert process.code == 0, process.err
        led, fedavg = (
            np.abs(F.gradient(run["outputs"][-1].numpy())).max() for run in process.result
        )
        assert led < 1e-9 < 1e-3 < fedavg
