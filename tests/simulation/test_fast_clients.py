# SPDX-License-Identifier: Apache-2.0
"""The fast engine against the reference engine where clients differ."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedac import Decay, LeastSquares, LogisticRegression, Result, simulate, split
from fedac.objectives import Augmented, Objective

ALGORITHMS = [
    "fedac-i", "fedac-ii", "fedac-vanilla", "fedavg", "fedavg-weighted", "mb-sgd", "mb-ac-sgd",
]  # fmt: skip
# Always as many of each kind: other widths would have to be compiled. The output of fedavg-weighted
# forbids step sizes that fall.
PAIRS = [["fedac-i", "fedavg"], ["fedac-ii", "mb-sgd"], ["fedac-vanilla", "mb-ac-sgd"]]


def make_objective(kind: str, n: int, d: int, seed: int = 0) -> Objective:
    """Return logistic regression on ones or other numbers, or least squares on dense rows."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, -1.0, 1.0)
    if kind == "dense":
        return LeastSquares(rng.standard_normal((n, d)) / d**0.5, y, l2=0.01)
    # SciPy before 1.15 knows no `rng`; later ones still take `random_state`.
    X = sp.random_array((n, d), density=min(1.0, 6 / d), format="csr", random_state=rng)
    if kind == "ones":
        X.data[:] = 1.0
    F = LogisticRegression(X, y, l2=0.01)
    return Augmented(F, lam=0.02, center=np.ones(d)) if kind == "centred" else F


def assert_same(objective: Objective, algorithms: list[str], rel: float = 1e-9, **options) -> None:
    results: list[Result] = [
        simulate(objective, algorithms, engine=engine, precision="float64", **options)
        for engine in ("reference", "fast")
    ]
    reference, fast = results
    assert reference.gradient_queries == fast.gradient_queries
    for slow, quick in zip(reference.runs, fast.runs, strict=True):
        assert quick.loss == pytest.approx(slow.loss, rel=rel)
        assert quick.w == pytest.approx(slow.w, rel=rel, abs=rel * np.abs(slow.w).max())


# A large state, a small one, and one whose few rows are drawn many times in a round.
SHAPES = {
    "large": (200, 900),
    "small": (200, 20),
    "few rows": (40, 600),
    "few rows, small": (40, 9),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"),
    [*product(["ones", "dense"], SHAPES), ("numbers", "large"), ("centred", "small")],
)
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_every_split_participation_and_batch(kind, shape, weighting) -> None:
    n, d = SHAPES[shape]
    objective = make_objective(kind, n, d)
    labels = getattr(objective, "base", objective).y
    splits = ("iid", "label", "dirichlet(0.2)", "power(1.5)", None)
    if d > 100:  # the reference engine is slow there
        splits = ("dirichlet(0.2)",)
    for by, participation, batch in product(splits, (0.1, 0.5, 1), (1, 4, "full")):
        # Workers all count the same: weighting needs clients.
        who = {"clients": split(labels, 20, by), "weighting": weighting} if by else {"M": 20}
        assert_same(
            objective, ALGORITHMS, K=5, T=10, eta=0.3, participation=participation, batch=batch,
            **who,
        )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_federations_at_random(data) -> None:
    n, d = data.draw(st.integers(1, 60)), data.draw(st.sampled_from([1, 7, 130]))
    kind = data.draw(st.sampled_from(["ones", "numbers", "centred", "dense"]))
    owners = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    M, K = len(set(owners)), data.draw(st.sampled_from([1, 2, 7, 70]))
    decay = data.draw(st.sampled_from([None, "1/r", "halve(1)"]))
    assert_same(
        make_objective(kind, n, d, seed=data.draw(st.integers(0, 99))),
        data.draw(st.sampled_from(PAIRS)),
        clients=owners,
        participation=data.draw(st.one_of(st.just(1.0), st.floats(0.01, 1), st.integers(1, M))),
        batch=data.draw(st.sampled_from([1, 2, 5, 80, "full"])),
        weighting=data.draw(st.sampled_from(["examples", "uniform"])),
        K=K,
        T=2 * K,
        eta=[0.2, Decay(0.2, decay) if decay else 0.1],
        seed=data.draw(st.integers(0, 2**64 - 1)),
    )


@pytest.mark.parametrize("kind", ["ones", "dense"])
@pytest.mark.parametrize("batch", [1, 3, "full"])
def test_single_precision_is_close(kind, batch) -> None:
    objective = make_objective(kind, 200, 60)
    options = {"clients": split(objective, 30, "dirichlet(0.3)"), "K": 20, "T": 60, "eta": 0.3}
    exact, single = (
        simulate(objective, "fedac-i", precision=precision, batch=batch, **options).runs[0]
        for precision in ("float64", "float32")
    )
    assert single.loss == pytest.approx(exact.loss, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ones", "dense"])
@pytest.mark.parametrize("batch", [1, 4, "full"])
@pytest.mark.parametrize("participation", [0.3, 1])
def test_results_do_not_depend_on_threads(kind, batch, participation) -> None:
    objective = make_objective(kind, 3000, 50)
    options = {"clients": split(objective, 500, "power(1)"), "K": 16, "T": 48, "eta": [0.3, 0.1]}
    results = [
        simulate(
            objective, ["fedac-i", "fedavg", "mb-sgd"], batch=batch, participation=participation,
            threads=threads, **options,
        )
        for threads in (1, 2, 3)
    ]  # fmt: skip
    for runs in zip(*(result.runs for result in results), strict=True):
        assert len({run.loss.tobytes() for run in runs}) == 1
        assert len({run.w.tobytes() for run in runs}) == 1
