# SPDX-License-Identifier: Apache-2.0
"""Clients that differ: what they draw, who takes part, how they are averaged, where they end."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chisquare

from fedac import Clients, Decay, fedac, optimum, simulate, split
from fedac.errors import ColumnsWarning, InputError
from fedac.federation.federation import Federation
from fedac.federation.sampling import participants, sample_batch, sample_index
from fedac.objectives import HeldOut, LeastSquares, LogisticRegression, NoisyQuadratic

ENGINES = ["reference", "fast"]
# Two clients with one and three rows: their losses are (w - 0)^2/2 and (w - 6)^2/2 + 3.
TWO = LeastSquares(np.ones((4, 1)), [0.0, 3.0, 6.0, 9.0])
SIZES = ["one", "three", "three", "three"]
RNG = np.random.default_rng(5)
X = RNG.standard_normal((30, 4))
QUADRATIC = LeastSquares(X, X @ RNG.standard_normal(4) + RNG.standard_normal(30), l2=0.1)
UNEQUAL = np.repeat([0, 1, 2], [4, 10, 16])
LOGISTIC = LogisticRegression(sp.csr_array(np.abs(X) * (np.abs(X) > 0.5)), np.sign(X[:, 0]), l2=0.1)
exactly = {"precision": "float64", "threads": 1}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("algorithm", "weighting", "expected"),
    [
        # FedAvg with eta = 1/2 halves the distance at each of two steps: 2 and 6.5.
        ("fedavg", "examples", {"w": 2 / 4 + 6.5 * 3 / 4}),
        ("fedavg", "uniform", {"w": (2 + 6.5) / 2}),
        # One step from 8 along the mean gradient: 8 and 2.
        ("mb-sgd", "examples", {"w": 8 - (8 + 3 * 2) / 4 / 2}),
        ("mb-sgd", "uniform", {"w": 8 - (8 + 2) / 2 / 2}),
        # The first client: (w_ag, w) = (4, 0), then w_md = 2 and (1, -1).
        # The second: (7, 6), then w_md = 6.5 and (6.25, 5.75).
        ("fedac", "examples", {"w_ag": 1 / 4 + 6.25 * 3 / 4, "w": -1 / 4 + 5.75 * 3 / 4}),
        ("fedac", "uniform", {"w_ag": (1 + 6.25) / 2, "w": (-1 + 5.75) / 2}),
    ],
)
def test_a_round_of_two_clients_by_hand(engine, algorithm, weighting, expected) -> None:
    chosen = fedac(gamma=1.0, alpha=2.0, beta=2.0) if algorithm == "fedac" else algorithm
    result = simulate(
        TWO, chosen, clients=SIZES, batch="full", K=2, T=2, eta=0.5, start=[8.0], mu=1.0,
        weighting=weighting, engine=engine, **exactly,
    )  # fmt: skip
    state = {name: float(value[0]) for name, value in result.runs[0].state.items()}
    assert state == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("objective", [QUADRATIC, LOGISTIC], ids=["quadratic", "logistic"])
@pytest.mark.parametrize("name", ["fedavg", "mb-sgd"])
def test_full_gradients_of_everybody_are_gradient_descent(engine, objective, name) -> None:
    start = np.linspace(-1, 1, 4)
    result = simulate(
        objective, name, clients=UNEQUAL, batch="full", K=1, T=20, eta=0.2, start=start,
        engine=engine, **exactly,
    )  # fmt: skip
    w = start
    for _ in range(20):
        w = w - 0.2 * objective.gradient(w)
    assert result.runs[0].w == pytest.approx(w, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_full_gradients_make_a_run_deterministic(engine) -> None:
    settings = {"clients": UNEQUAL, "batch": "full", "K": 3, "T": 9, "eta": 0.2, "engine": engine}
    one, other = (simulate(LOGISTIC, "fedac-i", seed=seed, **settings) for seed in (1, 2))
    assert (one.runs[0].loss == other.runs[0].loss).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [1, 3])
def test_one_client_is_sequential_sgd(engine, batch) -> None:
    start = np.linspace(-1, 1, 4)
    result = simulate(
        QUADRATIC, "fedavg", clients=np.zeros(30), K=5, T=15, eta=0.1, start=start, seed=7,
        batch=batch, engine=engine, **exactly,
    )  # fmt: skip
    w = start
    for step in range(15):
        rows = sample_batch(7, 0, step, 30, batch)
        w = w - 0.1 * np.mean([QUADRATIC.stochastic_gradient(w, row) for row in rows], axis=0)
    assert result.M == 1
    assert result.runs[0].w == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_clients_full_gradients_are_those_of_all_rows(engine) -> None:
    settings = {"K": 4, "T": 12, "eta": 0.2, "batch": "full", "engine": engine, **exactly}
    many = simulate(LOGISTIC, "fedac-i", M=7, **settings).runs[0]
    one = simulate(LOGISTIC, "fedac-i", clients=np.zeros(30), **settings).runs[0]
    assert many.w == pytest.approx(one.w, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_the_fixed_point_of_fedavg_is_where_algebra_says(engine, weighting) -> None:
    """K gradient steps contract client m to its own minimum c_m by (I - eta H_m)^K.

    So the average stands still where sum p_m B_m (w - c_m) = 0 with B_m = I - (I - eta H_m)^K.
    """
    eta, K, shares = 0.1, 6, np.array([4, 10, 16]) / 30
    p = shares if weighting == "examples" else np.full(3, 1 / 3)
    left, right = np.zeros((4, 4)), np.zeros(4)
    for m, weight in enumerate(p):
        rows = m == UNEQUAL
        H = X[rows].T @ X[rows] / rows.sum() + 0.1 * np.eye(4)
        c = np.linalg.solve(H, X[rows].T @ QUADRATIC.y[rows] / rows.sum())
        B = np.eye(4) - np.linalg.matrix_power(np.eye(4) - eta * H, K)
        left, right = left + weight * B, right + weight * B @ c
    expected = np.linalg.solve(left, right)
    result = simulate(
        QUADRATIC, "fedavg", clients=UNEQUAL, K=K, T=K * 400, eta=eta, batch="full",
        weighting=weighting, engine=engine, **exactly,
    )  # fmt: skip
    assert result.runs[0].w == pytest.approx(expected, rel=1e-10)
    assert np.linalg.norm(result.optimum.w - expected) > 1e-2


@pytest.mark.slow
def test_clients_draw_their_own_rows_uniformly() -> None:
    """A false alarm has probability 1e-6; the seed is fixed."""
    clients, steps = Clients(UNEQUAL), 4000
    everyone = Federation(M=3, n=30, seed=11, clients=clients, batch=2)
    # At the origin the gradient of row i is -y_i x_i: with unit rows it shows which row it was.
    unit = LeastSquares(np.eye(30), np.ones(30))
    counts = np.zeros((3, 30))
    for step in range(steps):
        counts -= 2 * everyone.gradients(unit, np.zeros((3, 30)), np.arange(3), step)
    for m in range(3):
        own = counts[m, clients.rows_of(m)]
        assert counts[m].sum() == own.sum() == 2 * steps
        assert chisquare(own).pvalue > 1e-6 / 4


def test_batches_of_one_row_are_the_draws_of_before() -> None:
    workers = np.arange(50)
    batches = sample_batch(3, workers, 17, 1000, 1)
    assert (batches[:, 0] == sample_index(3, workers, 17, 1000)).all()


def test_the_rows_of_a_batch_are_the_next_ones_of_a_stream() -> None:
    stream = sample_index(3, 5, np.arange(12), 1000)
    batches = [sample_batch(3, 5, step, 1000, 4) for step in range(3)]
    assert (np.concatenate(batches) == stream).all()


@pytest.mark.slow
def test_who_takes_part_is_uniform_and_without_replacement() -> None:
    """A false alarm has probability 1e-6; the seed is fixed."""
    rounds, sets = 21_000, {}
    for r in range(rounds):
        members = participants(9, r, N=7, count=2)
        assert members[0] < members[1]
        sets[tuple(members)] = sets.get(tuple(members), 0) + 1
    assert len(sets) == math.comb(7, 2)
    assert chisquare(list(sets.values())).pvalue > 1e-6


def test_who_takes_part_does_not_depend_on_what_is_drawn() -> None:
    assert participants(1, 5, N=1000, count=1000).tolist() == list(range(1000))
    assert len(set(participants(1, 5, N=10**9, count=1000).tolist())) == 1000
    assert (participants(1, 5, 100, 10) == participants(1, 5, 100, 10)).all()
    assert (participants(1, 5, 100, 10) != participants(2, 5, 100, 10)).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_only_members_move_the_average(engine) -> None:
    """Each client pulls towards its own number: the average of a round shows who was there."""
    own = LeastSquares(np.ones((8, 1)), 2.0 ** np.arange(8))
    result = simulate(
        own, "fedavg", clients=np.arange(8), participation=3, K=1, T=1, eta=1.0, start=[0.0],
        seed=4, engine=engine, **exactly,
    )  # fmt: skip
    members = participants(4, 0, N=8, count=3)
    assert result.runs[0].w[0] == pytest.approx((2.0**members).mean(), rel=1e-14)
    assert result.gradient_queries == 3
    assert result.runs[0].megabytes_per_worker == pytest.approx(4e-6 * 3 / 8)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_falling_step_size_by_hand(engine) -> None:
    """From 8 towards 0: two steps of 1/2, then two of 1/4."""
    F = LeastSquares([[1.0]], [0.0])
    result = simulate(
        F, "fedavg", M=2, K=2, T=4, eta=Decay(0.5, "1/r"), start=[8.0], engine=engine, **exactly
    )
    run = result.runs[0]
    assert run.w[0] == pytest.approx(8 * 0.5**2 * 0.75**2, rel=1e-14)
    assert (run.eta, run.decay) == (0.5, "1/r")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedac-i", "fedac-ii", "fedavg", "mb-ac-sgd"])
def test_each_round_of_a_decay_is_a_round_with_its_step_size(engine, name) -> None:
    decay, state = Decay(0.4, "1/sqrt(r)"), np.linspace(-1, 1, 4)
    settings = {"clients": UNEQUAL, "K": 3, "batch": "full", "engine": engine, **exactly}
    whole = simulate(LOGISTIC, name, T=6, eta=decay, start=state, record_every=1, **settings)
    first = simulate(LOGISTIC, name, T=3, eta=decay.at(0), start=state, **settings)
    assert whole.runs[0].loss[1] == first.runs[0].loss[-1]
    constant = simulate(LOGISTIC, name, T=6, eta=0.4, start=state, **settings)
    assert whole.runs[0].loss[-1] != constant.runs[0].loss[-1]


def test_uniform_weighting_evaluates_the_mean_of_the_clients_losses() -> None:
    result = simulate(
        LOGISTIC, "fedavg", clients=UNEQUAL, weighting="uniform", K=2, T=4, eta=0.1,
        engine="reference",
    )  # fmt: skip
    losses = []
    for m in range(3):
        rows = np.flatnonzero(m == UNEQUAL)
        own = LogisticRegression(LOGISTIC.X[rows], LOGISTIC.y[rows], l2=0.1)
        losses.append(own.value(result.runs[0].w))
    assert result.runs[0].loss[-1] == pytest.approx(np.mean(losses), rel=1e-13)
    assert result.f_star == optimum(result.objective).value < result.runs[0].loss[-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_test_set_is_evaluated_at_every_record(engine) -> None:
    rows, labels = LOGISTIC.X[:10].toarray(), LOGISTIC.y[:10]
    result = simulate(
        LOGISTIC, "fedac-i", M=4, K=2, T=8, eta=0.1, record_every=2, test=(rows, labels),
        engine=engine, **exactly,
    )  # fmt: skip
    run = result.runs[0]
    z = labels * (rows @ run.w)
    assert len(run.test_loss) == len(run.test_accuracy) == len(run.steps)
    assert run.test_loss[-1] == pytest.approx(np.log1p(np.exp(-z)).mean(), rel=1e-12)
    assert run.test_accuracy[-1] == np.mean(z > 0)
    assert {"test_loss", "test_accuracy"} <= set(result.to_frame().columns)


@pytest.mark.parametrize("columns", [2, 4, 6])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_test_set_may_have_other_columns(columns, intercept) -> None:
    F = LogisticRegression(sp.csr_array(X), np.sign(X[:, 1]), l2=0.1, intercept=intercept)
    rows, w = RNG.standard_normal((9, columns)), RNG.standard_normal(F.dim)
    labels = np.sign(rows[:, 0])
    shared = min(columns, 4)
    z = rows[:, :shared] @ w[:shared] + (w[4] if intercept else 0)
    with nullcontext() if columns <= 4 else pytest.warns(ColumnsWarning, match="6 columns"):
        there = HeldOut.of(F, sp.csr_array(rows), labels)
    found = there.evaluate(w)
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-labels * z)).mean(), rel=1e-12)
    assert found["accuracy"] == np.mean(labels * z > 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": [0, 1]}, "clients hold 2 rows, but the objective has 30"),
        ({"clients": UNEQUAL, "M": 4}, "there are 3 clients .given., not 4"),
        ({"clients": None}, "M is missing"),
        ({"clients": np.full(30, np.nan)}, "NaN"),
        ({"clients": UNEQUAL, "participation": 0}, "participation must be a finite number above 0"),
        ({"clients": UNEQUAL, "participation": 2.5}, "whole number"),
        ({"clients": UNEQUAL, "participation": 4}, "more than the 3 clients"),
        ({"clients": UNEQUAL, "batch": 0}, "batch must be a whole number, at least 1"),
        ({"clients": UNEQUAL, "batch": "all"}, "batch must be a whole number or 'full'"),
        ({"clients": UNEQUAL, "weighting": "size"}, "known: examples, uniform"),
        ({"M": 2, "eta": Decay(0.1, "1/r"), "algorithm": "fedavg-weighted"}, "constant step size"),
        ({"M": 2, "test": (np.ones((3, 4)), np.ones(2))}, "3 rows but labels of shape"),
        ({"M": 2, "test": (np.ones((3, 2)), np.ones(3))}, "2 columns, but the data has 4"),
        ({"M": 2, "test": (np.ones((3, 4)), np.full(3, 2.0))}, "the label 2.0 is not one of"),
        ({"M": 2, "test": 0.2}, r"a Dataset or a pair \(X, y\), got 0.2"),
        ({"clients": UNEQUAL, "batch": 10**20}, "batch must be at most 1000000, or 'full'"),
    ],
)
def test_bad_input(options, message) -> None:
    settings = {"algorithm": "fedavg", "K": 1, "T": 2, "eta": 0.1} | options
    with pytest.raises(InputError, match=message):
        simulate(LOGISTIC, **settings)


def test_objectives_without_rows_have_no_clients_with_rows() -> None:
    with pytest.raises(InputError, match="clients need rows"):
        simulate(NoisyQuadratic([1.0]), "fedavg", clients=[0, 1, 1, 1], K=1, T=1, eta=0.1)


@pytest.mark.parametrize("by", ["1/R", "halve", "halve(0)", "inverse(x)", "cosine(3)", 7])
def test_unknown_decays_are_refused(by) -> None:
    with pytest.raises(InputError, match="known: 1/r, 1/sqrt"):
        Decay(0.5, by)


def test_decays_by_hand() -> None:
    assert [Decay(1.0, "inverse(2)").at(r) for r in (0, 2, 6)] == [1.0, 0.5, 0.25]
    assert [Decay(1.0, "halve(2)").at(r) for r in range(5)] == [1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clients() -> None:
    import tracemalloc

    n = 200_000
    F = LogisticRegression(sp.eye_array(n, 50, format="csr"), np.ones(n), l2=0.1)
    peaks = []
    for clients in (10, 100_000):
        who = split(F, clients, "iid")
        settings = {"K": 1, "T": 2, "eta": 0.1, "participation": 8}
        simulate(F, "fedavg", clients=who, **settings)
        tracemalloc.start()
        simulate(F, "fedavg", clients=who, **settings)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 8 * n
