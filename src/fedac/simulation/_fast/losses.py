"""The losses of linear models, for the kernels. Losses are types: kernels are compiled for one."""

import math
from typing import NamedTuple

from numba.extending import overload, register_jitable

from fedac.simulation._fast import simd
from fedac.simulation._fast.simd import splat


class Logistic(NamedTuple):
    """The loss log(1 + exp(-y z))."""


class Squares(NamedTuple):
    """The loss (z - y)^2 / 2."""


class SquaredHinge(NamedTuple):
    """The loss max(0, 1 - y z)^2 / 2."""


class Custom(NamedTuple):
    """A loss whose derivative is the user's C function at `address`."""

    address: int


def derivative(loss, z, y):
    """Return the derivative of the loss in the margin z, in every lane."""
    raise NotImplementedError("compiled only")


@overload(derivative, inline="always")
def _derivative(loss, z, y):
    kind = loss.instance_class
    if kind is Logistic:
        return lambda loss, z, y: splat(z, -y) / (simd.exp(z * y) + 1.0)
    if kind is Squares:
        return lambda loss, z, y: z - y
    if kind is SquaredHinge:
        return lambda loss, z, y: simd.maximum(splat(z, 1.0) - z * y, splat(z, 0.0)) * -y

    def custom(loss, z, y):
        for lane in range(simd.width(z)):
            z = simd.insert(z, lane, simd.call(loss.address, simd.extract(z, lane), y))
        return z

    return custom


@register_jitable
def logarithm(v):
    """Return the natural logarithm in every lane, one lane after the other."""
    for lane in range(simd.width(v)):
        v = simd.insert(v, lane, math.log(simd.extract(v, lane)))
    return v


def split_loss(loss, z, y):
    """Return a value and a factor in [1, 2]; the loss is the value plus the factor's logarithm."""
    raise NotImplementedError("compiled only")


@overload(split_loss)
def _split_loss(loss, z, y):
    kind = loss.instance_class
    if kind is Logistic:

        def logistic(loss, z, y):
            m = z * -y
            positive = simd.maximum(m, splat(m, 0.0))
            negative = simd.minimum(m, splat(m, 0.0))
            return positive, simd.exp(negative - positive) + 1.0

        return logistic
    if kind is Squares:
        return lambda loss, z, y: ((z - y) * (z - y) * 0.5, splat(z, 1.0))

    def squared_hinge(loss, z, y):
        gap = simd.maximum(splat(z, 1.0) - z * y, splat(z, 0.0))
        return gap * gap * 0.5, splat(z, 1.0)

    return squared_hinge
