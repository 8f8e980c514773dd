"""One-dimensional objectives whose second derivative takes two values, evaluated exactly."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

# A float, a fraction or an mpmath number: anything with + - * / and an order.
Number = Any


@dataclass(frozen=True)
class PiecewiseQuadratic:
    """F(w) = int_0^w int_0^y H(x) dx dy, where H is L on some intervals and mu elsewhere.

    F is mu-strongly convex and L-smooth, and its minimum is F(0) = 0.
    Paper: F_k of the claim instability:induction.

    Parameters
    ----------
    mu, L : number
        The two curvatures, 0 < mu <= L.
    bumps : tuple of (left, right)
        The closed intervals where H is L: disjoint, in increasing order.

    Examples
    --------
    Curvature 3 on [1, 2] and 1 elsewhere, so the slope at 4 is 1 + 3 + 2:

    >>> F = PiecewiseQuadratic(mu=1.0, L=3.0, bumps=((1.0, 2.0),))
    >>> F.curvature(1.5), F.gradient(4.0)
    (3.0, 6.0)
    """

    mu: Number
    L: Number
    bumps: tuple[tuple[Number, Number], ...] = ()

    def with_bump(self, centre: Number, radius: Number) -> PiecewiseQuadratic:
        """Return the objective with curvature L on [centre - radius, centre + radius] as well."""
        bump = (centre - radius, centre + radius)
        return PiecewiseQuadratic(self.mu, self.L, tuple(sorted((*self.bumps, bump))))

    def curvature(self, w: Number) -> Number:
        """Return F''(w) = H(w), which is mu or L.

        Examples
        --------
        >>> F = PiecewiseQuadratic(mu=1.0, L=3.0, bumps=((1.0, 2.0),))
        >>> [F.curvature(w) for w in (0.99, 1.0, 2.0, 2.01)]
        [1.0, 3.0, 3.0, 1.0]
        """
        bump = self._bump_at_or_below(w)
        return self.L if bump >= 0 and w <= self.bumps[bump][1] else self.mu

    def gradient(self, w: Number) -> Number:
        """Return F'(w) = mu w + (L - mu) times the signed length of bumps from 0 to w."""
        return self.mu * w + (self.L - self.mu) * (self._length(w) - self._length_at_0)

    def _bump_at_or_below(self, w: Number) -> int:
        return bisect_right(self._lefts, w) - 1

    def _length(self, w: Number) -> Number:
        """Return the total length of the bumps below w."""
        bump = self._bump_at_or_below(w)
        if bump < 0:
            return 0
        left, right = self.bumps[bump]
        return self._lengths_before[bump] + min(w, right) - left

    # Cached sums over the bumps, so that a gradient costs one binary search.

    @cached_property
    def _lefts(self) -> list[Number]:
        return [left for left, _ in self.bumps]

    @cached_property
    def _lengths_before(self) -> list[Number]:
        return list(accumulate((right - left for left, right in self.bumps), initial=0))

    @cached_property
    def _length_at_0(self) -> Number:
        return self._length(0)
