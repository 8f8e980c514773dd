# SPDX-License-Identifier: Apache-2.0
"""The fast engine does what the reference engine does.

Kernels are compiled for a number of lanes, so the tests here keep to few of them: three step
sizes of eight algorithms are 16 lanes (8 in double precision) of two sequences, 4 of one, and 8
of minibatches.
"""

import math
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

import fedac
from fedac.algorithms import ALGORITHMS, FEDAVG
from fedac.algorithms import fedac as general
from fedac.errors import InputError, NotAcceleratedWarning, StepSizeWarning
from fedac.objectives import (
    Augmented,
    LeastSquares,
    LinearModel,
    LogisticRegression,
    NoisyQuadratic,
    Objective,
    SquaredHinge,
)
from fedac.simulation import Record, Result, Schedule, SimulationInterrupted, simulate
from fedac.simulation.engines.linear import rounds, workers
from fedac.simulation.engines.linear.kernels import steps

N, D = 150, 10


class PseudoHuber(LinearModel):
    """A user's own loss sqrt(1 + (z - y)^2) - 1, with its derivative compiled."""

    curvature = 1.0
    kernel = staticmethod(njit(lambda z, y: (z - y) / math.sqrt(1 + (z - y) ** 2)))

    def loss(self, z, y):
        return np.sqrt(1 + (z - y) ** 2) - 1

    def derivative(self, z, y):
        return (z - y) / np.sqrt(1 + (z - y) ** 2)

    def second_derivative(self, z, y):
        return (1 + (z - y) ** 2) ** -1.5


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(31)
    X = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.5)
    X[7] = 0.0  # a row without nonzeros
    z = X @ rng.standard_normal(D) + rng.standard_normal(N)
    return X, np.where(z > 0, 1.0, -1.0), z


X, SIGNS, TARGETS = _data()
ONES = sp.csr_array((X != 0).astype(float))

# Every loss and every layout of the data; kernels choose the code of the two independently.
MODELS = {
    "logistic sparse": lambda l2: LogisticRegression(sp.csr_array(X), SIGNS, l2=l2),
    "least squares dense": lambda l2: LeastSquares(X, TARGETS, l2=l2),
    "squared hinge binary": lambda l2: SquaredHinge(ONES, SIGNS, l2=l2),
    "own loss sparse": lambda l2: PseudoHuber(sp.csr_array(X), TARGETS, l2=l2),
}
every_model = pytest.mark.parametrize("model", MODELS)
LOGISTIC = MODELS["logistic sparse"](0.05)
EVERYTHING = [*ALGORITHMS, general(gamma=0.15, alpha=3.0, beta=5.0)]
CENTER = np.linspace(-1, 2, D)


def run(objective: Objective, algorithm=EVERYTHING, **more) -> Result:
    mu = max(objective.strong_convexity, 0.02) / 2
    eta = np.array([0.1, 0.4, 0.9]) / objective.smoothness
    usual = {"M": 5, "K": 4, "T": 16, "eta": eta, "mu": mu, "seed": 3, "record_every": 10**8}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)
        warnings.simplefilter("ignore", NotAcceleratedWarning)
        return simulate(objective, algorithm, **(usual | more))


def fast(objective: Objective, algorithm=EVERYTHING, **more) -> Result:
    return run(objective, algorithm, **({"engine": "fast", "precision": "float64"} | more))


def reference(objective: Objective, algorithm=EVERYTHING, **more) -> Result:
    return run(objective, algorithm, engine="reference", **more)


def distance(a, b) -> float:
    """How far two runs end from each other, relative to where they are."""
    return max(
        float(np.linalg.norm(a.state[s] - b.state[s]) / (1e-300 + np.linalg.norm(b.state[s])))
        for s in b.state
    )


def assert_same(one: Result, other: Result, rel: float = 1e-9) -> None:
    for a, b in zip(one.runs, other.runs, strict=True):
        where = (b.algorithm, b.eta)
        assert (a.algorithm, a.eta) == where
        assert a.status == b.status, where
        assert a.steps.tolist() == b.steps.tolist(), where
        if b.status == "ok":
            assert distance(a, b) < rel, where


def assert_bitwise_the_same(one: Result, other: Result) -> None:
    for a, b in zip(one.runs, other.runs, strict=True):
        assert np.array_equal(a.loss, b.loss)
        assert all(np.array_equal(a.state[s], b.state[s]) for s in b.state)


