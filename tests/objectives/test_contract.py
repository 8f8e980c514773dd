# SPDX-License-Identifier: Apache-2.0
"""What every objective promises: gradients, Hessians, noise and the paper's constants."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedac.errors import InputError, NoOptimumError, StepSizeWarning
from fedac.objectives import (
    Augmented,
    ConvexObjective,
    LeastSquares,
    LogisticRegression,
    NoisyQuadratic,
    Objective,
    SquaredHinge,
    optimum,
)
from fedac.simulation import simulate
from fedac.testing import check_objective

N, D = 40, 5


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(20)
    X = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.6)
    return X, np.where(rng.random(N) < 0.5, -1.0, 1.0), rng.standard_normal(N)


X, SIGNS, TARGETS = _data()
QUADRATIC = NoisyQuadratic([4.0, 2.0, 1.0, 0.5, 0.1], optimum=[1, -1, 0, 2, 3], sigma=0.7)

MODELS: dict[str, Callable[[], Objective]] = {
    "logistic sparse": lambda: LogisticRegression(sp.csr_array(X), SIGNS, l2=0.01),
    "logistic dense": lambda: LogisticRegression(X, SIGNS, l2=0.01),
    "logistic sparse intercept": lambda: LogisticRegression(
        sp.csr_array(X), SIGNS, l2=0.01, intercept=True
    ),
    "logistic dense intercept": lambda: LogisticRegression(X, SIGNS, l2=0.01, intercept=True),
    "least squares sparse": lambda: LeastSquares(sp.csr_array(X), TARGETS, l2=0.02),
    "least squares dense": lambda: LeastSquares(X, TARGETS, l2=0.02),
    "least squares sparse intercept": lambda: LeastSquares(
        sp.csr_array(X), TARGETS, intercept=True
    ),
    "least squares dense intercept": lambda: LeastSquares(X, TARGETS, intercept=True),
    "squared hinge sparse": lambda: SquaredHinge(sp.csr_array(X), SIGNS, l2=0.01),
    "squared hinge dense": lambda: SquaredHinge(X, SIGNS, l2=0.01),
    "squared hinge sparse intercept": lambda: SquaredHinge(
        sp.csr_array(X), SIGNS, l2=0.01, intercept=True
    ),
    "squared hinge dense intercept": lambda: SquaredHinge(X, SIGNS, l2=0.01, intercept=True),
}
AUGMENTED: dict[str, Callable[[], Objective]] = {
    "augmented logistic": lambda: Augmented(
        LogisticRegression(sp.csr_array(X), SIGNS), lam=0.3, center=np.arange(5.0)
    ),
    "augmented least squares": lambda: Augmented(
        LeastSquares(X, TARGETS), lam=0.3, center=-np.arange(5.0)
    ),
    "augmented squared hinge": lambda: Augmented(
        SquaredHinge(X, SIGNS, l2=0.1), lam=0.3, center=np.arange(5.0)
    ),
}
FINITE = MODELS | AUGMENTED
OBJECTIVES = FINITE | {
    "quadratic": lambda: QUADRATIC,
    "augmented quadratic": lambda: Augmented(QUADRATIC, lam=0.3, center=np.ones(5)),
}

every_objective = pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
every_finite = pytest.mark.parametrize("make", FINITE.values(), ids=FINITE)
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def points(dim: int, number: int = 3) -> np.ndarray:
    return np.random.default_rng(dim).standard_normal((number, dim))


def vectors(dim: int) -> st.SearchStrategy[np.ndarray]:
    numbers = st.lists(st.floats(-30, 30), min_size=dim, max_size=dim)
    return numbers.map(lambda values: np.array(values))


@every_objective
def test_gradient_is_the_slope_of_the_value(make) -> None:
    F, h = make(), 1e-5
    for w in points(F.dim):
        slopes = [(F.value(w + h * e) - F.value(w - h * e)) / (2 * h) for e in np.eye(F.dim)]
        assert F.gradient(w) == pytest.approx(np.array(slopes), rel=1e-7, abs=1e-8)


@every_objective
def test_hessian_product_is_the_slope_of_the_gradient(make) -> None:
    F, h = make(), 1e-5
    for w, v in zip(points(F.dim), points(F.dim, 6)[3:], strict=True):
        slope = (F.gradient(w + h * v) - F.gradient(w - h * v)) / (2 * h)
        assert F.hessian_product(w, v) == pytest.approx(slope, rel=1e-7, abs=1e-8)


@every_objective
def test_values_of_several_points(make) -> None:
    F, W = make(), points(make().dim, 7)
    assert F.values(W) == pytest.approx([F.value(w) for w in W], rel=1e-14)
    assert F.values(W[::2]) == pytest.approx(F.values(W)[::2], rel=1e-14)
    assert F.values(np.asfortranarray(W)) == pytest.approx(F.values(W), rel=1e-14)
    assert F.values(W[:1]).shape == (1,)


@every_model
def test_the_mean_loss_is_the_mean_of_the_losses(make) -> None:
    F = make()
    for scale in (0.0, 1.0, 100.0):
        z = F.X @ (scale * points(F.dim)[0])
        assert F.mean_loss(z, F.y) == pytest.approx(F.loss(z, F.y).mean(), rel=1e-14)


@pytest.mark.parametrize("n", [1, 511, 512, 513, 2000])
@pytest.mark.parametrize("margin", [0.0, 1e-9, 30.0, -30.0, 800.0, -800.0])
def test_the_mean_logistic_loss_of_many_equal_margins(n: int, margin: float) -> None:
    # Products of up to 512 factors 1 + exp(-|z|) must not overflow; each is good to 1e-16.
    F = LogisticRegression([[1.0]], [1.0])
    expected = np.logaddexp(0.0, -margin)
    assert F.mean_loss(np.full(n, margin), np.ones(n)) == pytest.approx(
        expected, rel=1e-13, abs=2e-16
    )


@every_finite
def test_the_mean_over_all_rows_is_the_gradient(make) -> None:
    F = make()
    assert F.n_samples == N
    for w in points(F.dim):
        each = F.stochastic_gradients(np.tile(w, (N, 1)), np.arange(N))
        assert each.mean(axis=0) == pytest.approx(F.gradient(w), rel=1e-12, abs=1e-14)


@every_finite
def test_noise_is_the_variance_over_all_rows(make) -> None:
    F = make()
    for w in points(F.dim):
        each = F.stochastic_gradients(np.tile(w, (N, 1)), np.arange(N))
        variance = ((each - each.mean(axis=0)) ** 2).sum(axis=1).mean()
        assert F.noise(w) == pytest.approx(variance, rel=1e-11)
        assert variance > 0.01


@every_finite
def test_the_fourth_moment_is_that_over_all_rows(make, monkeypatch) -> None:
    monkeypatch.setattr("fedac.objectives.base.BLOCK", 7)
    F = make()
    for w in points(F.dim):
        each = F.stochastic_gradients(np.tile(w, (N, 1)), np.arange(N))
        squares = ((each - each.mean(axis=0)) ** 2).sum(axis=1)
        assert F.fourth_moment(w) == pytest.approx((squares**2).mean(), rel=1e-11)
        # ... also as an objective has it that does not define it
        assert ConvexObjective.fourth_moment(F, w) == pytest.approx((squares**2).mean(), rel=1e-11)
        assert F.fourth_moment(w) >= F.noise(w) ** 2


def test_rows_without_end_are_not_visited() -> None:
    with pytest.raises(InputError, match="NoisyQuadratic has too many rows: define its fourth"):
        ConvexObjective.fourth_moment(QUADRATIC, np.zeros(5))


def test_moments_of_a_weighted_objective() -> None:
    weights = np.arange(1.0, N + 1)
    F = LogisticRegression(X, SIGNS, l2=0.01).weighted(weights)
    w = points(D)[0]
    each = F.stochastic_gradients(np.tile(w, (N, 1)), np.arange(N))
    squares = ((each - F.gradient(w)) ** 2).sum(axis=1)
    assert F.fourth_moment(w) == pytest.approx(np.average(squares**2, weights=weights))
    norms = (X**2).sum(axis=1)
    assert F.noise_bound == pytest.approx(np.average(norms, weights=weights))


def test_the_moments_of_gaussian_noise() -> None:
    rng, d = np.random.default_rng(5), QUADRATIC.dim
    draws = 0.7 / math.sqrt(d) * rng.standard_normal((200_000, d))
    fourth = ((draws**2).sum(axis=1) ** 2).mean()
    assert QUADRATIC.fourth_moment(np.zeros(d)) == pytest.approx(fourth, rel=0.02)
    assert QUADRATIC.fourth_moment_bound == QUADRATIC.fourth_moment(np.ones(d))
    assert QUADRATIC.noise_bound == QUADRATIC.noise(np.ones(d))


@every_objective
def test_bounds_on_the_noise_hold_far_away_too(make) -> None:
    F = make()
    for w in (scale * w for scale in (0.0, 1.0, 1e3) for w in points(F.dim)):
        if F.noise_bound is not None:
            assert F.noise(w) <= F.noise_bound * (1 + 1e-12)
            assert F.fourth_moment(w) <= F.fourth_moment_bound * (1 + 1e-12)
    bounded = "logistic" in F.__class__.__name__.lower() or F is QUADRATIC
    if not isinstance(F, Augmented):
        assert (F.noise_bound is not None) == (F.fourth_moment_bound is not None) == bounded


@every_objective
def test_workers_do_not_affect_each_other(make) -> None:
    F = make()
    W, rows = points(F.dim, 4), np.array([7, 3, 7, 0])
    before = W.copy()
    together = F.stochastic_gradients(W, rows)
    assert np.array_equal(W, before)
    for m in range(4):
        alone = F.stochastic_gradient(W[m], int(rows[m]))
        assert together[m] == pytest.approx(alone, rel=1e-13)
    assert np.array_equal(F.stochastic_gradients(W, rows), together), "data were changed"


@every_objective
def test_smoothness_and_strong_convexity_bound_the_curvature(make) -> None:
    F = make()
    for w in [*points(F.dim), np.zeros(F.dim)]:
        hessian = np.array([F.hessian_product(w, e) for e in np.eye(F.dim)])
        assert hessian == pytest.approx(hessian.T, abs=1e-14)
        spectrum = np.linalg.eigvalsh(hessian)
        assert spectrum[0] >= F.strong_convexity - 1e-13
        assert spectrum[-1] <= F.smoothness * (1 + 1e-13)


@every_objective
@pytest.mark.parametrize("exact_up_to", [10**6, 0], ids=["dense", "lanczos"])
def test_smoothness_is_reached_at_zero(make, exact_up_to: int, monkeypatch) -> None:
    # A quadratic curves the same everywhere, the other losses the most at margin 0.
    monkeypatch.setattr("fedac.objectives.linear_model.EXACT_SPECTRUM", exact_up_to)
    F = make()
    w = np.zeros(F.dim)
    hessian = np.array([F.hessian_product(w, e) for e in np.eye(F.dim)])
    assert F.smoothness == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-10)


def _has_a_kink(F: Objective) -> bool:
    """Whether the second derivative jumps, so that no Q exists."""
    return isinstance(F.base if isinstance(F, Augmented) else F, SquaredHinge)


@every_objective
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_inequalities_of_the_assumptions(make, data) -> None:
    # asm1 (a), (b) and asm2 (a) at two arbitrary points.
    F = make()
    w, u = data.draw(vectors(F.dim)), data.draw(vectors(F.dim))
    step = u - w
    square = float(step @ step)
    linear = F.value(w) + float(F.gradient(w) @ step)
    slack = 1e-12 * (1 + abs(linear) + abs(F.value(u)) + F.smoothness * square)
    assert F.value(u) <= linear + F.smoothness / 2 * square + slack
    assert F.value(u) >= linear + F.strong_convexity / 2 * square - slack
    Q = F.third_order_smoothness
    if Q is None:
        assert _has_a_kink(F)
        return
    bend = F.gradient(u) - F.gradient(w) - F.hessian_product(w, step)
    assert np.linalg.norm(bend) <= Q / 2 * square + 1e-11 * (1 + np.linalg.norm(step))


@every_model
def test_third_order_smoothness_is_not_loose(make) -> None:
    # For quadratics zero; for the logistic loss within a factor of 30 of what points show.
    F = make()
    if isinstance(F, LeastSquares):
        assert F.third_order_smoothness == 0
        return
    if isinstance(F, SquaredHinge):
        assert F.third_order_smoothness is None
        return
    seen = 0.0
    for w in np.random.default_rng(0).standard_normal((200, F.dim)):
        step = 1e-3 * w / np.linalg.norm(w)
        bend = F.gradient(w + step) - F.gradient(w) - F.hessian_product(w, step)
        seen = max(seen, 2 * float(np.linalg.norm(bend)) / float(step @ step))
    assert seen <= F.third_order_smoothness <= 30 * seen


@pytest.mark.parametrize("name", ["logistic", "least squares", "squared hinge"])
@pytest.mark.parametrize("intercept", [" intercept", ""])
def test_sparse_and_dense_data_give_the_same_objective(name: str, intercept: str) -> None:
    sparse, dense = (MODELS[f"{name} {kind}{intercept}"]() for kind in ("sparse", "dense"))
    assert sparse.dim == dense.dim == D + bool(intercept)
    w = points(sparse.dim)[0]
    assert sparse.value(w) == pytest.approx(dense.value(w), rel=1e-14)
    assert sparse.gradient(w) == pytest.approx(dense.gradient(w), rel=1e-12, abs=1e-15)
    assert sparse.noise(w) == pytest.approx(dense.noise(w), rel=1e-12)
    assert sparse.smoothness == pytest.approx(dense.smoothness, rel=1e-12)
    if name != "squared hinge":
        assert sparse.third_order_smoothness == pytest.approx(
            dense.third_order_smoothness, rel=1e-12
        )
    rows = np.array([3, 9])
    W = points(sparse.dim, 2)
    assert sparse.stochastic_gradients(W, rows) == pytest.approx(
        dense.stochastic_gradients(W, rows), rel=1e-13, abs=1e-15
    )


def test_values_by_hand() -> None:
    # x = (1, 2), w = (1, 1): margin 3, target 1: (3 - 1)^2/2 + 0.5/2 * 2 = 2.5
    F = LeastSquares([[1.0, 2.0]], [1.0], l2=0.5)
    w = np.array([1.0, 1.0])
    assert F.value(w) == 2.5
    # (3 - 1) * (1, 2) + 0.5 * (1, 1)
    assert F.gradient(w).tolist() == [2.5, 4.5]
    # with intercept w_3 = -1: margin 2, (2 - 1) * (1, 2, 1) + 0.5 * (1, 1, -1)
    G = LeastSquares([[1.0, 2.0]], [1.0], l2=0.5, intercept=True)
    assert G.gradient(np.array([1.0, 1.0, -1.0])).tolist() == [1.5, 2.5, 0.5]
    # margin log 3 with label -1: loss log(1 + 3), slope 3/4
    H = LogisticRegression([[1.0]], [-1.0])
    at = np.array([math.log(3)])
    assert H.value(at) == pytest.approx(math.log(4), rel=1e-15)
    assert H.gradient(at) == pytest.approx([3 / 4], rel=1e-15)
    assert H.hessian_product(at, np.array([2.0])) == pytest.approx([3 / 8], rel=1e-15)
    # margin 3 with label -1: (1 + 3)^2/2, slope 1 + 3; with label +1 it is beyond the hinge
    J = SquaredHinge([[1.0, 2.0]], [-1.0], l2=0.5)
    assert J.value(w) == 8.5
    assert J.gradient(w).tolist() == [4.5, 8.5]
    # 1 * (1, 2) (1, 2).(1, 0) + 0.5 * (1, 0)
    assert J.hessian_product(w, np.array([1.0, 0.0])).tolist() == [1.5, 2.0]
    beyond = SquaredHinge([[1.0, 2.0]], [1.0], l2=0.5)
    assert beyond.value(w) == 0.5
    assert beyond.gradient(w).tolist() == [0.5, 0.5]
    assert beyond.hessian_product(w, np.array([1.0, 0.0])).tolist() == [0.5, 0.0]
    # The added term: 3/2 * (1 - 3)^2 = 6 and 3 * (1 - 3) = -6
    A = Augmented(NoisyQuadratic([2.0]), lam=3.0, center=[3.0])
    assert A.value(np.array([1.0])) == 7.0
    assert A.gradient(np.array([1.0])).tolist() == [-4.0]


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_logistic_is_stable_at_enormous_margins(kind) -> None:
    # Margins +1e4 (label +1: no loss), -1e4 (label +1: loss 1e4), and their mirror images.
    X = kind(np.array([[1.0], [-1.0], [1.0], [-1.0]]))
    F = LogisticRegression(X, [1.0, 1.0, -1.0, -1.0])
    w = np.array([1e4])
    assert F.value(w) == 5000.0
    assert F.loss(X @ w, F.y).tolist() == [0.0, 1e4, 1e4, 0.0]
    # -y x sigmoid(-y x w): 0, 1, 1, 0
    each = F.stochastic_gradients(np.tile(w, (4, 1)), np.arange(4))
    assert each.ravel().tolist() == [0.0, 1.0, 1.0, 0.0]
    assert F.gradient(w).tolist() == [0.5]
    assert F.hessian_product(w, np.ones(1)).tolist() == [0.0]
    assert F.noise(w) == 0.25


def test_noise_of_equal_rows_is_zero_and_not_negative() -> None:
    F = LeastSquares(np.full((7, 3), 0.1), np.full(7, 0.3))
    assert 0.0 <= F.noise(np.array([1.0, 2.0, 3.0])) < 1e-16


def test_mean_and_variance_of_the_noise_of_a_quadratic() -> None:
    # 40,000 draws in 5 dimensions. Each component of the mean is N(0, sigma^2/(5n)) and
    # n d ||noise||^2/sigma^2 sums to a chi-square with 5n degrees of freedom, of relative
    # standard deviation sqrt(2/(5n)). Five of them each: failure probability 6 * 5.7e-7 < 4e-6.
    n, w = 40_000, np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    noise = QUADRATIC.stochastic_gradients(np.tile(w, (n, 1)), np.arange(n)) - QUADRATIC.gradient(w)
    sigma2 = 0.49
    assert QUADRATIC.noise(w) == pytest.approx(sigma2, rel=1e-15)
    assert np.abs(noise.mean(axis=0)).max() < 5 * math.sqrt(sigma2 / (5 * n))
    assert abs((noise**2).sum(axis=1).mean() / sigma2 - 1) < 5 * math.sqrt(2 / (5 * n))
    # The noise is equal in all directions: ten standard deviations of an entry of the covariance.
    covariance = np.cov(noise.T) * 5 / sigma2
    assert covariance == pytest.approx(np.eye(5), abs=10 / math.sqrt(n))


def test_the_noise_of_a_row_does_not_depend_on_the_point() -> None:
    rows = np.array([0, 5, 2**62 - 1])
    W, V = points(5, 3), points(5, 6)[3:]
    at_w = QUADRATIC.stochastic_gradients(W, rows) - QUADRATIC.stochastic_gradients(V, rows)
    quiet = NoisyQuadratic(QUADRATIC.curvatures, optimum=QUADRATIC.optimum)
    expected = quiet.stochastic_gradients(W, rows) - quiet.stochastic_gradients(V, rows)
    assert at_w == pytest.approx(expected, abs=1e-13)


def test_different_objectives_have_different_fingerprints() -> None:
    prints = {name: make().fingerprint() for name, make in OBJECTIVES.items()}
    assert len(set(prints.values())) == len(prints)
    assert prints == {name: make().fingerprint() for name, make in OBJECTIVES.items()}
    X2, y2 = X.copy(), SIGNS.copy()
    X2[0, 0] += 1e-9
    y2[0] = -y2[0]
    same = LogisticRegression(X, SIGNS, l2=0.1).fingerprint()
    for other in (
        LogisticRegression(X2, SIGNS, l2=0.1),
        LogisticRegression(X, y2, l2=0.1),
        LogisticRegression(X, SIGNS, l2=0.2),
        LogisticRegression(X, SIGNS, l2=0.1, intercept=True),
        LeastSquares(X, SIGNS, l2=0.1),
        SquaredHinge(X, SIGNS, l2=0.1),
    ):
        assert other.fingerprint() != same
    assert NoisyQuadratic([1.0]).fingerprint() != NoisyQuadratic([1.0], sigma=1.0).fingerprint()


def test_the_fingerprint_ignores_the_type_of_sparse_indices() -> None:
    narrow, wide = sp.csr_array(X), sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert wide.indices.dtype != narrow.indices.dtype
    one, other = (LeastSquares(matrix, TARGETS) for matrix in (narrow, wide))
    assert one.fingerprint() == other.fingerprint()


def test_repeated_and_unsorted_sparse_entries_are_merged() -> None:
    # Row 0 holds 1 + 2 in column 1 and 5 in column 0, out of order.
    messy = sp.csr_array(
        (np.array([1.0, 5.0, 2.0, 4.0]), np.array([1, 0, 1, 0]), np.array([0, 3, 4])), shape=(2, 2)
    )
    F = LeastSquares(messy, [1.0, 1.0])
    clean = LeastSquares(sp.csr_array([[5.0, 3.0], [4.0, 0.0]]), [1.0, 1.0])
    assert F.fingerprint() == clean.fingerprint()
    assert F.noise(np.ones(2)) == pytest.approx(clean.noise(np.ones(2)), rel=1e-14)


def test_the_users_sparse_matrix_is_not_changed() -> None:
    messy = sp.csr_array(
        (np.array([1.0, 5.0, 2.0, 4.0]), np.array([1, 0, 1, 0]), np.array([0, 3, 4])), shape=(2, 2)
    )
    LeastSquares(messy, [1.0, 1.0])
    assert messy.data.tolist() == [1.0, 5.0, 2.0, 4.0]
    assert messy.indptr.tolist() == [0, 3, 4]


def test_lanczos_with_rows_that_sum_to_zero(monkeypatch) -> None:
    # lambda_max(X'X/n) = 2 for the single row (1, -1, 0).
    monkeypatch.setattr("fedac.objectives.linear_model.EXACT_SPECTRUM", 0)
    assert LeastSquares([[1.0, -1.0, 0.0]], [1.0]).smoothness == pytest.approx(2.0)


def test_lanczos_on_rows_without_nonzeros(monkeypatch) -> None:
    monkeypatch.setattr("fedac.objectives.linear_model.EXACT_SPECTRUM", 0)
    assert LeastSquares(sp.csr_array((3, 4)), np.ones(3), l2=0.5).smoothness == 0.5


def test_a_loss_without_a_third_derivative_has_no_Q() -> None:
    class Unknown(LeastSquares):
        third_derivative = None

    class Plain(NoisyQuadratic):
        third_order_smoothness = ConvexObjective.third_order_smoothness

    assert Unknown(X, TARGETS).third_order_smoothness is None
    assert Plain([1.0]).third_order_smoothness is None
    assert (
        Augmented(Unknown(X, TARGETS), lam=1.0, center=np.zeros(5)).third_order_smoothness is None
    )


def test_a_linear_model_is_described_on_one_line() -> None:
    F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    assert repr(F) == "LogisticRegression(2 rows, 2 columns, l2=0.5)"


class Double(Objective):
    """A double well of 8 rows, not convex, with the four methods that every objective has."""

    dim, n_samples = 2, 8

    def value(self, w):
        return float((w**4 - w**2).sum())

    def gradient(self, w):
        return 4 * w**3 - 2 * w

    def stochastic_gradients(self, W, rows):
        return 4 * W**3 - 2 * W + 0.1 * (rows - 3.5)[:, None]

    def fingerprint(self):
        return "double well"


def test_an_objective_without_constants_can_be_simulated() -> None:
    check_objective(Double())
    result = simulate(Double(), "fedavg", M=8, K=2, T=200, eta=0.05, start=[0.2, -0.3])
    assert result.best.w == pytest.approx([math.sqrt(1 / 2), -math.sqrt(1 / 2)], abs=0.05)
    assert math.isnan(result.f_star)
    with pytest.raises(NoOptimumError, match="Double"):
        optimum(Double())
    with pytest.raises(InputError, match="mu"):
        simulate(Double(), "fedac-i", M=8, K=2, T=200, eta=0.05)


class Bowl(Double):
    """A convex objective that does not say so by its base class, as there was only one."""

    smoothness, strong_convexity = 1.0, 1.0

    def value(self, w):
        return float(w @ w) / 2

    def gradient(self, w):
        return w

    def hessian_product(self, w, v):
        return v

    def stochastic_gradients(self, W, rows):
        return W + 0.1 * (rows - 3.5)[:, None]

    def fingerprint(self):
        return "bowl"


def test_constants_count_whatever_the_base_class() -> None:
    with pytest.warns(StepSizeWarning, match="1/L = 1"):
        result = simulate(Bowl(), "fedac-i", M=8, K=2, T=8, eta=[1.5, 0.1], mu=0.1, start=[1, 1])
    assert result.f_star == 0.0
    assert result.best.final_loss < 1.0
