# SPDX-License-Identifier: Apache-2.0
"""The objectives, with values, gradients and the constants of the paper's assumptions."""

from fedac.objectives.base import Augmented, ConvexObjective, Objective
from fedac.objectives.heterogeneity import Heterogeneity
from fedac.objectives.linear_model import LinearModel
from fedac.objectives.losses import (
    LOSSES,
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    SquaredHinge,
)
from fedac.objectives.metrics import HeldOut
from fedac.objectives.minimizer import Optimum, optimum
from fedac.objectives.multiclass import SoftmaxRegression
from fedac.objectives.quadratic import NoisyQuadratic

__all__ = [
    "LOSSES",
    "Augmented",
    "ConvexObjective",
    "HeldOut",
    "Heterogeneity",
    "HuberRegression",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "NoisyQuadratic",
    "Objective",
    "Optimum",
    "PoissonRegression",
    "SoftmaxRegression",
    "SquaredHinge",
    "optimum",
]