def assert_close_in_loss(single: Result, double: Result, rel: float = 1e-3) -> None:
    """Compare suboptimalities as single precision can: those worth comparing."""
    L = double.objective.smoothness
    for a, b in zip(single.runs, double.runs, strict=True):
        gap = double.suboptimality(b)[-1]
        if b.status == "ok" and gap > 1e-6:
            tolerance = rel if b.eta * L <= 1 + 1e-12 else 0.05
            mine = single.suboptimality(a)[-1]
            assert mine == pytest.approx(gap, rel=tolerance), (b.algorithm, b.eta)


# --- The same numbers ---------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("lam", [None, 0.1])
@pytest.mark.parametrize(
    "K",
    [
        pytest.param(4, id="4"),
        pytest.param(1, id="1", marks=pytest.mark.slow),
        pytest.param(Schedule.at([1, 4, 6, 7, 12]), id="irregular", marks=pytest.mark.slow),
    ],
)
def test_every_algorithm_on_every_objective(model: str, l2: float, lam, K) -> None:
    objective = MODELS[model](l2)
    if lam:
        objective = Augmented(objective, lam=lam, center=CENTER)
    more = {"K": K, "T": 12}
    assert_same(fast(objective, **more), reference(objective, **more))


def test_augmented_twice() -> None:
    once = Augmented(MODELS["least squares dense"](0.3), lam=0.2, center=CENTER)
    twice = Augmented(once, lam=0.5, center=-3 * CENTER[::-1])
    assert_same(fast(twice), reference(twice))
    at_zero = Augmented(MODELS["least squares dense"](0.3), lam=0.2, center=np.zeros(D))
    assert_same(fast(at_zero), reference(at_zero))


