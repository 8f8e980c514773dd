# SPDX-License-Identifier: Apache-2.0
"""Objectives F(w) = E f(w; xi): values, gradients and, for convex ones, the paper's constants.

``xi`` is a row number below `n_samples`, even if the noise is artificial. Which rows a client
draws is up to the federation. `Augmented` adds an l2 term to any convex objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.validate import Array, as_numbers, content_hash, require_positive

if TYPE_CHECKING:
    from fedac.data.clients import Clients
    from fedac.objectives.heterogeneity import Heterogeneity

RowNumbers = npt.NDArray[np.int64]

# `fourth_moment`: row gradients held in memory at once, and the most rows it visits.
BLOCK = 1024
MOST_ROWS = 10**8


class Objective(ABC):
    """A function F of `dim` parameters with a gradient for each of its `n_samples` rows.

    Methods that need no constants of F can be simulated on any subclass.
    """

    dim: int
    n_samples: int
    is_network: ClassVar[bool] = False  # asked before anything imports PyTorch
    averaged_buffers: int = 0  # numbers that the server averages in addition to the parameters

    @abstractmethod
    def value(self, w: Array) -> float:
        """Return F(w)."""

    @abstractmethod
    def gradient(self, w: Array) -> Array:
        """Return the gradient of F at w."""

    @abstractmethod
    def stochastic_gradients(self, W: Array, rows: RowNumbers) -> Array:
        """Return the gradient of f(.; rows[m]) at W[m] for every m, an array of W's shape."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of everything that determines F."""

    def start(self, seed: int) -> Array:
        """Return w_0 (default: the start of the published runs)."""
        return np.random.RandomState(1).randn(self.dim)

    def weighted(self, weights: Array) -> Self:
        """Return F with its rows weighted in proportion to `weights`."""
        raise InputError(f"the rows of {type(self).__name__} cannot be weighted")

    def values(self, W: Array) -> Array:
        """Return F(W[k]) for every k."""
        return np.array([self.value(w) for w in W])

    def stochastic_gradient(self, w: Array, row: int) -> Array:
        """Return the gradient of f(.; row) at w."""
        return np.asarray(self.stochastic_gradients(w[None, :], np.array([row]))[0])


class ConvexObjective(Objective):
    """A convex objective with the constants of the paper's assumptions asm1 and asm2.

    The default ``fourth_moment`` visits all rows.
    """

    @abstractmethod
    def hessian_product(self, w: Array, v: Array) -> Array:
        """Return the Hessian of F at w, times v."""

    @cached_property
    @abstractmethod
    def smoothness(self) -> float:
        """L of asm1 (b)."""

    @property
    @abstractmethod
    def strong_convexity(self) -> float:
        """``mu`` of asm1 (a)."""

    @cached_property
    def third_order_smoothness(self) -> float | None:
        """Q of asm2 (a), or None if no closed form is known."""
        return None

    @abstractmethod
    def noise(self, w: Array) -> float:
        """Return sigma^2 at w: E ||grad f(w; xi) - grad F(w)||^2 (asm1 (c))."""

    @property
    def noise_bound(self) -> float | None:
        """An upper bound on `noise` at every w, or None if none is known."""
        return None

    def fourth_moment(self, w: Array) -> float:
        """Return sigma4^4 at w: E ||grad f(w; xi) - grad F(w)||^4 (asm2 (b))."""
        if self.n_samples > MOST_ROWS:
            raise InputError(f"{type(self).__name__} has too many rows: define its fourth_moment")
        mean, total = self.gradient(w), 0.0
        for first in range(0, self.n_samples, BLOCK):
            rows = np.arange(first, min(first + BLOCK, self.n_samples))
            deviations = self.stochastic_gradients(np.tile(w, (len(rows), 1)), rows) - mean
            total += float((np.einsum("md,md->m", deviations, deviations) ** 2).sum())
        return total / self.n_samples

    @property
    def fourth_moment_bound(self) -> float | None:
        """An upper bound on `fourth_moment` at every w, or None if none is known."""
        return None

    def heterogeneity(
        self, clients: Clients | npt.ArrayLike, weighting: str = "examples"
    ) -> Heterogeneity:
        """Return how far the clients' objectives are from F, their weighted mean.

        Parameters
        ----------
        clients : Clients or array
            The rows of each client, or the name of every row's client.
        weighting : str
            ``examples`` weights clients by their rows, p_m = n_m/n; ``uniform`` equally, p_m = 1/N.

        Examples
        --------
        Two clients, (w - 1)^2 / 2 and (w - 3)^2 / 2. At w* = 2 their gradients are 1 and -1.

        >>> from fedac.objectives import LeastSquares
        >>> LeastSquares([[1.0], [1.0]], [1.0, 3.0]).heterogeneity(["oslo", "rome"])
        Heterogeneity(gradients=1.0, hessians=0.0)
        """
        from fedac.objectives.heterogeneity import measure

        return measure(self, clients, weighting)


