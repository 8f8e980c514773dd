# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedac.errors import NoOptimumError
from fedac.objectives import (
    Augmented,
    LeastSquares,
    LogisticRegression,
    NoisyQuadratic,
    Objective,
    SquaredHinge,
    minimizer,
    optimum,
)

rng = np.random.default_rng(3)
X = rng.standard_normal((60, 4))
SIGNS = np.where(X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(60) > 0, 1.0, -1.0)

OBJECTIVES = {
    "logistic": LogisticRegression(X, SIGNS, l2=1e-3),
    "logistic sparse": LogisticRegression(sp.csr_array(X), SIGNS, l2=1e-6, intercept=True),
    "logistic without l2": LogisticRegression(X, SIGNS),
    "least squares": LeastSquares(X, X @ [1.0, 2.0, 3.0, 4.0] + 0.1, l2=1e-3),
    "squared hinge": SquaredHinge(X, SIGNS, l2=1e-3),
    "squared hinge without l2": SquaredHinge(sp.csr_array(X), SIGNS),
    "quadratic": NoisyQuadratic([1e4, 1.0, 1e-4], optimum=[1.0, -2.0, 3.0], sigma=1.0),
    "flat quadratic": NoisyQuadratic([1.0, 0.0], optimum=[2.0, 5.0]),
    "augmented": Augmented(LogisticRegression(X, SIGNS), lam=0.1, center=[5.0, 0.0, 0.0, -5.0]),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAC_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[Objective]:
    """Give the list of the objectives that were solved, not read from the cache."""
    seen: list[Objective] = []
    solve = minimizer._minimize

    def spy(objective: Objective) -> np.ndarray:
        seen.append(objective)
        return solve(objective)

    monkeypatch.setattr(minimizer, "_minimize", spy)
    return seen


@every_objective
def test_the_gradient_vanishes(objective: Objective) -> None:
    best = optimum(objective)
    assert np.linalg.norm(objective.gradient(best.w)) < 1e-12
    assert best.value == objective.value(best.w)


@every_objective
def test_every_direction_leads_up(objective: Objective) -> None:
    best = optimum(objective)
    others = np.random.default_rng(4).standard_normal((10, objective.dim))
    for direction in [*np.eye(objective.dim), *others]:
        for size in (-1.0, 0.1):
            assert objective.value(best.w + size * direction) >= best.value
    away = best.w + 0.1 * np.ones(objective.dim)
    assert objective.value(away) > best.value


@pytest.mark.parametrize("scale", [1e-9, 1.0, 2e5, 1e12])
def test_the_tolerance_is_relative(cache: Path, solved: list, scale: float) -> None:
    # The gradient's rounding error is a share of the targets: at 2e5 it is above 1e-12.
    y = scale * (1 + 0.1 * X @ [1.0, 2.0, 3.0, 4.0] + 0.01 * rng.standard_normal(60))
    objective = LeastSquares(X, y, l2=1e-3)
    exact = np.linalg.solve(X.T @ X / 60 + 1e-3 * np.eye(4), X.T @ y / 60)
    assert optimum(objective).w == pytest.approx(exact, rel=1e-10)
    assert optimum(objective).w == pytest.approx(exact, rel=1e-10)
    assert len(solved) == 1, "the second is read from the cache"


def test_rows_with_large_gradients_that_cancel(cache: Path) -> None:
    # The gradient at zero is only rounding error, and so is that at the optimum.
    centered = X - X.mean(axis=0)
    assert optimum(LeastSquares(centered, np.full(60, 2e5), l2=1e-3)).w == pytest.approx(
        0, abs=1e-6
    )


def test_the_optimum_of_a_quadratic_is_known() -> None:
    assert optimum(OBJECTIVES["quadratic"]).w == pytest.approx([1.0, -2.0, 3.0], rel=1e-8)


def test_the_second_call_reads_the_cache(cache: Path, solved: list) -> None:
    objective = OBJECTIVES["logistic"]
    first, second = optimum(objective), optimum(LogisticRegression(X, SIGNS, l2=1e-3))
    assert len(solved) == 1
    assert np.array_equal(first.w, second.w)
    assert first.value == second.value
    assert [p.name for p in cache.rglob("*") if p.is_file()] == [f"{objective.fingerprint()}.npy"]


def test_different_objectives_are_solved_separately(cache: Path, solved: list) -> None:
    optimum(OBJECTIVES["logistic"])
    optimum(LogisticRegression(X, SIGNS, l2=2e-3))
    assert len(solved) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no array at all"),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: np.save(path, np.zeros(4)),
        lambda path: np.save(path, np.full(4, np.nan)),
        lambda path: np.save(path, np.zeros(5)),
        lambda path: np.save(path, np.zeros(4, dtype=np.int64)),
        lambda path: np.save(path, np.array([{}] * 4), allow_pickle=True),
    ],
    ids=["empty", "text", "cut", "wrong", "nan", "shape", "type", "pickle"],
)
def test_a_damaged_file_is_replaced(cache: Path, solved: list, damage) -> None:
    objective = OBJECTIVES["logistic"]
    good = optimum(objective)
    (path,) = (p for p in cache.rglob("*.npy"))
    damage(path)
    again = optimum(objective)
    assert len(solved) == 2
    assert np.array_equal(again.w, good.w)
    optimum(objective)
    assert len(solved) == 2, "the repaired file is used"


