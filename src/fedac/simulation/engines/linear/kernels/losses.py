# SPDX-License-Identifier: Apache-2.0
"""The losses of `fedac.objectives.losses`, compiled for the vectors of the kernels."""

import math
from functools import partial
from typing import NamedTuple

from fedac.objectives import losses as formulas
from fedac.simulation.engines.linear.kernels import simd
from fedac.simulation.engines.linear.kernels.interface import by_type, helper, overload
from fedac.simulation.engines.linear.kernels.simd import splat


class Custom(NamedTuple):
    """A loss whose derivative is the user's C function at `address`."""

    address: int


class Softmax(NamedTuple):
    """The loss log sum_c exp(z_c) - z_y of a row with a margin for each class, y its number."""

    classes: int


@overload(formulas.exp)
def _exp(x):
    return lambda x: simd.exp(x)


@overload(formulas.sigmoid)
def _sigmoid(x):
    return lambda x: 1.0 / (simd.exp(-x) + 1.0)


@overload(formulas.positive_part)
def _positive_part(x):
    return lambda x: simd.maximum(x, splat(x, 0.0))


_DERIVATIVES = {type(loss): helper(loss.derivative) for loss in formulas.FORMULAS.values()}
_SPLITS = {type(loss): helper(loss.split) for loss in formulas.FORMULAS.values()}


@partial(by_type, inline=True)
def derivative(loss, z, y):
    """Return the derivative of the loss in the margin z, in every lane."""
    if loss.instance_class is Custom:

        def custom(loss, z, y):
            for lane in range(len(z)):
                z = simd.insert(z, lane, simd.call(loss.address, simd.extract(z, lane), y))
            return z

        return custom
    formula = _DERIVATIVES[loss.instance_class]
    return lambda loss, z, y: formula(z, y)


@helper
def logarithm(v):
    """Return the natural logarithm in every lane, one lane after the other."""
    for lane in range(len(v)):
        v = simd.insert(v, lane, math.log(simd.extract(v, lane)))
    return v


@by_type
def split_loss(loss, z, y):
    """Return a value and a factor in [1, 2]; the loss is the value plus the factor's logarithm."""
    formula = _SPLITS[loss.instance_class]
    return lambda loss, z, y: formula(z, y)
