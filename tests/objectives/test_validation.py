"""Objectives refuse bad input and say why."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from fedac.errors import InputError
from fedac.objectives import (
    Augmented,
    LeastSquares,
    LogisticRegression,
    NoisyQuadratic,
    SquaredHinge,
)

X = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
y = np.array([1.0, -1.0, 1.0])

every_model = pytest.mark.parametrize("model", [LogisticRegression, LeastSquares, SquaredHinge])
both_kinds = pytest.mark.parametrize("kind", [np.array, sp.csr_array], ids=["dense", "sparse"])


@every_model
@pytest.mark.parametrize("l2", [-1e-9, math.nan, math.inf])
def test_l2(model, l2: float) -> None:
    with pytest.raises(InputError, match="l2 must be a finite number, at least 0, got"):
        model(X, y, l2=l2)


@every_model
@both_kinds
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_entries_of_X(model, kind, bad: float) -> None:
    with pytest.raises(InputError, match="X has NaN or infinite entries"):
        model(kind(np.array([[1.0, bad]])), [1.0])


@every_model
@both_kinds
def test_entries_whose_squares_overflow(model, kind) -> None:
    with pytest.raises(InputError, match=r"X has an entry of -1e\+300, and squares overflow above"):
        model(kind(np.array([[1.0, -1e300]])), [1.0])


@every_model
@both_kinds
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_entries_of_y(model, kind, bad: float) -> None:
    with pytest.raises(InputError, match="y has NaN or infinite entries"):
        model(kind(X), [1.0, bad, 1.0])


@every_model
@both_kinds
@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_shape_of_y(model, kind, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="X has 3 rows but y has shape"):
        model(kind(X), np.ones(shape))


@both_kinds
@pytest.mark.parametrize("label", [0.0, 2.0, 0.5])
def test_labels(kind, label: float) -> None:
    for model in (LogisticRegression, SquaredHinge):
        with pytest.raises(InputError, match=r"needs labels -1 and \+1"):
            model(kind(X), [1.0, label, -1.0])
    LeastSquares(kind(X), [1.0, label, -1.0])


@every_model
@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (3,), (3, 2, 1)])
def test_shape_of_X(model, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="X must be a matrix with rows and columns, got shape"):
        model(np.ones(shape), y[: shape[0]])


@every_model
@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_shape_of_sparse_X(model, shape: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="X must be a matrix with rows and columns"):
        model(sp.csr_array(shape), y[: shape[0]])


@pytest.mark.parametrize(
    ("curvatures", "reason"),
    [
        ([1.0, -1e-9], "must be one or more finite numbers, at least 0"),
        ([], "must be one or more finite numbers, at least 0"),
        ([[1.0, 2.0]], "must be one or more finite numbers, at least 0"),
        ([math.nan], "has NaN or infinite entries"),
        ([math.inf, 1.0], "has NaN or infinite entries"),
        (["steep"], "must be numbers in an array, got"),
    ],
)
def test_curvatures(curvatures: list, reason: str) -> None:
    with pytest.raises(InputError, match=f"curvatures {reason}"):
        NoisyQuadratic(curvatures)


@pytest.mark.parametrize("sigma", [-0.1, math.nan, math.inf])
def test_sigma(sigma: float) -> None:
    with pytest.raises(InputError, match="sigma must be a finite number, at least 0, got"):
        NoisyQuadratic([1.0], sigma=sigma)


@pytest.mark.parametrize(
    ("curvatures", "optimum", "reason"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], r"must have shape \(2,\), got \(3,\)"),
        ([1.0], [math.nan], "has NaN or infinite entries"),
        ([1.0], None, "has NaN or infinite entries"),
    ],
)
def test_the_optimum_of_a_quadratic(curvatures: list, optimum: object, reason: str) -> None:
    with pytest.raises(InputError, match=f"optimum {reason}"):
        NoisyQuadratic(curvatures, optimum=optimum)


@pytest.mark.parametrize("lam", [0.0, -1.0, math.nan, math.inf])
def test_lam(lam: float) -> None:
    with pytest.raises(InputError, match="lam must be a finite number above 0"):
        Augmented(NoisyQuadratic([1.0]), lam=lam, center=[0.0])


@pytest.mark.parametrize("center", [[1.0], [1.0, 2.0, 3.0], 0.0, [[1.0, 2.0]]])
def test_shape_of_center(center: object) -> None:
    with pytest.raises(InputError, match=r"center must have shape \(2,\), got"):
        Augmented(NoisyQuadratic([1.0, 1.0]), lam=1.0, center=center)


def test_entries_of_center() -> None:
    with pytest.raises(InputError, match="center"):
        Augmented(NoisyQuadratic([1.0]), lam=1.0, center=[math.nan])
