# SPDX-License-Identifier: Apache-2.0
"""The losses of linear models: formulas, and the built-in l2-regularized objectives.

A formula is an empty named tuple with static methods. It is written once, for NumPy and for the
compiled kernels, each of which is compiled for one loss. It uses operators and the few functions
below, which call NumPy and SciPy on arrays and are overloaded for the vectors of the fast engine
(`simulation/engines/linear/kernels/losses.py`). The margin is ``z = x.w``, the target ``y``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import expit

from fedac.data.dataset import BINARY, MULTICLASS, REAL, Dataset
from fedac.errors import InputError
from fedac.objectives.base import ConvexObjective, Objective
from fedac.objectives.linear_model import PROBABILITIES, TARGETS, DataObjective, LinearModel
from fedac.objectives.multiclass import SoftmaxRegression
from fedac.validate import NO_L1, Array, import_named, look_up

# Factors of at most 2 in one product: 2^512 is far from overflow.
FACTORS = 512
# Margins at which a kernel is compared with the derivative; odd ones, to miss kinks.
PROBES = (-29.3, -3.1, -0.97, -0.52, -0.11, 0.013, 0.13, 0.48, 1.03, 2.9, 31.7)


def exp(x: Any) -> Any:
    """Return e^x."""
    return np.exp(x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return expit(x)


def positive_part(x: Any) -> Any:
    """Return max(x, 0)."""
    return np.maximum(x, 0.0)


class LogisticLoss(NamedTuple):
    """The loss log(1 + exp(-y z)), with y = -1 or +1."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, Any]:
        """Return a value and a factor in [1, 2]; the loss is the value plus log(factor)."""
        # log(1 + exp(m)) = max(m, 0) + log(1 + exp(-|m|)). Many factors are multiplied before the
        # logarithm is taken.
        m = -y * z
        return positive_part(m), exp(-abs(m)) + 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return -y / (1 + exp(y z))."""
        return -y * sigmoid(-y * z)


class SquaredLoss(NamedTuple):
    """The loss (z - y)^2 / 2."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        return (z - y) * (z - y) * 0.5, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return z - y."""
        return z - y


class SquaredHingeLoss(NamedTuple):
    """The loss max(0, 1 - y z)^2 / 2, with y = -1 or +1."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        gap = positive_part(1.0 - y * z)
        return gap * gap * 0.5, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return -y max(0, 1 - y z)."""
        return -y * positive_part(1.0 - y * z)


class HuberLoss(NamedTuple):
    """The loss r^2 / 2 of r = z - y up to |r| = 1, and |r| - 1/2 beyond."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        r = z - y
        beyond = positive_part(abs(r) - 1.0)
        return (r * r - beyond * beyond) * 0.5, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return z - y, but at least -1 and at most 1."""
        r = z - y
        return r - positive_part(r - 1.0) + positive_part(-r - 1.0)


class PoissonLoss(NamedTuple):
    """The loss exp(z) - y z of a count y whose expectation is exp(z)."""

    @staticmethod
    def split(z: Any, y: Any) -> tuple[Any, float]:
        """Return the loss, and 1."""
        return exp(z) - z * y, 1.0

    @staticmethod
    def derivative(z: Any, y: Any) -> Any:
        """Return exp(z) - y."""
        return exp(z) - y


FORMULAS: dict[str, Any] = {
    "logistic": LogisticLoss(),
    "squares": SquaredLoss(),
    "squared-hinge": SquaredHingeLoss(),
    "huber": HuberLoss(),
    "poisson": PoissonLoss(),
}


def has_kernel(kind: type[DataObjective]) -> bool:
    """Return whether a class has a kernel for its own derivative, not for one that it overrides."""
    for base in kind.__mro__:
        if "kernel" in vars(base):
            return vars(base)["kernel"] is not None
        if vars(base).keys() & {"derivative", "_slopes", "stochastic_gradients"}:
            return False
    return False