@st.composite
def cases(draw, largest_eta: float) -> tuple[Objective, dict]:
    objective: Objective = MODELS[draw(st.sampled_from(list(MODELS)))](
        draw(st.sampled_from([0.0, 1e-3, 0.1, 100.0]))
    )
    if draw(st.booleans()):
        objective = Augmented(objective, lam=0.1, center=CENTER)
    K = draw(st.sampled_from([1, 2, 3, 5, 12, 40]))
    fractions = st.floats(0.01, largest_eta)
    etas = [draw(fractions) / objective.smoothness for _ in range(3)]
    l2 = objective.strong_convexity
    if l2 >= 100:  # eta l2 at and around 1, where A has no inverse; L is little above l2
        etas[0] = draw(st.sampled_from([1.0, 1 - 1e-9, 1 + 1e-9, 0.99, 1 - 1e-16])) / l2
        if largest_eta <= 1:
            etas[0] /= 1.05
    return objective, {
        "M": draw(st.integers(1, 9)),
        "K": K,
        "T": K * draw(st.integers(1, max(1, 40 // K))),
        "eta": etas,
        "seed": draw(st.integers(0, 2**64 - 1)),
    }


@pytest.mark.slow
@settings(deadline=None, max_examples=18, derandomize=True, database=None)
@given(case=cases(largest_eta=1.9))
def test_double_precision_at_random(case) -> None:
    objective, more = case
    assert_same(fast(objective, **more), reference(objective, **more))


@pytest.mark.slow
@settings(deadline=None, max_examples=18, derandomize=True, database=None)
@given(case=cases(largest_eta=1.0))
def test_single_precision_at_random(case) -> None:
    objective, more = case
    single = fast(objective, precision="float32", **more)
    assert_close_in_loss(single, reference(objective, **more))


@pytest.mark.slow
@settings(deadline=None, max_examples=15, derandomize=True, database=None)
@given(case=cases(largest_eta=1.9))
def test_single_precision_beyond_the_theory(case) -> None:
    objective, more = case
    single = fast(objective, precision="float32", **more)
    assert_close_in_loss(single, reference(objective, **more))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "l2"),
    [
        ("logistic sparse", 0.1),
        ("logistic sparse", 0.0),
        ("least squares dense", 0.1),
        ("least squares dense", 0.0),
    ],
)
def test_long_rounds(model: str, l2: float) -> None:
    objective = MODELS[model](l2)
    more = {"K": 512, "T": 512, "M": 3}
    exact = reference(objective, **more)
    assert_same(fast(objective, **more), exact)
    assert_close_in_loss(fast(objective, precision="float32", **more), exact)


EDGES = {
    "one row": LogisticRegression(sp.csr_array([[0.5, 0.0, -2.0]]), [1.0], l2=0.1),
    "one column": LogisticRegression(sp.csr_array([[0.5], [0.0], [-1.5]]), [1.0, 1.0, -1.0]),
    "one number": LogisticRegression(sp.csr_array([[0.5]]), [-1.0], l2=0.1),
    "nothing": LogisticRegression(sp.csr_array((4, 3)), [1.0, -1.0, 1.0, 1.0], l2=0.1),
    "one dense row": LeastSquares([[0.5, 0.0, -2.0]], [1.0], l2=0.1),
    "one dense number": LeastSquares([[2.0]], [1.0]),
    "one dense number with folds": LeastSquares([[0.5]], [1.0], l2=5.0),
}


@pytest.mark.parametrize("objective", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("M", [1, 3])
def test_small_data(objective: Objective, M: int) -> None:
    names = EVERYTHING if isinstance(objective.X, np.ndarray) else ["fedac-i"]
    more = {"M": M, "eta": [0.05, 0.1, 0.2]}
    assert_same(fast(objective, names, **more), reference(objective, names, **more))


@pytest.mark.parametrize("M", [1, 17, 100])
def test_any_number_of_workers(M: int) -> None:
    # Workers are summed in strands and sums of 16: fewer, one more, several of each.
    assert_same(fast(LOGISTIC, M=M), reference(LOGISTIC, M=M))


@pytest.mark.slow
@pytest.mark.parametrize("l2", [0.0, 0.5])
@pytest.mark.parametrize("K", [64, 65, 130])
def test_dense_rows_in_blocks_of_steps_and_workers(K: int, l2: float) -> None:
    # Blocks hold 64 steps, or fewer where the state is folded, of 8 workers.
    objective = Augmented(MODELS["least squares dense"](l2), lam=0.1, center=CENTER)
    more = {"K": K, "T": K, "M": 600}
    names = ["fedac-i", "fedac-ii", "fedac-vanilla", "fedavg-weighted", EVERYTHING[-1]]
    assert_same(fast(objective, names, **more), reference(objective, names, **more))


@pytest.mark.parametrize("d", [5, 64, 77])
@pytest.mark.parametrize("name", ["fedavg", "fedac-i", "scaffold"])
def test_dense_rows_of_few_lanes(name: str, d: int) -> None:
    rng = np.random.default_rng(d)
    objective = LeastSquares(rng.standard_normal((40, d)), rng.standard_normal(40), l2=0.01)
    more = {"K": 70, "T": 140, "M": 20, "eta": 0.1 / objective.smoothness}
    for batch in (1, 3):
        one = fast(objective, name, batch=batch, threads=1, **more)
        assert_same(one, reference(objective, name, batch=batch, **more))
        assert_bitwise_the_same(one, fast(objective, name, batch=batch, threads=2, **more))


def test_more_lanes_than_a_vector_has() -> None:
    etas = np.geomspace(0.01, 1, 20) / LOGISTIC.smoothness
    exact = reference(LOGISTIC, "fedac-i", eta=etas)
    assert len(exact.runs) == 20
    assert_same(fast(LOGISTIC, "fedac-i", eta=etas), exact)
    assert_close_in_loss(fast(LOGISTIC, "fedac-i", eta=etas, precision="float32"), exact)


@pytest.mark.parametrize(
    ("precision", "count"),
    [
        pytest.param("float64", 9),
        pytest.param("float32", 17),
    ],
)
def test_one_lane_more_than_a_vector_has(precision: str, count: int) -> None:
    # Two chunks, of which the second is longer.
    etas = np.geomspace(0.01, 1, count) / LOGISTIC.smoothness
    result = fast(LOGISTIC, "fedac-i", eta=etas, precision=precision)
    assert_close_in_loss(result, reference(LOGISTIC, "fedac-i", eta=etas))


def test_one_algorithm_twice_with_another_between() -> None:
    names = ["fedac-i", "fedavg", "fedac-ii", "fedac-i"]
    assert_same(fast(LOGISTIC, names, K=1, T=4), reference(LOGISTIC, names, K=1, T=4))


@pytest.fixture
def wide() -> LogisticRegression:
    """Rows of six nonzeros among 2,000: a round touches a small part of the state."""
    rng = np.random.default_rng(5)
    columns = np.concatenate([rng.choice(2000, 6, replace=False) for _ in range(60)])
    values = rng.standard_normal(360)
    rows = sp.csr_array((values, columns, np.arange(0, 361, 6)), shape=(60, 2000))
    return LogisticRegression(rows, np.where(rng.random(60) < 0.5, -1.0, 1.0), l2=0.01)


RUN_WORKERS = steps.run_workers
WAYS = (steps.SWEEP, steps.TOUCHED, steps.FAR)


def watch_collecting(monkeypatch: pytest.MonkeyPatch, *, force: int | None = None) -> list[int]:
    """Return how the changes of each call's workers are collected; the forced way, if any."""
    seen: list[int] = []

    def spy(lanes, sequences, rows, this_round, *others) -> None:
        if force is not None:
            this_round = this_round._replace(collect=force)
        seen.append(this_round.collect)
        RUN_WORKERS(lanes, sequences, rows, this_round, *others)

    monkeypatch.setattr(steps, "run_workers", spy)
    return seen


@pytest.mark.parametrize("lam", [None, 0.1])
@pytest.mark.parametrize(("K", "way"), [(8, steps.FAR), (24, steps.TOUCHED)])
def test_touched_coordinates_only(wide, lam, K: int, way: int, monkeypatch) -> None:
    objective = Augmented(wide, lam=lam, center=np.linspace(-1, 1, 2000)) if lam else wide
    more = {"K": K, "T": 48, "M": 20 if way == steps.TOUCHED else 14}
    seen = watch_collecting(monkeypatch)
    touched = fast(objective, "fedac-i", **more)
    assert set(seen) == {way}
    assert_same(touched, reference(objective, "fedac-i", **more))
    for other in WAYS:
        watch_collecting(monkeypatch, force=other)
        assert_same(touched, fast(objective, "fedac-i", **more), rel=1e-12)


@pytest.fixture
def never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SHARED_BYTES", 0)


@pytest.mark.parametrize("lam", [None, 0.1])
@pytest.mark.parametrize("ones", [True, False], ids=["ones", "numbers"])
def test_changes_by_row(wide, lam, ones: bool, monkeypatch, request) -> None:
    # 60 rows and 160 draws a round: every row is drawn about three times.
    rows = sp.csr_array(wide.X.astype(bool).astype(float)) if ones else wide.X
    model = LogisticRegression(rows, wide.y, l2=0.01)
    objective = Augmented(model, lam=lam, center=np.linspace(-1, 1, 2000)) if lam else model
    # A last round of two steps is collected in another way.
    more = {"K": Schedule.at([8, 16, 24, 26]), "M": 20, "T": None}
    seen = watch_collecting(monkeypatch)
    by_row = fast(objective, **more)
    assert set(seen) >= {steps.BY_ROW, steps.FAR}
    assert_same(by_row, reference(objective, **more))
    assert_bitwise_the_same(by_row, fast(objective, threads=2, **more))
    request.getfixturevalue("never_shared")
    assert_same(by_row, fast(objective, **more), rel=1e-12)


@pytest.mark.parametrize("lam", [None, 0.1])
def test_dense_rows_are_shared_or_not(lam, request) -> None:
    model = MODELS["least squares dense"](0.01)
    objective = Augmented(model, lam=lam, center=CENTER) if lam else model
    more = {"K": 16, "T": 32, "M": 100}
    shared = fast(objective, **more)
    assert_same(shared, reference(objective, **more))
    request.getfixturevalue("never_shared")
    assert_same(shared, fast(objective, **more), rel=1e-12)


def test_long_rounds_sweep(wide, monkeypatch) -> None:
    seen = watch_collecting(monkeypatch)
    result = fast(wide, "fedac-i", K=512, T=512, M=2)
    assert set(seen) == {steps.SWEEP}
    assert_same(result, reference(wide, "fedac-i", K=512, T=512, M=2))


# --- Threads ------------------------------------------------------------------------------------


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The strands and the thread of every part of the work; the warm-up's are left out."""
    seen: list[tuple[int, int]] = []
    plain = workers.Threads.run

    def run(self, task, **more):
        def watched(first: int, last: int) -> None:
            if threading.current_thread().name != "fedac-compiler":
                seen.append((last - first, threading.get_ident()))
            task(first, last)

        return plain(self, watched, **more)

    monkeypatch.setattr(workers.Threads, "run", run)
    return seen


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_results_do_not_depend_on_threads(kind, precision: str, parts, monkeypatch) -> None:
    monkeypatch.setattr(workers, "WORTH_A_THREAD", 0)
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((3000, D))
    signs = np.where(rows @ CENTER + rng.standard_normal(3000) > 0, 1.0, -1.0)
    model = LogisticRegression if kind is sp.csr_array else LeastSquares
    objective = model(kind(rows), signs, l2=0.01)
    # 8,000 draws from 3,000 rows leave more than the 1,024 distinct ones worth sharing.
    more = {"M": 2000, "T": 8, "precision": precision}
    one = fast(objective, threads=1, **more)
    parts.clear()
    for count in (2, 3):
        assert_bitwise_the_same(one, fast(objective, threads=count, **more))
    assert any(ident != threading.get_ident() for _, ident in parts)


@pytest.mark.parametrize("model", ["logistic sparse", "least squares dense"])
def test_a_batch_smaller_than_the_data_is_listed(model: str, monkeypatch) -> None:
    more = {"K": 1, "T": 3, "M": 30}
    listed = fast(MODELS[model](0.1), **more)
    monkeypatch.setattr(rounds, "SPARSE_BATCH", 0.0)
    counted = fast(MODELS[model](0.1), **more)
    assert_same(listed, counted, rel=1e-12)


def test_work_worth_threads_is_shared(parts) -> None:
    more = {"M": 30_000, "K": 4, "T": 4}  # 120,000 steps
    two = fast(LOGISTIC, "fedac-i", threads=2, **more)
    # 64 strands of workers in parts of ever fewer; whatever is smaller stays whole.
    sizes = [size for size, _ in parts]
    assert {16, 12, 9, 6, 5, 4, 3, 2} <= set(sizes)
    parts.clear()
    one = fast(LOGISTIC, "fedac-i", threads=1, **more)
    assert {64} <= {size for size, _ in parts} <= {1, 16, 64}
    assert {ident for _, ident in parts} == {threading.get_ident()}
    assert_bitwise_the_same(one, two)


def test_long_work_is_cut_even_for_one_thread(parts, monkeypatch) -> None:
    # Lest a progress bar stand still and an interrupt wait.
    monkeypatch.setattr(workers, "LARGEST_PART", 1000)
    monkeypatch.setattr(workers, "WORTH_A_THREAD", 0)
    queries: list[int] = []
    fast(LOGISTIC, "fedac-i", M=4000, K=4, T=4, threads=1, on_progress=queries.append)
    assert len(queries) == 16
    assert sum(queries) == 4000 * 4 * 3


def test_threads_hand_on_errors() -> None:
    def fail(first: int, last: int) -> None:
        raise RuntimeError("mine")

    with workers.Threads(2) as team:
        for work in (1, 10**9):
            with pytest.raises(RuntimeError, match="mine"):
                team.run(fail, strands=8, work=work)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("strands", [1, 2, 7, 64])
def test_every_strand_is_run_once(count: int, strands: int) -> None:
    done: list[int] = []
    reported: list[int] = []
    with workers.Threads(count) as team:
        team.run(
            lambda first, last: done.extend(range(first, last)),
            strands=strands,
            work=10**9,
            on_done=lambda first, last: reported.extend(range(first, last)),
        )
    assert sorted(done) == list(range(strands))
    assert sorted(reported) == list(range(strands))


# --- Divergence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("K", [4, 1])
def test_diverged_lanes_disturb_no_other(precision: str, K: int) -> None:
    names = ["fedac-i", "fedac-vanilla", "fedavg", "mb-sgd", "mb-ac-sgd"]
    names += [general(gamma=0.1, alpha=alpha, beta=5.0) for alpha in (2.0, 3.0, 4.0)]
    more = {"K": K, "T": 64, "record_every": 16, "mu": 0.05}
    good, slow, sudden = 0.3, 300.0, 1e200
    result = fast(LOGISTIC, names, eta=[slow, good, sudden], precision=precision, **more)
    exact = reference(LOGISTIC, names, eta=[slow, good, sudden], **more)
    alone = fast(LOGISTIC, names, eta=[good] * 3, precision=precision, **more)
    assert {run.status for run in result.runs[2::3]} == {"diverged"}
    for mine, theirs in zip(result.runs, exact.runs, strict=True):
        assert mine.status == theirs.status
        assert np.isfinite(mine.loss).all()
        assert mine.steps.tolist() == theirs.steps.tolist()
    for mine, theirs in zip(result.runs[1::3], alone.runs[1::3], strict=True):
        assert mine.status == "ok"
        assert mine.steps.tolist() == [0, 16, 32, 48, 64]
        rel = 1e-10 if precision == "float64" else 1e-4
        assert mine.final_loss == pytest.approx(theirs.final_loss, rel=rel)


def test_a_step_size_near_the_end_of_all_numbers() -> None:
    # eta l2 overflows, so that A has infinite entries.
    objective = MODELS["logistic sparse"](100.0)
    names = [general(gamma=1e-3, alpha=2.0, beta=beta) for beta in (2.0, 3.0, 4.0, 5.0, 6.0)]
    result = fast(objective, names, eta=[1e-3, 1e308, 2e-3])
    assert [run.status for run in result.runs] == ["ok", "diverged", "ok"] * 5


def test_when_all_lanes_have_diverged_the_run_ends() -> None:
    result = fast(LOGISTIC, eta=[1e100, 1e101, 1e102], mu=1e-103, T=64)
    assert {run.status for run in result.runs} == {"diverged"}
    assert {run.steps.tolist()[0] for run in result.runs} == {0}


# --- What it refuses ----------------------------------------------------------------------------


def test_an_objective_without_rows_needs_the_reference_engine() -> None:
    objective = NoisyQuadratic([1.0, 0.5], sigma=0.1)
    for F in (objective, Augmented(objective, lam=0.1, center=[0.0, 0.0])):
        with pytest.raises(
            InputError, match=r"linear model.*not NoisyQuadratic; use engine='reference'"
        ):
            fast(F)
        assert_bitwise_the_same(run(F), reference(F))


def test_a_loss_without_a_kernel_needs_the_reference_engine() -> None:
    class Plain(PseudoHuber):
        kernel = None

    objective = Plain(X, TARGETS, l2=0.1)
    with pytest.raises(InputError, match=r"not Plain; use engine='reference'"):
        fast(objective)
    assert_bitwise_the_same(run(objective), reference(objective))


def test_an_algorithm_that_is_not_affine_needs_the_reference_engine() -> None:
    mine = replace(
        FEDAVG, name="signs", update=lambda state, w_md, g, hp: (w_md - hp.eta * np.sign(g),)
    )
    with pytest.raises(InputError, match=r"'signs' is not linear.*use engine='reference'"):
        fast(LOGISTIC, ["fedavg", mine])
    assert_bitwise_the_same(run(LOGISTIC, mine), reference(LOGISTIC, mine))


def test_by_default_the_engine_is_fast_and_single() -> None:
    default, asked = run(LOGISTIC), fast(LOGISTIC, precision="float32")
    assert_bitwise_the_same(default, asked)
    assert default.runs[0].final_loss != fast(LOGISTIC).runs[0].final_loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "fats"}, "unknown engine 'fats'; did you mean 'fast'"),
        ({"engine": 1}, "unknown engine '1'.*known: fast, network, reference"),
        ({"precision": "float46"}, "unknown precision 'float46'; did you mean 'float64'"),
        ({"precision": np.float16}, "unknown precision"),
        ({"threads": 0}, "threads must be a whole number, at least 1, got 0"),
        ({"threads": True}, "threads must be a whole number, at least 1, got True"),
    ],
    ids=str,
)
def test_options(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(LOGISTIC, **options)


# --- Users' own ---------------------------------------------------------------------------------


def _root_update(state, w_md, g, hp):
    return (w_md - math.sqrt(hp.eta) * g,)


def _bounded_update(state, w_md, g, hp):
    return (w_md - min(hp.eta, 0.1) * g,)


@pytest.mark.parametrize("update", [_root_update, _bounded_update])
@pytest.mark.parametrize(
    "K",
    [
        4,
        pytest.param(1),
    ],
)
def test_an_algorithm_may_compute_with_its_hyperparameters(update, K: int) -> None:
    mine = replace(FEDAVG, name="mine", update=update)
    assert_same(fast(LOGISTIC, mine, K=K), reference(LOGISTIC, mine, K=K))


def test_a_subclass_with_a_derivative_of_its_own_is_not_computed_by_its_parents_kernel() -> None:
    class Clipped(LeastSquares):
        def derivative(self, z, y):
            return np.clip(z - y, -0.1, 0.1)

    objective = Clipped(X, TARGETS, l2=0.1)
    assert_same(run(objective, precision="float64"), reference(objective))


def test_an_unknown_kernel_is_refused() -> None:
    class Unknown(LeastSquares):
        kernel = "hinge"

    with pytest.raises(InputError, match="hinge"):
        fast(Unknown(X, TARGETS, l2=0.1))


# --- While it runs ------------------------------------------------------------------------------


def test_a_second_call_compiles_nothing() -> None:
    def signatures() -> dict[str, int]:
        return {
            name: len(value.nopython_signatures)
            for name, value in vars(steps).items()
            if hasattr(value, "nopython_signatures")
        }

    schedule = Schedule.at([1, 4, 6, 7, 12])
    fast(LOGISTIC, K=schedule, T=None)
    before = signatures()
    assert before["run_workers"] > 0
    assert before["sum_gradients"] > 0
    # Other data, step sizes, workers, lengths of rounds, seeds and strengths.
    other = Augmented(LogisticRegression(sp.csr_array(2 * X), -SIGNS), lam=0.1, center=np.ones(D))
    fast(other, K=Schedule.at([3, 4, 9]), T=None, M=11, seed=9)
    assert signatures() == before


def test_an_interrupt_leaves_whole_records() -> None:
    def stop(record: Record) -> None:
        if record.step == 8 and record.algorithm == "fedavg":
            raise KeyboardInterrupt

    whole = fast(LOGISTIC, record_every=4)
    with pytest.raises(SimulationInterrupted) as caught:
        fast(LOGISTIC, record_every=4, callbacks=[stop])
    result = caught.value.result
    assert len(result.runs) == len(whole.runs) == 24
    assert {len(run.steps) for run in result.runs} == {2, 3}
    for part, full in zip(result.runs, whole.runs, strict=True):
        assert len(part.loss) == len(part.steps)
        assert np.array_equal(part.loss, full.loss[: len(part.loss)])
        assert part.state.keys() == full.state.keys()
    assert len(result.to_frame()) == sum(len(run.steps) for run in result.runs)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_between_records(threads: int) -> None:
    def stop(queries: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(SimulationInterrupted) as caught:
        fast(LOGISTIC, M=3000, on_progress=stop, threads=threads)
    assert [run.steps.tolist() for run in caught.value.result.runs] == [[0]] * 24
    assert threading.active_count() == before


@pytest.mark.parametrize("model", ["logistic sparse", "least squares dense"])
def test_losses_are_those_of_the_objective_however_many_wait(model: str) -> None:
    # 40 records of one lane: two full vectors and a part, or one by one for callbacks.
    objective, how = MODELS[model](0.1), {"M": 3, "K": 2, "T": 78, "eta": 0.1, "record_every": 2}
    seen: list[Record] = []
    (live,) = simulate(objective, "fedac-i", **how, callbacks=[seen.append]).runs
    (run,) = simulate(objective, "fedac-i", **how).runs
    assert run.steps.tolist() == live.steps.tolist() == list(range(0, 80, 2))
    assert run.loss == pytest.approx([objective.value(record.w) for record in seen], rel=1e-13)
    assert run.loss == pytest.approx(live.loss, rel=1e-13 if "dense" in model else 0)
    assert np.array_equal(run.w, live.w)


def test_callbacks_do_not_wait() -> None:
    rounds_done, seen = [], []
    how = {"M": 3, "K": 2, "T": 8, "eta": 0.1, "record_every": 2}
    simulate(LOGISTIC, "fedac-i", **how, on_progress=rounds_done.append,
             callbacks=[lambda record: seen.append((record.step, len(rounds_done)))])  # fmt: skip
    assert seen == [(0, 0), (2, 1), (4, 2), (6, 3), (8, 4)]


def test_an_interrupt_keeps_the_records_that_wait() -> None:
    left = iter([None] * 5)

    def stop(queries: int) -> None:
        if next(left, "stop") == "stop":
            raise KeyboardInterrupt

    how = {"M": 3, "K": 2, "T": 60, "eta": 0.1, "record_every": 2}
    (whole,) = simulate(LOGISTIC, "fedac-i", **how).runs
    with pytest.raises(SimulationInterrupted) as caught:
        simulate(LOGISTIC, "fedac-i", **how, on_progress=stop)
    (part,) = caught.value.result.runs
    assert part.steps.tolist() == [0, 2, 4, 6, 8, 10]
    assert np.array_equal(part.loss, whole.loss[:6])


def test_callbacks_see_the_users_numpy_settings() -> None:
    seen = []
    with np.errstate(over="raise"):
        fast(LOGISTIC, callbacks=[lambda record: seen.append(np.geterr()["over"])])
        assert np.geterr()["over"] == "raise"
    assert set(seen) == {"raise"}


def test_an_error_of_a_callback_leaves_numpy_as_it_was() -> None:
    def fail(record: Record) -> None:
        raise RuntimeError("mine")

    with np.errstate(over="raise"):
        with pytest.raises(RuntimeError, match="mine") as caught:
            fast(LOGISTIC, callbacks=[fail])
        assert caught, "whose traceback holds all frames"
        assert np.geterr()["over"] == "raise"


@pytest.mark.parametrize("K", [4, 1, Schedule.at([1, 4, 9, 12])], ids=["4", "1", "irregular"])
def test_progress_adds_up(K) -> None:
    queries: list[int] = []
    result = fast(LOGISTIC, K=K, T=12, on_progress=queries.append)
    assert sum(queries) == result.gradient_queries == 5 * 12 * 24
    assert min(queries) > 0


@pytest.mark.parametrize("M", [4096, pytest.param(4099)])
def test_progress_of_threads_adds_up(M: int) -> None:
    queries: list[int] = []
    fast(LOGISTIC, K=3, T=6, M=M, threads=2, on_progress=queries.append)
    assert sum(queries) == M * 6 * 24


def test_memory_does_not_depend_on_M() -> None:
    def peak(M: int) -> int:
        tracemalloc.start()
        fast(LOGISTIC, "fedac-i", M=M, K=2, T=4, threads=1)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    fast(LOGISTIC, "fedac-i", M=2, K=2, T=4, threads=1)
    assert peak(2**14) == pytest.approx(peak(2**10), rel=0.05)


def test_memory_of_wide_models_is_bounded(monkeypatch) -> None:
    # Memory for two strands of totals; at least four are kept. Equal up to rounding.
    usual = fast(LOGISTIC, M=100)
    monkeypatch.setattr(workers, "TOTALS_BYTES", 2 * 8 * D * 16)
    assert_same(fast(LOGISTIC, M=100), usual, rel=1e-12)


# --- Installed where nothing can be written -----------------------------------------------------

SCRIPT = """
import numpy as np, fedac
from scipy.sparse import csr_array
from fedac.simulation.engines.linear.kernels import steps
F = fedac.LogisticRegression(csr_array(np.eye(3)), [1.0, -1.0, 1.0], l2=0.1)
result = fedac.simulate(F, "fedavg", M=2, K=2, T=4, eta=0.1, engine="fast")
hits = sum(steps.run_workers.stats.cache_hits.values())
print(fedac.__file__, result.runs[0].final_loss, hits)
"""


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False], ids=["at home", "in a temporary folder"])
def test_a_read_only_install_works(tmp_path: Path, writable: bool) -> None:
    package = tmp_path / "site" / "fedac"
    source = Path(fedac.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    # Permissions do not stop root; a file in the way stops everyone.
    (package / "simulation" / "engines" / "linear" / "kernels" / "__pycache__").write_text(
        "not a directory"
    )
    cache = tmp_path / "cache"
    if not writable:
        cache.write_text("not a directory")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NUMBA_", "XDG_", "COV_"))
    } | {
        "HOME": str(tmp_path / "home" if writable else cache),
        "FEDAC_CACHE": str(cache),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(package.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=1800,
        )
        assert not done.stderr
        outputs.append(done.stdout.split())
    assert outputs[0][0] == outputs[1][0] == str(package / "__init__.py")
    assert outputs[0][1] == outputs[1][1]
    assert int(outputs[0][2]) == 0
    assert int(outputs[1][2]) > 0
    assert any(tmp_path.glob("fedac-*")) != writable


# --- The paper's data ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a9a(a9a) -> None:
    objective = LogisticRegression(a9a.X, a9a.y, l2=1e-3)
    (run,) = simulate(objective, "fedac-i", M=8192, K=64, T=4096, eta=0.5).runs
    assert run.final_loss == pytest.approx(0.37939, rel=0.005)
