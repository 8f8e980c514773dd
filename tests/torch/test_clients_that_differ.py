# SPDX-License-Identifier: Apache-2.0
"""Real processes with data of their own follow the simulator's clients."""

import itertools

import numpy as np
import pytest

from fedac import Clients, Decay, LogisticRegression, Schedule, simulate

pytestmark = pytest.mark.slow

OWNERS = np.repeat([2, 0, 3, 1], [1, 6, 13, 25])  # rank 2 has one row, rank 1 has 25
L2, SEED, K, T = 0.05, 5, 8, 32
FALLING = ["inverse(3)", "halve(2)"]
LOCAL = ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg", "fedavg-weighted"]
BATCHES = [1, 4, "full"]

# By name: what `simulate` gets besides the problem, and where it is not the same, what a rank gets.
RUNS = {
    f"{name}, batch {batch}, {weighting}": {
        "algorithm": name, "eta": 0.3, "batch": batch, "weighting": weighting
    }
    for name, batch, weighting in itertools.product(LOCAL, BATCHES, ["examples", "uniform"])
} | {
    f"{name}, {by}": {
        "algorithm": name, "eta": [0.3, by], "batch": 4, "weighting": "examples"
    }
    for name, by in itertools.product(LOCAL[:-1], FALLING)
}  # fmt: skip
IRREGULAR = [1, 4, 12, 18, 25, 32]
RUNS["irregular"] = RUNS["fedac-i, inverse(3)"] | {"at": IRREGULAR}
# A minibatch algorithm is a local one with a single step on all rows of a round.
MINIBATCH = {"mb-sgd": "fedavg", "mb-ac-sgd": "fedac-vanilla"}


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    y = np.where(np.arange(len(OWNERS)) % 7 < 3, 1.0, -1.0)
    X = rng.standard_normal((len(OWNERS), 6)) + OWNERS[:, None] * y[:, None] / 2
    return LogisticRegression(X, y, l2=L2), X, y, rng.standard_normal(6)


@pytest.fixture(scope="module")
def in_processes(processes, problem, tmp_path_factory):
    """Return the states of every rank after every synchronization, by run."""
    folder = tmp_path_factory.mktemp("problem")
    _, X, y, start = problem
    np.savez(folder / "problem.npz", X=X, y=y, start=start, owners=OWNERS)
    common = {"K": K, "T": T, "mu": L2, "l2": L2, "seed": SEED}
    runs = {name: common | run for name, run in RUNS.items()}
    for name in ("fedac-i, inverse(3)", "fedavg, halve(2)", "irregular"):
        resume = {"after": 12 if name == "irregular" else 16, "path": f"{folder}/{name[:6]}.pt"}
        runs[f"{name}, resumed"] = runs[name] | {"resume": resume}
    for name, local in MINIBATCH.items():
        few = {"K": 1, "T": T // K, "batch": 2 * K}
        runs[name] = common | few | {"algorithm": local, "eta": 0.3, "weighting": "examples"}
    ended = processes("logistic", problem=str(folder / "problem.npz"), runs=[*runs.values()])
    for process in ended:
        assert process.code == 0, process.err
    by_run = zip(*(process.result for process in ended), strict=True)
    return dict(zip(runs, ([rank["states"] for rank in run] for run in by_run), strict=True))


def simulated(problem, algorithm, *, eta, batch, weighting, at=None):
    """Return the simulator's states after every synchronization."""
    F, _, _, start = problem
    states = []
    simulate(
        F, algorithm, clients=Clients(OWNERS), batch=batch, weighting=weighting,
        K=Schedule.at(at) if at else K, T=T, eta=Decay(*eta) if isinstance(eta, list) else eta,
        mu=L2, seed=SEED, start=start, record_every=1, engine="reference",
        callbacks=[lambda record: states.append(np.stack(record.state))],
    )  # fmt: skip
    return np.stack(states[1:])


def assert_equal_states(ranks, wanted) -> None:
    for states in ranks:
        np.testing.assert_allclose(states, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_processes_reproduce_the_simulators_clients(in_processes, problem, name: str) -> None:
    assert_equal_states(in_processes[name], simulated(problem, **RUNS[name]))


def test_weights_and_decays_matter(in_processes) -> None:
    for one, other in [
        ("fedac-i, batch 4, examples", "fedac-i, batch 4, uniform"),
        ("fedac-i, batch 4, examples", "fedac-i, inverse(3)"),
        ("irregular", "fedac-i, inverse(3)"),
    ]:
        assert abs(in_processes[one][0][-1] - in_processes[other][0][-1]).max() > 1e-3


@pytest.mark.parametrize("name", ["fedac-i, inverse(3)", "fedavg, halve(2)", "irregular"])
def test_a_resumed_run_falls_as_the_whole_one(in_processes, name: str) -> None:
    for whole, resumed in zip(in_processes[name], in_processes[f"{name}, resumed"], strict=True):
        np.testing.assert_array_equal(whole, resumed)


@pytest.mark.parametrize("name", MINIBATCH)
def test_a_minibatch_algorithm_is_a_single_local_step(in_processes, problem, name: str) -> None:
    wanted = simulated(problem, name, eta=0.3, batch=2, weighting="examples")
    assert_equal_states(in_processes[name], wanted)
