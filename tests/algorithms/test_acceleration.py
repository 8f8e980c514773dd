# SPDX-License-Identifier: Apache-2.0
"""FedAc is FedAvg where its coupling says gamma = eta, and only there."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedac.algorithms import ALGORITHMS, FEDAC_I, ClientWork, RoundInfo, fedac, get
from fedac.algorithms.checks import is_fedavg, not_accelerated
from fedac.algorithms.hyperparameters import largest_mu
from fedac.algorithms.minibatch import MB_AC_SGD, on_clients

ETA, K, ROUNDS, CLIENTS = 0.125, 4, 5, 3
TWINS = {
    "fedac-i": "fedavg",
    "fedac-ii": "fedavg",
    "fedac-i+local": "fedavg",
    "fedac-i+cv": "fedavg+cv",
    "fedac-i+cv+nesterov(1,0.3)": "fedavg+cv+nesterov(1,0.3)",
    "fedac-ii+local+slowmo": "fedavg+slowmo",
    "fedac-i+adam": "fedavg+adam",
    "fedac-i+accelerated": "fedavg+accelerated",
}


def trajectory(name: str, mu: float, steps: int = K) -> np.ndarray:
    """Return the outputs of a few rounds on a quadratic that differs between clients."""
    algorithm = get(name)
    hp = algorithm.couple(eta=ETA, mu=mu, K=steps)
    centres = np.random.default_rng(1).normal(size=(CLIENTS, 2))
    curvatures = np.array([1.0, 0.25])
    sequences, server = algorithm.split(algorithm.start(np.array([3.0, -2.0])))
    memories = [algorithm.begin_memory(sequences) for _ in range(CLIENTS)]
    outputs = []
    for r in range(ROUNDS):
        messages = []
        for m, centre in enumerate(centres):
            local = algorithm.enter(sequences, memories[m], hp)
            for _ in range(steps):
                w_md = algorithm.query(local, hp)
                local = algorithm.update(local, w_md, curvatures * (w_md - centre), hp)
            message, memories[m] = algorithm.leave(
                local, sequences, memories[m], hp, ClientWork(steps=steps)
            )
            messages.append(message)
        mean = tuple(sum(vectors) / CLIENTS for vectors in zip(*messages, strict=True))
        sequences, server = algorithm.serve(mean, sequences, server, hp, RoundInfo(number=r))
        outputs.append(algorithm.output((*sequences, *server), hp, (r + 1) * steps))
    return np.array(outputs)


@pytest.mark.parametrize(("name", "twin"), TWINS.items())
@pytest.mark.parametrize("above", [1.0, 1.9])  # FedAc-II needs eta mu < 1
def test_it_is_fedavg_from_the_bound_on(name: str, twin: str, above: float) -> None:
    mu = above / (ETA * K)
    assert is_fedavg(get(name), eta=ETA, mu=mu, K=K)
    assert trajectory(name, mu) == pytest.approx(trajectory(twin, mu), rel=1e-12)


@pytest.mark.parametrize(("name", "twin"), TWINS.items())
def test_it_is_not_fedavg_just_below(name: str, twin: str) -> None:
    mu = 0.999 / (ETA * K)
    assert not is_fedavg(get(name), eta=ETA, mu=mu, K=K)
    assert trajectory(name, mu) != pytest.approx(trajectory(twin, mu), rel=1e-6)


@pytest.mark.parametrize("product", [0.99, 1.0, 1.01])
def test_vanilla_fedac_is_fedavg_at_one_step_size_only(product: float) -> None:
    mu = product / ETA
    same = product == 1
    assert is_fedavg(get("fedac-vanilla"), eta=ETA, mu=mu, K=K) is same
    close = pytest.approx(trajectory("fedavg", mu), rel=1e-6)
    assert (trajectory("fedac-vanilla", mu) == close) is same


def test_one_local_step_makes_no_exception() -> None:
    assert is_fedavg(FEDAC_I, eta=ETA, mu=1 / ETA, K=1)
    close = pytest.approx(trajectory("fedavg", 1 / ETA, steps=1), rel=1e-12)
    assert trajectory("fedac-i", 1 / ETA, steps=1) == close


@pytest.mark.parametrize(
    "algorithm",
    [
        *(a for name, a in ALGORITHMS.items() if not name.startswith("fedac-")),
        *map(get, ("momentum", "gpa(0.5,0.5)", "prox(0.1)", "scaffold", "diloco")),
        fedac(gamma=1.0, alpha=2.0, beta=3.0),  # whoever chooses gamma means it
        on_clients(MB_AC_SGD),
    ],
    ids=repr,
)
def test_nothing_to_accelerate(algorithm) -> None:
    assert not is_fedavg(algorithm, eta=1.0, mu=1.0, K=64)


def test_what_a_record_does_counts_not_its_coupling() -> None:
    def twice(state, w_md, g, hp):
        w_ag, w = FEDAC_I.update(state, w_md, g, hp)
        return w_ag, w - hp.eta * g

    def needs_arrays(state, w_md, g, hp):
        return FEDAC_I.update(state, w_md, g.clip(-1, 1), hp)

    assert is_fedavg(FEDAC_I, eta=1.0, mu=1.0, K=64)
    assert not is_fedavg(replace(FEDAC_I, update=twice), eta=1.0, mu=1.0, K=64)
    assert not is_fedavg(replace(FEDAC_I, update=needs_arrays), eta=1.0, mu=1.0, K=64)


def test_several_runs_make_one_sentence() -> None:
    runs = [(get(name), eta) for name in ("fedac-i", "fedac-ii+local") for eta in (0.5, 0.01, 0.25)]
    assert not_accelerated(runs, mu=0.1, K=50) == (
        "FedAc-I, FedAc-II + local degenerate to FedAvg with eta=0.25, 0.5, mu=0.1, K=50, because "
        "eta mu K >= 1; to accelerate, use mu < 1/(eta K) = 0.04"
    )
    many = [(FEDAC_I, 1.0 + i) for i in range(9)]
    assert "with eta=1, 2, 3, 4, ..., mu=0.1" in not_accelerated(many, mu=0.1, K=50)


@settings(deadline=None)
@given(
    st.sampled_from(["fedac-i", "fedac-i+cv", "fedac-vanilla"]),
    st.floats(1e-6, 1e3),
    st.floats(1e-6, 1e3),
    st.integers(1, 10**6),
)
@example("fedac-vanilla", 2.0, 0.5, 64)
def test_the_advice_accelerates(name: str, eta: float, mu: float, K: int) -> None:
    algorithm = get(name)
    text = not_accelerated([(algorithm, eta)], mu=mu, K=K)
    assert bool(text) == is_fedavg(algorithm, eta=eta, mu=mu, K=K)
    bound = largest_mu(eta=eta, K=K)
    assert not text or text.endswith(f"= {bound:.3g}")
    assert not is_fedavg(algorithm, eta=eta, mu=bound * (1 - 1e-6), K=K)
    assert is_fedavg(FEDAC_I, eta=eta, mu=bound, K=K)
