# SPDX-License-Identifier: Apache-2.0
"""A kernel must compute the derivative of its loss; formulas are the same in both engines."""

import numpy as np
import pytest
from numba import njit

from fedac.errors import InputError
from fedac.objectives import (
    HuberRegression,
    LeastSquares,
    LinearModel,
    LogisticRegression,
    PoissonRegression,
    SquaredHinge,
)
from fedac.objectives.losses import FORMULAS, check_kernel, has_kernel
from fedac.simulation.engines.linear.kernels import losses
from fedac.simulation.engines.linear.kernels.simd import Template, load, store

X, TARGETS, SIGNS = np.eye(3), np.array([0.5, -2.0, 3.0]), np.array([1.0, -1.0, 1.0])


class Huber(LinearModel):
    curvature = 1.0
    kernel = staticmethod(njit(lambda z, y: min(max(z - y, -1.0), 1.0)))

    def loss(self, z, y):
        r = np.abs(z - y)
        return np.where(r <= 1, r**2 / 2, r - 0.5)

    def derivative(self, z, y):
        return np.clip(z - y, -1.0, 1.0)

    def second_derivative(self, z, y):
        return (np.abs(z - y) <= 1).astype(float)


def test_a_kernel_that_agrees_is_accepted() -> None:
    Huber(X, TARGETS)


@pytest.mark.parametrize(
    "kernel",
    [
        njit(lambda z, y: z - y),  # differs beyond a distance of 1
        njit(lambda z, y: min(max(y - z, -1.0), 1.0)),
        lambda z, y: 1.0001 * min(max(z - y, -1.0), 1.0),
        lambda z, y: float("nan"),
        "squares",
    ],
)
def test_a_kernel_that_disagrees_is_refused(kernel) -> None:
    wrong = type(
        "Wrong", (Huber,), {"kernel": kernel if isinstance(kernel, str) else staticmethod(kernel)}
    )
    with pytest.raises(
        InputError, match=r"Wrong\.kernel must compute what Wrong\.derivative does; at z="
    ):
        wrong(X, TARGETS)


def test_a_kernel_that_fails_is_refused() -> None:
    broken = type("Broken", (Huber,), {"kernel": staticmethod(lambda z: z)})
    with pytest.raises(InputError, match=r"Broken\.kernel must be a function \(z, y\) -> float"):
        broken(X, TARGETS)


def test_a_parents_kernel_is_not_compared_with_an_overridden_derivative() -> None:
    class Clipped(LeastSquares):
        def derivative(self, z, y):
            return np.clip(z - y, -0.1, 0.1)

    assert not has_kernel(Clipped)


def test_a_loss_may_set_its_parameters_late() -> None:
    class Scaled(Huber):
        kernel = staticmethod(njit(lambda z, y: 2.0 * (z - y)))

        def __init__(self, X, y, scale):
            super().__init__(X, y)
            self.scale = scale

        def derivative(self, z, y):
            return self.scale * (z - y)

    check_kernel(Scaled(X, TARGETS, 2.0))
    with pytest.raises(InputError, match="must compute what"):
        check_kernel(Scaled(X, TARGETS, 3.0))


@njit
def compiled_derivatives(lanes, loss, z, y, out):
    for i in range(0, z.size, len(lanes)):
        store(out, i, losses.derivative(loss, load(lanes, z, i), y))


@njit
def compiled_losses(lanes, loss, z, y, out):
    for i in range(0, z.size, len(lanes)):
        value, factor = losses.split_loss(loss, load(lanes, z, i), y)
        store(out, i, value + losses.logarithm(load(lanes, z, i) * 0.0 + factor))


MODELS = {
    "logistic": LogisticRegression(X, SIGNS),
    "squares": LeastSquares(X, TARGETS),
    "squared-hinge": SquaredHinge(X, SIGNS),
    "huber": HuberRegression(X, TARGETS),
    "poisson": PoissonRegression(X, np.abs(TARGETS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("y", [1.0, -1.0])
def test_compiled_losses_are_those_of_the_objectives(name: str, y: float) -> None:
    z = np.linspace(-40, 40, 1604)
    model, loss, out = MODELS[name], FORMULAS[name], np.empty_like(z)
    lanes = Template(np.float64, 4)
    compiled_derivatives(lanes, loss, z, y, out)
    exact = name not in ("logistic", "poisson")  # which need exp, NumPy's or ours
    assert out == pytest.approx(
        model.derivative(z, np.full_like(z, y)), rel=0 if exact else 1e-14, abs=0
    )
    compiled_losses(lanes, loss, z, y, out)
    assert out == pytest.approx(
        model.loss(z, np.full_like(z, y)), rel=0 if exact else 1e-14, abs=0 if exact else 3e-16
    )


def test_an_unlisted_loss_is_refused() -> None:
    from typing import NamedTuple

    class Unlisted(NamedTuple):
        pass

    z = np.zeros(4)
    for kernel in (compiled_derivatives, compiled_losses):
        with pytest.raises(Exception, match="Unlisted"):
            kernel(Template(np.float64, 4), Unlisted(), z, 1.0, z)
