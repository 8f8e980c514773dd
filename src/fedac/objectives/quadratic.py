# SPDX-License-Identifier: Apache-2.0
"""A quadratic with Gaussian gradient noise, whose L, mu and sigma are exact."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.federation.sampling import gaussians
from fedac.objectives.base import ConvexObjective, RowNumbers
from fedac.validate import Array, as_numbers, content_hash, require_nonnegative


class NoisyQuadratic(ConvexObjective):
    """F(w) = 1/2 sum_j h_j (w_j - w*_j)^2 with stochastic gradients grad F(w) + noise.

    The noise is N(0, sigma^2/d I), so that E||noise||^2 = sigma^2 everywhere. It is a pure function
    of the row number, which is below 2^62, so runs are exactly repeatable.

    Parameters
    ----------
    curvatures : array of shape (d,)
        The eigenvalues h_j of the Hessian, at least 0.
    optimum : array of shape (d,), optional
        w*. Default: zero.
    sigma : float
        Square root of the noise's variance.

    Examples
    --------
    >>> F = NoisyQuadratic([4.0, 1.0], sigma=0.5)
    >>> F.smoothness, F.strong_convexity, F.noise(np.zeros(2)), F.third_order_smoothness
    (4.0, 1.0, 0.25, 0.0)
    >>> F.gradient(np.array([1.0, 1.0]))
    array([4., 1.])
    """

    n_samples = 2**62
    third_order_smoothness = 0.0

    def __init__(
        self, curvatures: npt.ArrayLike, *, optimum: npt.ArrayLike = 0.0, sigma: float = 0.0
    ) -> None:
        self.curvatures = np.atleast_1d(as_numbers("curvatures", curvatures)).copy()
        if self.curvatures.ndim != 1 or not self.curvatures.size or self.curvatures.min() < 0:
            raise InputError("curvatures must be one or more finite numbers, at least 0")
        self.dim = len(self.curvatures)
        self.sigma = require_nonnegative("sigma", sigma)
        center = as_numbers("optimum", optimum)
        if center.size != 1 and center.shape != (self.dim,):
            raise InputError(f"optimum must have shape ({self.dim},), got {center.shape}")
        self.optimum: Array = np.broadcast_to(center, self.dim).copy()

    def value(self, w: Array) -> float:
        """Return F(w)."""
        return float(self.curvatures @ (w - self.optimum) ** 2) / 2

    def gradient(self, w: Array) -> Array:
        """Return the gradient of F at w."""
        return self.curvatures * (w - self.optimum)

    def hessian_product(self, w: Array, v: Array) -> Array:
        """Return the Hessian times v."""
        return self.curvatures * v

    def stochastic_gradients(self, W: Array, rows: RowNumbers) -> Array:
        """Return grad F(W[m]) plus the noise of row rows[m], for every m."""
        gradients = self.curvatures * (W - self.optimum)
        if self.sigma > 0:
            gradients += self.sigma / math.sqrt(self.dim) * gaussians(rows, self.dim)
        return gradients

    def fingerprint(self) -> str:
        """Return a hash of curvatures, optimum and sigma."""
        return content_hash(f"quadratic {self.sigma!r}", self.curvatures, self.optimum)

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature."""
        return float(self.curvatures.max())

    @property
    def strong_convexity(self) -> float:
        """The smallest curvature."""
        return float(self.curvatures.min())

    def noise(self, w: Array) -> float:
        """Return sigma^2, the same everywhere."""
        return self.noise_bound

    @property
    def noise_bound(self) -> float:
        """``sigma^2``."""
        return self.sigma**2

    def fourth_moment(self, w: Array) -> float:
        """Return sigma^4 (1 + 2/d), the same everywhere."""
        return self.fourth_moment_bound

    @property
    def fourth_moment_bound(self) -> float:
        """``sigma^4 (1 + 2/d)``."""
        return self.sigma**4 * (1 + 2 / self.dim)
