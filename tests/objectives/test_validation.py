# SPDX-License-Identifier: Apache-2.0
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
HUGE = np.array([[1.0, -1e300], [1.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize("model", [LogisticRegression, LeastSquares, SquaredHinge])
@pytest.mark.parametrize("kind", [np.array, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("X", "y", "l2", "reason"),
    [
        (X, y, -1e-9, "l2 must be a finite number, at least 0, got"),
        (X, y, math.nan, "l2 must be a finite number, at least 0, got"),
        (X + math.inf, y, 0.0, "X has NaN or infinite entries"),
        (X + math.nan, y, 0.0, "X has NaN or infinite entries"),
        (HUGE, y, 0.0, r"X has an entry of -1e\+300, and squares overflow above"),
        (np.ones((0, 2)), y[:0], 0.0, "X must be a matrix with rows and columns, got shape"),
        (np.ones((3, 0)), y, 0.0, "X must be a matrix with rows and columns, got shape"),
        (X, [1.0, math.nan, 1.0], 0.0, "infinite entries|is infinite|is missing"),
        (X, [1.0, -math.inf, 1.0], 0.0, "infinite entries|is infinite|is missing"),
        (X, y[:2], 0.0, "X has 3 rows but y has shape"),
        (X, y[:, None], 0.0, "X has 3 rows but y has shape"),
        (X, 1.0, 0.0, "X has 3 rows but y has shape"),
    ],
)
def test_data(model, kind, X, y, l2: float, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        model(kind(X), y, l2=l2)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 1)])
def test_dense_data_has_two_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="X must be a matrix with rows and columns, got shape"):
        LeastSquares(np.ones(shape), y)


@pytest.mark.parametrize("label", [0.0, 2.0, 0.5])
def test_labels(label: float) -> None:
    for model in (LogisticRegression, SquaredHinge):
        with pytest.raises(InputError, match="needs two classes, but y has real targets"):
            model(X, [1.0, label, -1.0])
    LeastSquares(X, [1.0, label, -1.0])


@pytest.mark.parametrize(
    ("curvatures", "more", "reason"),
    [
        ([1.0, -1e-9], {}, "curvatures must be one or more finite numbers, at least 0"),
        ([], {}, "curvatures must be one or more finite numbers, at least 0"),
        ([[1.0, 2.0]], {}, "curvatures must be one or more finite numbers, at least 0"),
        ([math.inf, 1.0], {}, "curvatures has NaN or infinite entries"),
        (["steep"], {}, "curvatures must be numbers in an array, got"),
        ([1.0], {"sigma": -0.1}, "sigma must be a finite number, at least 0, got"),
        ([1.0], {"sigma": math.nan}, "sigma must be a finite number, at least 0, got"),
        ([1.0, 2.0], {"optimum": [1.0, 2.0, 3.0]}, r"optimum must have shape \(2,\), got \(3,\)"),
        ([1.0], {"optimum": [math.nan]}, "optimum has NaN or infinite entries"),
        ([1.0], {"optimum": None}, "optimum has NaN or infinite entries"),
    ],
)
def test_quadratics(curvatures: list, more: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        NoisyQuadratic(curvatures, **more)


@pytest.mark.parametrize(
    ("lam", "center", "reason"),
    [
        (0.0, [0.0, 0.0], "lam must be a finite number above 0"),
        (math.inf, [0.0, 0.0], "lam must be a finite number above 0"),
        (1.0, [1.0], r"center must have shape \(2,\), got"),
        (1.0, 0.0, r"center must have shape \(2,\), got"),
        (1.0, [[1.0, 2.0]], r"center must have shape \(2,\), got"),
        (1.0, [math.nan, 1.0], "center has NaN or infinite entries"),
    ],
)
def test_augmented(lam: float, center: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Augmented(NoisyQuadratic([1.0, 1.0]), lam=lam, center=center)
