"""The runs of a comparison along the three axes: what they had reached, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedac.arrays import Array
from fedac.experiments.comparison.budget import Budget

# Below this a suboptimality is rounding error of F*.
EXACT = 1e-15


@dataclass(frozen=True)
class Curve:
    """One run, a number per record, from the start on.

    Attributes
    ----------
    rounds, megabytes, seconds : array
        What the run had cost; megabytes are those of a client that always took part, in both
        directions.
    suboptimality : array
        The smallest so far, infinite from where the run diverged.
    """

    rounds: Array
    megabytes: Array
    seconds: Array
    suboptimality: Array

    def cost_of(self, target: float, axis: str) -> float:
        """Return what the run cost until it reached a target; infinity if it did not.

        Examples
        --------
        >>> axes = [np.array([0.0, 1.0, 2.0])] * 3
        >>> curve = Curve(*axes, suboptimality=np.array([1.0, 0.1, 0.01]))
        >>> curve.cost_of(0.1, "rounds"), curve.cost_of(1e-3, "rounds")
        (1.0, inf)
        """
        reached = np.flatnonzero(self.suboptimality <= target)
        return float(getattr(self, axis)[reached[0]]) if reached.size else np.inf

    def within(self, budget: Budget) -> float:
        """Return what the run reached within a budget."""
        spent: Array = getattr(self, budget.axis)
        return float(self.suboptimality[np.searchsorted(spent, budget.amount, "right") - 1])


def smallest_so_far(suboptimality: Array, *, diverged: bool) -> Array:
    """Return the smallest suboptimality up to each record; none of a run that diverged counts."""
    if diverged:
        return np.full(len(suboptimality), np.inf)
    smallest: Array = np.minimum.accumulate(np.maximum(suboptimality, EXACT))
    return smallest
