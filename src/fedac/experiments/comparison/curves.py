"""The runs of a comparison along the three axes: what they had reached, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedac.arrays import Array
from fedac.experiments.comparison.budget import Budget

# Below this a suboptimality is rounding error of F*.
EXACT = 1e-15
# A run is judged by the mean of its last records: so large a part of them, at least one.
LAST = 0.05


@dataclass(frozen=True)
class Curve:
    """One run, a number per record, from the start on.

    Attributes
    ----------
    rounds, megabytes, seconds : array
        What the run had cost; megabytes are those of a client that always took part, in both
        directions.
    suboptimality : array
        At each record; infinite if the run diverged.

    Examples
    --------
    >>> axes = [np.array([0.0, 1.0, 2.0])] * 3
    >>> curve = Curve(*axes, suboptimality=np.array([1.0, 0.1, 0.2]))
    >>> curve.cost_of(0.1, "rounds"), curve.cost_of(1e-3, "rounds")
    (1.0, inf)
    >>> ten = Budget(10, "rounds")
    >>> curve.within(ten), curve.smallest_within(ten)
    (0.2, 0.1)
    """

    rounds: Array
    megabytes: Array
    seconds: Array
    suboptimality: Array

    def cost_of(self, target: float, axis: str) -> float:
        """Return what the run cost when a record first met a target; infinity if none did."""
        reached = np.flatnonzero(self.suboptimality <= target)
        return float(getattr(self, axis)[reached[0]]) if reached.size else np.inf

    def within(self, budget: Budget) -> float:
        """Return what the run had reached when a budget was spent: the mean of its last records."""
        found = self._records_within(budget)
        return float(found[-max(1, round(LAST * len(found))) :].mean())

    def smallest_within(self, budget: Budget) -> float:
        """Return the smallest suboptimality within a budget."""
        return float(self._records_within(budget).min())

    def _records_within(self, budget: Budget) -> Array:
        spent: Array = getattr(self, budget.axis)
        # At least the start: a budget may be below the first round.
        return self.suboptimality[: max(1, int(np.searchsorted(spent, budget.amount, "right")))]
