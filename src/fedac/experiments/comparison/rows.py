"""The table of a comparison: a row per method, K and wire, over the fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedac.experiments.comparison.budget import AXES, Budget
from fedac.experiments.comparison.curves import Curve
from fedac.experiments.seeds import Band, predict

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
        The tuned one: its server step may differ.
    eta, server_step : float or None
        As tuned; no eta if every try diverged, no server step if the server takes the mean.
    edge : "smallest", "largest" or ""
        Whether eta is at an edge of those tried.
    reached : bool
        Whether all seeds reached the target.
    seeds_reached : int
        How many did.
    rounds, megabytes, seconds : Band
        The cost of the target; NaN if not all seeds reached it, or without a target. The middle is
        the geometric mean over the seeds, from low to high is where that of as many further seeds
        will be, with probability 90%.
    suboptimality : Band
        The same of what was reached within the budget.
    """

    method: str
    K: int
    wire: str
    algorithm: str
    eta: float | None
    server_step: float | None
    edge: str
    reached: bool
    seeds_reached: int
    rounds: Band
    megabytes: Band
    seconds: Band
    suboptimality: Band

    @property
    def rank(self) -> tuple[float, float]:
        """What rows are sorted by: the seconds to the target, then what was reached."""
        seconds = self.seconds.middle if self.reached else math.inf
        middle = self.suboptimality.middle
        return seconds, math.inf if math.isnan(middle) else middle


def find_costs(curves: Sequence[Curve], target: float | None, every: int) -> dict[str, Band]:
    """Return the cost of a target on every axis; NaN if a seed did not reach it.

    Records are `every` so many rounds apart: a cost is only known to within one record.
    """
    if target is None or not curves:
        return dict.fromkeys(AXES, NOTHING)
    costs = {axis: [curve.cost_of(target, axis) for curve in curves] for axis in AXES}
    if math.inf in costs["rounds"]:
        return dict.fromkeys(AXES, NOTHING)
    slack = every / 2 / max(every, *costs["rounds"])  # half a record, as a share
    return {axis: predict(values, slack=slack) for axis, values in costs.items()}


def find_reached(curves: Sequence[Curve], budget: Budget) -> Band:
    """Return what was reached within a budget."""
    return predict([curve.within(budget) for curve in curves]) if curves else NOTHING


def within_runs(budget: Budget, curves: Sequence[Curve]) -> Budget:
    """Return a budget that is no larger than what the longest run costs."""
    ends = [float(getattr(curve, budget.axis)[-1]) for curve in curves]
    return budget._replace(amount=min(budget.amount, max(ends, default=budget.amount)))


def common_budget(curves: Sequence[Curve]) -> Budget:
    """Return the time in which every run ends."""
    return Budget(min((float(curve.seconds[-1]) for curve in curves), default=0.0), "seconds")