def test_a_cache_that_cannot_be_written_is_ignored(tmp_path: Path, monkeypatch, solved) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a directory")
    monkeypatch.setenv("FEDAC_CACHE", str(occupied))
    objective = OBJECTIVES["quadratic"]
    assert optimum(objective).w == pytest.approx([1.0, -2.0, 3.0], rel=1e-8)
    optimum(objective)
    assert len(solved) == 2
    assert occupied.read_text() == "not a directory"


def test_one_newton_step_is_enough_at_the_optimum(cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(minimizer, "NEWTON_STEPS", 1)
    objective = NoisyQuadratic([1.0], optimum=[0.0])
    assert optimum(objective).w.tolist() == [0.0]


def test_a_long_step_may_reach_the_optimum(cache: Path) -> None:
    # L-BFGS stays at zero, where the gradient is 1e-10; one Newton step of length 1 is exact.
    objective = NoisyQuadratic([1.0, 1e-10], optimum=[0.0, 1.0])
    assert optimum(objective).w == pytest.approx([0.0, 1.0], abs=1e-6)


class Ramp(NoisyQuadratic):
    """An unbounded function that claims to have a little curvature."""

    def value(self, w):
        return float(w.sum())

    def gradient(self, w):
        return np.ones_like(w)


def test_an_unbounded_objective_has_no_optimum(cache: Path) -> None:
    with pytest.raises(
        NoOptimumError, match=r"no optimum found: at norm .* is still 1\.4.*larger l2"
    ):
        optimum(Ramp([1e-3, 1e-3]))
    assert not list(cache.rglob("*.npy"))


def test_an_l2_that_is_too_small_is_blamed(cache: Path) -> None:
    # One-hot columns of two groups: without l2 weight can move from one group to the other.
    groups = np.array([[i % 2, 1 - i % 2, i % 3 == 0, i % 3 != 0] for i in range(60)], dtype=float)
    signs = np.where(rng.standard_normal(60) > 0, 1.0, -1.0)
    with pytest.raises(NoOptimumError, match="l2 is too small for this data") as caught:
        optimum(LogisticRegression(groups, signs, l2=1e-20))
    assert "should be under" not in str(caught.value)


def test_separable_data_without_l2_have_no_optimum(cache: Path) -> None:
    with pytest.raises(NoOptimumError, match=r"too flat.* l2 is too small .* use a larger one$"):
        optimum(LogisticRegression([[1.0], [2.0], [-1.0]], [1.0, 1.0, -1.0]))


@pytest.mark.slow
@pytest.mark.parametrize(("l2", "value"), [(1e-3, 0.3333407520687), (1e-4, 0.3245069247138)])
def test_a9a(a9a, l2: float, value: float) -> None:
    objective = LogisticRegression(a9a.X, a9a.y, l2=l2)
    best = optimum(objective)
    assert best.value == pytest.approx(value, rel=0, abs=1e-12)
    assert np.linalg.norm(objective.gradient(best.w)) < 1e-12


def test_a9a_at_the_published_start(a9a) -> None:
    objective = LogisticRegression(a9a.X, a9a.y, l2=1e-3)
    w_0 = np.random.RandomState(1).randn(123)
    assert objective.value(w_0) == pytest.approx(1.1451013886529, rel=0, abs=1e-12)