def check_kernel(model: LinearModel) -> None:
    """Raise `InputError` if the kernel and `derivative` differ at some margins."""
    name, kernel = type(model).__name__, type(model).kernel
    if not has_kernel(type(model)):
        return
    if isinstance(kernel, str):
        kernel = look_up("kernel", kernel, FORMULAS).derivative
    function = getattr(kernel, "py_func", kernel)  # without Numba's compiler
    targets = model.y[:: -(-model.n_samples // 4)]
    z, y = np.tile(PROBES, len(targets)), np.repeat(targets, len(PROBES))
    for z_i, y_i, expected in zip(z, y, model.derivative(z, y), strict=True):
        try:
            found = float(function(z_i, y_i))
        except Exception as error:
            raise InputError(
                f"{name}.kernel must be a function (z, y) -> float; it fails: {error}"
            ) from error
        if not math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9):
            raise InputError(
                f"{name}.kernel must compute what {name}.derivative does; at z={z_i:g}, "
                f"y={y_i:g} it gives {found:.6g} instead of {expected:.6g}"
            )


class _BuiltIn(LinearModel):
    """A linear model whose `kernel` names one of the formulas."""

    def loss(self, z: Array, y: Array) -> Any:
        return FORMULAS[self.kernel].split(z, y)[0]

    def derivative(self, z: Array, y: Array) -> Any:
        return FORMULAS[self.kernel].derivative(z, y)


class LogisticRegression(_BuiltIn):
    """F(w) = 1/n sum_i log(1 + exp(-y_i x_i.w)) + l2/2 ||w||^2 with y_i = -1 or +1.

    The objective of the paper's experiments.

    Examples
    --------
    >>> F = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.gradient(np.zeros(2)), F.smoothness
    (array([-0.25,  0.5 ]), 1.0)
    """

    slope = 1.0
    curvature = 1 / 4
    kernel = "logistic"
    predicts = PROBABILITIES
    needs_signs = True
    third_derivative = 1 / (6 * math.sqrt(3))  # where sigmoid(z) = 1/2 +- 1/(2 sqrt 3)

    def loss(self, z: Array, y: Array) -> Array:
        """Return log(1 + exp(-y z)), without overflow."""
        return np.logaddexp(0.0, -y * z)

    def mean_loss(self, z: Array, y: Array) -> float:
        """Return the mean loss, with one logarithm for many margins."""
        if self.weights is not None:
            return super().mean_loss(z, y)
        values, some = FORMULAS[self.kernel].split(z, y)
        factors = np.ones(-(-len(some) // FACTORS) * FACTORS)
        factors[: len(some)] = some
        products = factors.reshape(-1, FACTORS).prod(axis=1)
        return float((values.sum() + np.log(products).sum()) / len(values))

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return sigmoid(z) sigmoid(-z)."""
        return np.asarray(expit(z) * expit(-z))


class LeastSquares(_BuiltIn):
    """F(w) = 1/(2n) sum_i (x_i.w - y_i)^2 + l2/2 ||w||^2 (ridge regression).

    Examples
    --------
    >>> F = LeastSquares([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.value(np.zeros(2)), F.smoothness, F.third_order_smoothness
    (0.5, 2.5, 0.0)
    """

    curvature = 1.0
    kernel = "squares"
    predicts = TARGETS
    third_derivative = 0.0

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1."""
        return np.ones_like(z)


class SquaredHinge(_BuiltIn):
    """F(w) = 1/(2n) sum_i max(0, 1 - y_i x_i.w)^2 + l2/2 ||w||^2 with y_i = -1 or +1.

    A support vector machine with a smooth objective. Its second derivative jumps, so it has no Q.

    Examples
    --------
    >>> F = SquaredHinge([[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0], l2=0.5)
    >>> F.gradient(np.zeros(2))
    array([-0.5,  1. ])
    """

    curvature = 1.0
    kernel = "squared-hinge"
    needs_signs = True

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1 inside the margin, 0 outside."""
        return (y * z < 1).astype(np.float64)


class HuberRegression(_BuiltIn):
    """F(w) = 1/n sum_i h(x_i.w - y_i) + l2/2 ||w||^2, with h(r) = r^2/2 up to |r| = 1.

    Beyond 1, h(r) = |r| - 1/2: single targets that are far off count less than in least squares.
    Targets of another scale should be divided by their typical error.

    Examples
    --------
    >>> F = HuberRegression([[1.0], [1.0]], [0.5, 10.0])
    >>> F.gradient(np.zeros(1))
    array([-0.75])
    """

    slope = 1.0
    curvature = 1.0
    kernel = "huber"
    predicts = TARGETS

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return 1 where the residual is below 1, else 0."""
        return (np.abs(z - y) < 1).astype(np.float64)


class PoissonRegression(_BuiltIn):
    """F(w) = 1/n sum_i [exp(x_i.w) - y_i x_i.w] + l2/2 ||w||^2 with counts y_i.

    The expectation of a count is exp(x_i.w). The curvature grows with it, so no L holds
    everywhere, and the paper's theorems do not apply: `smoothness` assumes that every prediction is
    the mean count, which gives step sizes a scale.

    Examples
    --------
    >>> F = PoissonRegression([[1.0], [1.0]], [3.0, 5.0])
    >>> F.gradient(np.log([4.0])).round(12), F.smoothness
    (array([0.]), 4.0)
    """

    kernel = "poisson"
    predicts = TARGETS

    def __init__(self, X: Any, y: Any, *, l2: float = 0.0, intercept: bool = False) -> None:
        super().__init__(X, y, l2=l2, intercept=intercept)
        if not (self.y >= 0).all():
            raise InputError(f"PoissonRegression needs counts, at least 0, got {self.y.min():g}")

    def predict(self, z: Array) -> Array:
        """Return exp(z)."""
        return np.asarray(np.exp(z))

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """The second derivative of the loss where the prediction is the mean count."""
        return max(float(self._weigh(self.y).mean()), 1.0)

    def second_derivative(self, z: Array, y: Array) -> Array:
        """Return exp(z)."""
        return np.asarray(np.exp(z))


LOSSES: dict[str, type[LinearModel] | type[SoftmaxRegression]] = {
    "logistic": LogisticRegression,
    "softmax": SoftmaxRegression,
    "least-squares": LeastSquares,
    "huber": HuberRegression,
    "poisson": PoissonRegression,
    "squared-hinge": SquaredHinge,
}
"""The losses by the names that commands and grids use."""


def find_loss(name: str) -> type[ConvexObjective]:
    """Return the class of a built-in loss, or import the user's ``module:name``.

    The user's class must take ``(X, y, l2=..., intercept=...)``, as `LinearModel` does.
    """
    if name.lower() in ("l1", "lasso", "elastic-net", "elasticnet"):
        raise InputError(f"there is no loss {name}: {NO_L1}")
    if ":" not in name:
        return look_up("loss", name, LOSSES)
    found = import_named("loss", name, _is_objective)
    if not _is_objective(found):
        raise InputError(f"'{name}' must be a subclass of fedac.objectives.Objective")
    return cast(type[ConvexObjective], found)


def _is_objective(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Objective)


# The loss of each kind of target, and what it is called.
BY_KIND = {BINARY: "logistic", MULTICLASS: "softmax", REAL: "least-squares"}
TITLES = {
    "logistic": "logistic regression",
    "softmax": "softmax regression",
    "least-squares": "least squares",
    "huber": "Huber regression",
    "poisson": "Poisson regression",
    "squared-hinge": "a support vector machine",
}


def describe_target(data: Dataset, loss: str) -> str:
    """Describe the targets and the model that fits them.

    >>> describe_target(Dataset("d", np.eye(3), ["no", "yes", "no"]), "logistic")
    '2 classes: no, yes; logistic regression'
    """
    y = targets_of(data, loss)
    what = data.describe_target() if y is data.y else f"numbers from {y.min():g} to {y.max():g}"
    return f"{what}; {TITLES.get(loss, loss)}"


def choose_loss(data: Dataset, loss: str | None) -> str:
    """Return `loss` after checking that it suits the targets. Default: by the kind of targets."""
    if data.text:
        raise InputError(
            f"{data.name} is text, which needs a network: --model 'char_gpt(2,64,64)', or a Network"
        )
    if loss is None:
        return BY_KIND[data.kind]
    is_classes = loss in ("logistic", "squared-hinge", "softmax")
    if is_classes and data.kind == REAL:
        raise InputError(
            f"{data.name} has {data.describe_target()}, but {loss} needs classes: use "
            "least-squares, huber or poisson"
        )
    if is_classes and loss != "softmax" and data.kind == MULTICLASS:
        raise InputError(
            f"{data.name} has {data.describe_target()}, but {loss} needs two: use softmax"
        )
    return loss


def targets_of(data: Dataset, loss: str) -> Array:
    """Return the targets of a data set as a loss takes them."""
    as_numbers = loss == "poisson" or (
        loss in ("least-squares", "huber") and data.kind == MULTICLASS
    )
    if not as_numbers or data.kind == REAL:
        return data.y
    if data.labels.dtype.kind not in "iuf":
        raise InputError(f"{data.name} has {data.describe_target()}, but {loss} needs numbers")
    return data.labels.astype(np.float64)


def objective_of(
    data: Dataset, loss: str, *, l2: float, intercept: bool = False
) -> ConvexObjective:
    """Build the objective of a data set, with a loss that `choose_loss` returned."""
    if loss == "softmax":  # with all classes of the data, even if none of these rows has one
        classes = (-1.0, 1.0) if data.kind == BINARY else range(len(data.classes or ()))
        return SoftmaxRegression(data.X, data.y, l2=l2, intercept=intercept, classes=classes)
    return make_objective(loss, data.X, targets_of(data, loss), l2=l2, intercept=intercept)


def make_objective(
    loss: str, X: Any, y: Any, *, l2: float, intercept: bool = False
) -> ConvexObjective:
    """Build an objective with a built-in or a user-defined loss.

    >>> make_objective("fedac:LeastSquares", [[1.0], [2.0]], [1.0, 3.0], l2=0.5).smoothness
    3.0
    """
    kind: Any = find_loss(loss)
    try:
        objective: ConvexObjective = kind(X, y, l2=l2, intercept=intercept)
        if ":" in loss:
            from fedac.testing import check_objective

            check_objective(objective)
    except InputError:
        raise
    except Exception as error:  # a user's class may fail in any way
        call = f"{loss}(X, y, l2={l2:g}, intercept={intercept})"
        raise InputError(f"{call} failed: {type(error).__name__}: {error}") from error
    return objective