class Augmented(ConvexObjective):
    """F(w) + lam/2 ||w - w_0||^2 (equation eq:aug), for the general convex case.

    The added term is quadratic and not random, so noise and Q do not change.

    Parameters
    ----------
    base : ConvexObjective
        F.
    lam : float
        Strength, above 0.
    center : array of shape (d,)
        w_0, the point the iterates start from.

    Examples
    --------
    >>> from fedac.objectives import NoisyQuadratic
    >>> F = Augmented(NoisyQuadratic([4.0, 0.0]), lam=0.5, center=[0.0, 2.0])
    >>> F.smoothness, F.strong_convexity
    (4.5, 0.5)
    >>> F.gradient(np.array([1.0, 1.0]))
    array([ 4.5, -0.5])
    """

    def __init__(self, base: ConvexObjective, *, lam: float, center: npt.ArrayLike) -> None:
        self.base = base
        self.lam = require_positive("lam", lam)
        self.center = as_numbers("center", center).copy()
        if self.center.shape != (base.dim,):
            raise InputError(f"center must have shape ({base.dim},), got {self.center.shape}")
        self.dim = base.dim
        self.n_samples = base.n_samples

    def value(self, w: Array) -> float:
        """Return F(w) + lam/2 ||w - w_0||^2."""
        offset = w - self.center
        return self.base.value(w) + self.lam / 2 * float(offset @ offset)

    def gradient(self, w: Array) -> Array:
        """Return the gradient at w."""
        return self.base.gradient(w) + self.lam * (w - self.center)

    def hessian_product(self, w: Array, v: Array) -> Array:
        """Return the Hessian at w, times v."""
        return self.base.hessian_product(w, v) + self.lam * v

    def stochastic_gradients(self, W: Array, rows: RowNumbers) -> Array:
        """Return the gradients of F's rows plus the gradient of the added term."""
        return self.base.stochastic_gradients(W, rows) + self.lam * (W - self.center)

    def weighted(self, weights: Array) -> Self:
        """Return the same with the rows of F weighted."""
        return type(self)(self.base.weighted(weights), lam=self.lam, center=self.center)

    def fingerprint(self) -> str:
        """Return a hash of F, lam and the center."""
        return content_hash(f"augmented {self.base.fingerprint()} {self.lam!r}", self.center)

    @cached_property
    def smoothness(self) -> float:
        """``L + lam``."""
        return self.base.smoothness + self.lam

    @property
    def strong_convexity(self) -> float:
        """``mu + lam``."""
        return self.base.strong_convexity + self.lam

    @cached_property
    def third_order_smoothness(self) -> float | None:
        """Q of F."""
        return self.base.third_order_smoothness

    def noise(self, w: Array) -> float:
        """Return sigma^2 of F."""
        return self.base.noise(w)

    @property
    def noise_bound(self) -> float | None:
        """The bound of F."""
        return self.base.noise_bound

    def fourth_moment(self, w: Array) -> float:
        """Return sigma4^4 of F."""
        return self.base.fourth_moment(w)

    @property
    def fourth_moment_bound(self) -> float | None:
        """The bound of F."""
        return self.base.fourth_moment_bound
