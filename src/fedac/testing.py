# SPDX-License-Identifier: Apache-2.0
"""Checks of user-defined algorithms and objectives, to call from your tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedac.algorithms import Algorithm
from fedac.algorithms.checks import check_functions, couple
from fedac.algorithms.linear import boundary_form, linear_form
from fedac.errors import InputError, NotLinearWarning
from fedac.objectives import Objective


def check_algorithm(mine: Algorithm, *, eta: float = 0.01, mu: float = 0.1) -> None:
    """Check that a user-defined algorithm keeps the contract of `fedac.Algorithm`.

    Calls each of its functions on floats, on arrays and, if PyTorch is installed, on tensors.
    They must return one vector for each of its sequences, keep the shapes and leave their
    arguments unchanged; otherwise an `InputError` says what is wrong. `eta` and `mu` are a step
    size and a strong convexity that its coupling accepts.

    Issues a `NotLinearWarning` if some runtimes cannot run the algorithm. If its step (`query` and
    `update`) is not linear in state and gradient, as with clipping or signs, only the reference
    engine of `simulate` can. If only `enter`, `leave` or `first_memory` is not linear, PyTorch can
    run it too, but the fast engine and Flower cannot. `serve` may be any function.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from fedac.algorithms import FEDAVG
    >>> check_algorithm(FEDAVG)
    >>> check_algorithm(replace(FEDAVG, update=lambda state, w_md, g, hp: w_md - hp.eta * g))
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: algorithm 'fedavg': update must return a tuple of 1, one for each \
sequence (w), not float
    """
    if not isinstance(mine, Algorithm):
        raise InputError(f"check_algorithm needs a fedac.Algorithm, got {mine!r:.60}")
    for K in (1, 16):
        hp = couple(mine, eta=eta, mu=mu, K=K)
        for w_0 in _vectors():
            message = check_functions(mine, hp, w_0)
            if not all(np.isfinite(np.asarray(vector)).all() for vector in message):
                raise InputError(
                    f"algorithm '{mine.name}': a step with gradient 1 must give finite "
                    f"numbers, not {message}"
                )
    try:
        linear_form(mine, hp)
        boundary_form(mine, hp, K)
    except InputError as reason:
        warnings.warn(str(reason), NotLinearWarning, stacklevel=2)


def check_objective(mine: Objective) -> None:
    """Check that the gradient of an objective is the slope of its value.

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> check_objective(NoisyQuadratic([2.0, 1.0]))
    """
    name = type(mine).__name__
    L: float | None = getattr(mine, "smoothness", None)  # a network has none
    if L is not None and not L > 0:
        raise InputError(f"{name}: smoothness must be above 0, got {L:g}")
    w = 0.1 * np.random.default_rng(0).normal(size=mine.dim)
    g = mine.gradient(w)
    size = float(np.linalg.norm(g))
    if not (np.isfinite(mine.value(w)) and np.isfinite(size)):
        raise InputError(f"{name}: value and gradient must be finite, got {mine.value(w)}, {size}")
    step = 1e-5 * g / (size or 1.0)
    slope = (mine.value(w + step) - mine.value(w - step)) / 2e-5
    if abs(slope - size) > 1e-3 * size + 1e-6:
        raise InputError(
            f"{name}: the gradient is not the slope of the value: along it the value rises by "
            f"{slope:.6g}, the gradient's norm is {size:.6g}"
        )


def _vectors() -> Iterator[Any]:
    """Yield a start point of every kind that the runtimes use."""
    yield 1.5
    yield np.array([1.5, -0.5, 2.0])
    yield np.array([[1.5, -0.5, 2.0], [0.5, 1.0, -1.0]])  # a row per worker
    if find_spec("torch"):
        import torch

        yield torch.tensor([1.5, -0.5, 2.0])
