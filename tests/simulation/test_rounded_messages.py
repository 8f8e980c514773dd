# SPDX-License-Identifier: Apache-2.0
"""Messages that are rounded on the wire: both engines, and what rounding does to a run."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedac import Decay, LeastSquares, LogisticRegression, Result, simulate, split
from fedac.algorithms import MB_AC_SGD, MB_SGD
from fedac.algorithms.minibatch import on_clients
from fedac.errors import InputError
from fedac.federation.compression import WIRES, keys_of, rounded
from fedac.objectives import Objective

ALGORITHMS = [
    "fedavg", "fedac-i", "scaffold", "fedac-i+cv+nesterov(1,0.3)", "fedac-i+local", "fedadam(0.1)",
    "fedprox(0.1)", "mb-sgd", "mb-ac-sgd",
]  # fmt: skip
N = 300


def make_objective(kind: str, d: int) -> Objective:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(N) < 0.4, -1.0, 1.0)
    if kind == "dense":
        return LeastSquares(rng.standard_normal((N, d)) / d**0.5, y, l2=0.01)
    # SciPy before 1.15 knows no `rng`; later ones still take `random_state`.
    X = sp.random_array((N, d), density=min(1.0, 6 / d), format="csr", random_state=rng)
    return LogisticRegression(X, y, l2=0.01)


def both(objective: Objective, algorithms: list[str], **options) -> tuple[Result, Result]:
    reference, fast = (
        simulate(objective, algorithms, engine=engine, precision="float64", eta=[0.1, 0.3],
                 **options)
        for engine in ("reference", "fast")
    )  # fmt: skip
    return reference, fast


def assert_equal(first: Result, second: Result) -> None:
    for one, other in zip(first.runs, second.runs, strict=True):
        scale = np.abs(one.w).max()
        assert other.w == pytest.approx(one.w, rel=1e-9, abs=1e-9 * scale), one.algorithm


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
@pytest.mark.parametrize(
    ("kind", "d", "options"),
    [
        ("sparse", 300, {"participation": 0.4, "K": 4, "T": 24}),  # two blocks of numbers
        ("sparse", 20, {"weighting": "uniform", "K": 1, "T": 6, "batch": 2}),
        ("dense", 20, {"K": 4, "T": 16, "batch": "full"}),
    ],
)
def test_both_engines_round_alike(wire, kind, d, options) -> None:
    objective = make_objective(kind, d)
    clients = np.minimum(np.random.default_rng(3).exponential(4, N), 12).astype(int)
    names = [*ALGORITHMS] if "participation" in options else [*ALGORITHMS, "scaffnew"]
    reference, fast = both(objective, names, clients=clients, wire=wire, **options)
    assert_equal(reference, fast)


def test_workers_and_falling_step_sizes() -> None:
    objective = make_objective("sparse", 20)
    options = {"M": 5, "K": 4, "T": 16, "wire": "int8", "precision": "float64"}
    results = [
        simulate(objective, ["fedac-i", "scaffold", "mb-sgd"], eta=Decay(0.3, "1/sqrt(r)"),
                 engine=engine, **options)
        for engine in ("reference", "fast")
    ]  # fmt: skip
    assert_equal(*results)


def test_results_do_not_depend_on_threads() -> None:
    objective = make_objective("sparse", 300)
    results = [
        simulate(objective, ["fedavg", "scaffold"], M=70, K=4, T=16, eta=0.3, wire="int8",
                 threads=threads)
        for threads in (1, 2, 3)
    ]  # fmt: skip
    for other in results[1:]:
        for one, two in zip(results[0].runs, other.runs, strict=True):
            assert one.w.tobytes() == two.w.tobytes()


def test_a_round_by_hand() -> None:
    """Two clients of one row, FedAvg: each sends how far it moved, rounded."""
    objective = LeastSquares([[1.0, 2.0], [3.0, 1.0]], [1.0, -1.0])
    start, eta, seed = np.array([0.5, 0.25]), 0.1, 6
    result = simulate(objective, "fedavg", clients=[0, 1], K=1, T=2, eta=eta, batch="full",
                      start=start, seed=seed, wire="int8", engine="reference")  # fmt: skip
    w = start
    for r in range(2):
        sent = []
        for m, (x, y) in enumerate([([1.0, 2.0], 1.0), ([3.0, 1.0], -1.0)]):
            moved = -eta * (np.dot(x, w) - y) * np.array(x)
            sent.append(w + rounded("int8", moved, keys_of(seed, m, r, 0)))
        w = (sent[0] + sent[1]) / 2
    assert result.best.w == pytest.approx(w, rel=1e-14)


@pytest.mark.parametrize("algorithm", [MB_SGD, MB_AC_SGD])
def test_a_minibatch_algorithm_on_its_clients_computes_the_same(algorithm) -> None:
    objective = make_objective("sparse", 20)
    results = [
        simulate(objective, each, M=5, K=4, T=32, eta=0.3, mu=0.05, engine="reference")
        for each in (algorithm, on_clients(algorithm))
    ]
    assert_equal(*results)


@pytest.mark.slow
def test_control_variates_still_reach_the_optimum() -> None:
    """The server's c stays the mean of all c_m, although both are rounded."""
    d = 20
    objective = make_objective("dense", d)
    clients = split(objective.y, clients=6, by="label")
    gaps = {}
    for name in ("fedavg", "scaffold", "scaffnew", "fedac-i+cv"):
        result = simulate(objective, name, clients=clients, K=8, T=8 * 600, eta=0.2, batch="full",
                          wire="int8", precision="float64")  # fmt: skip
        gaps[name] = result.best.final_loss - result.f_star
    assert gaps["fedavg"] > 1e-6  # as without rounding
    for name in ("scaffold", "scaffnew", "fedac-i+cv"):
        assert gaps[name] < 1e-13


def test_less_is_sent() -> None:
    objective = make_objective("sparse", 300)
    sent = {
        wire: simulate(objective, "fedac-i", M=2, K=2, T=4, eta=0.1, wire=wire, engine="reference")
        .runs[0].megabytes_per_worker
        for wire in WIRES
    }  # fmt: skip
    rounds, sequences = 2, 2
    assert sent["float32"] == pytest.approx(rounds * sequences * 1200 / 1e6)
    assert sent["bfloat16"] == pytest.approx(rounds * sequences * 600 / 1e6)
    assert sent["int8"] == pytest.approx(rounds * sequences * (300 + 8) / 1e6)


def test_bad_input() -> None:
    objective = make_objective("sparse", 20)
    with pytest.raises(InputError, match="unknown wire format 'int4'"):
        simulate(objective, "fedavg", M=2, K=2, T=4, eta=0.1, wire="int4")
    with pytest.raises(InputError, match="full batches all workers are"):
        simulate(objective, "fedavg", M=2, K=2, T=4, eta=0.1, wire="int8", batch="full")
