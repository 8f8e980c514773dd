"""The runs of a comparison along the three axes: what they had reached, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedac.experiments.comparison.question import AXES, Budget
from fedac.experiments.summary import Band, predict, predict_ratio
from fedac.validate import Array

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


# --- The table of a comparison: a row per method, K and wire, over the fresh seeds.

WHOLE = Budget(math.inf, "rounds")
NOTHING = Band(math.nan, math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a method achieved with one K on fresh seeds.

    Attributes
    ----------
    method : str
        As the user named it.
    algorithm : str
        The tuned one: the numbers of its server rule may differ.
    eta, server_step, momentum, mu : float or None
        As tuned: the clients' step size, the server's step and momentum, and mu of the coupling.
        None where a method has none, or every try diverged.
    edge, server_edge : "smallest", "largest" or ""
        Whether eta, or the server's step, is at an edge of those tried.
    all_clients : bool
        Whether its rounds wait for all clients, whatever the participation: the baselines.
    reached : bool or None
        Whether all seeds reached the target; None without a target.
    seeds_reached : int
        How many did.
    rounds, megabytes, seconds : Band
        The cost of the target; NaN if not all seeds reached it, or without a target. The middle is
        the geometric mean over the seeds, from low to high the 90% prediction interval for that of
        as many further seeds.
    suboptimality : Band
        The same of what was reached within the budget: the mean of the last records of each run.
    smallest : Band
        The same of the smallest record.
    ratio : Band
        What this row took, times the first row: seconds to the target or, where that is not
        reached, suboptimality. Seed by seed, with the same kind of interval.
    """

    method: str
    K: int
    wire: str
    algorithm: str
    eta: float | None
    server_step: float | None
    momentum: float | None
    mu: float | None
    edge: str
    server_edge: str
    all_clients: bool
    reached: bool | None
    seeds_reached: int
    rounds: Band
    megabytes: Band
    seconds: Band
    suboptimality: Band
    smallest: Band
    ratio: Band = NOTHING

    @property
    def rank(self) -> tuple[float, float]:
        """What rows are sorted by: the seconds to the target, then what was reached."""
        seconds = self.seconds.middle if self.reached else math.inf
        middle = self.suboptimality.middle
        return seconds, math.inf if math.isnan(middle) else middle

    @property
    def diverged(self) -> bool:
        """Whether no setting converged on all seeds."""
        return not math.isfinite(self.suboptimality.middle)

    @property
    def level(self) -> bool:
        """Whether seeds do not tell it from the first row."""
        return self.ratio.low <= 1


def find_costs(curves: Sequence[Curve], target: float | None, every: int) -> dict[str, Band]:
    """Return the cost of a target on every axis; NaN if a seed did not reach it.

    Records are `every` so many rounds apart, and a cost is known to within one: half a record is
    added to both sides. 0 if nothing is random.
    """
    if target is None or not curves:
        return dict.fromkeys(AXES, NOTHING)
    costs = {axis: [curve.cost_of(target, axis) for curve in curves] for axis in AXES}
    if math.inf in costs["rounds"]:
        return dict.fromkeys(AXES, NOTHING)
    slack = every / 2 / max(every, *costs["rounds"])  # as a share
    return {axis: predict(values, slack=slack) for axis, values in costs.items()}


def find_ratio(
    curves: Sequence[Curve], best: Sequence[Curve], target: float | None, budget: Budget
) -> Band:
    """Return how many times as much some seeds took as the same seeds of the best row."""
    if not curves:
        return NOTHING
    if target is not None:
        costs = [[curve.cost_of(target, "seconds") for curve in each] for each in (curves, best)]
        if math.inf not in costs[1]:
            return predict_ratio(*costs)
    return predict_ratio(*([curve.within(budget) for curve in each] for each in (curves, best)))
