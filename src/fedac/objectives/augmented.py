"""The l2-augmented objective, which makes any convex objective strongly convex."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy.typing as npt

from fedac.errors import InputError
from fedac.objectives.base import ConvexObjective, RowNumbers
from fedac.validate import Array, as_numbers, content_hash, require_positive


class Augmented(ConvexObjective):
    """F(w) + lam/2 ||w - w_0||^2 (equation eq:aug), for the general convex case.

    It is lam-strongly convex and (L + lam)-smooth. The added term is quadratic and
    not random, so noise and Q do not change.

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
    >>> import numpy as np
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
