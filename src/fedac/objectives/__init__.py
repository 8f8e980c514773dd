"""The objectives, with values, gradients and the constants of the paper's assumptions."""

from fedac.objectives.augmented import Augmented
from fedac.objectives.base import Objective
from fedac.objectives.least_squares import LeastSquares
from fedac.objectives.linear_model import LinearModel
from fedac.objectives.logistic import LogisticRegression
from fedac.objectives.minimizer import Optimum, optimum
from fedac.objectives.named import LOSSES, make
from fedac.objectives.quadratic import NoisyQuadratic
from fedac.objectives.squared_hinge import SquaredHinge

__all__ = [
    "LOSSES",
    "Augmented",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "NoisyQuadratic",
    "Objective",
    "Optimum",
    "SquaredHinge",
    "make",
    "optimum",
]
