"""The table of a comparison: curves of single runs, rows over fresh seeds, and their formats.

A row is one method with one K and one wire format. Its numbers are geometric means over the fresh
seeds with 90% prediction intervals for the mean of the same number of further seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.question import AXES, Budget, Question
from fedac.experiments.summary import Band, labels_of, predict, predict_ratio
from fedac.federation.spec import Spec
from fedac.validate import Array

if TYPE_CHECKING:
    import pandas as pd

# Below this a suboptimality is rounding error of F*.
EXACT = 1e-15
# A run is judged by the mean of this share of its last records, at least one.
LAST = 0.05
WHOLE_RUN = Budget(math.inf, "rounds")
NO_BAND = Band(math.nan, math.nan, math.nan)


class Variant(NamedTuple):
    """A method with K and a wire format, which is tuned on its own."""

    method: str
    K: int
    wire: str


@dataclass(frozen=True)
class Curve:
    """One run, with a value per record from the start on.

    Attributes
    ----------
    rounds, megabytes, seconds : array
        Cumulative costs; megabytes sent and received by a client that is present in every round.
    suboptimality : array
        Infinite if the run diverged.
    """

    rounds: Array
    megabytes: Array
    seconds: Array
    suboptimality: Array

    @property
    def converged(self) -> bool:
        """Whether the run did not diverge."""
        return math.isfinite(self.suboptimality[-1])

    def cost_of(self, target: float, axis: str) -> float:
        """Return the cost at the first record that meets a target; infinity if none does."""
        reached = np.flatnonzero(self.suboptimality <= target)
        return float(getattr(self, axis)[reached[0]]) if reached.size else np.inf

    def within(self, budget: Budget) -> float:
        """Return the mean suboptimality of the last records within a budget."""
        found = self._records_within(budget)
        return float(found[-max(1, round(LAST * len(found))) :].mean())

    def smallest_within(self, budget: Budget) -> float:
        """Return the smallest suboptimality within a budget."""
        return float(self._records_within(budget).min())

    def _records_within(self, budget: Budget) -> Array:
        spent: Array = getattr(self, budget.axis)
        # At least the start: a budget may end before the first round.
        return self.suboptimality[: max(1, int(np.searchsorted(spent, budget.amount, "right")))]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of a method with one K and wire on fresh seeds.

    ``rounds``, ``megabytes`` and ``seconds`` are the cost of the target, NaN if not all seeds
    reached it. Within the budget, ``suboptimality`` is the mean of the last records, ``smallest``
    the smallest record. ``ratio`` is the cost relative to the first row, seed by seed: seconds to
    the target or, where the first row did not reach it, suboptimality.
    """

    method: str  # as the user named it
    K: int
    wire: str
    algorithm: str  # with the tuned numbers of its server rule
    # Tuned numbers: None where the method has no such number, or every try diverged.
    eta: float | None = None
    server_step: float | None = None
    momentum: float | None = None
    mu: float | None = None
    # Whether eta, or the server's step, is the "smallest" or "largest" one tried.
    edge: str = ""
    server_edge: str = ""
    all_clients: bool  # whether rounds wait for all clients regardless of participation: baselines
    reached: bool | None  # whether all seeds reached the target; None without a target
    seeds_reached: int
    rounds: Band
    megabytes: Band
    seconds: Band
    suboptimality: Band
    smallest: Band
    ratio: Band = NO_BAND

    @property
    def variant(self) -> Variant:
        """The key of the row's curves."""
        return Variant(self.method, self.K, self.wire)

    @property
    def rank(self) -> tuple[float, float]:
        """The sort key: seconds to the target, then suboptimality."""
        seconds = self.seconds.middle if self.reached else math.inf
        middle = self.suboptimality.middle
        return seconds, math.inf if math.isnan(middle) else middle

    @property
    def diverged(self) -> bool:
        """Whether no setting converged on all seeds."""
        return not math.isfinite(self.suboptimality.middle)

    @property
    def level(self) -> bool:
        """Whether the seeds cannot separate it from the first row."""
        return self.ratio.low <= 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer to a question.

    Attributes
    ----------
    rows : tuple of Row
        The best first.
    budget : Budget
        The limit within which suboptimality is measured.
    curves : dict
        By method, K and wire: a `Curve` for each fresh seed.
    runs : int
        Number of runs, including runs that the store already had.
    disguised : int
        Number of FedAc runs that degenerate to FedAvg (`Workload.disguised`).
    f_star : float
        The minimum of the objective.
    dim : int
        Number of parameters.
    """

    question: Question
    rows: tuple[Row, ...]
    budget: Budget
    curves: Mapping[Variant, tuple[Curve, ...]]
    runs: int
    disguised: int
    f_star: float
    dim: int

    @property
    def spec(self) -> Spec:
        """The options of the question."""
        return self.question.spec

    @cached_property
    def best_rows(self) -> tuple[Row, ...]:
        """The best row of every method and wire, the best first."""
        best: dict[tuple[str, str], Row] = {}
        for row in self.rows:
            best.setdefault((row.method, row.wire), row)
        return tuple(best.values())

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels of the methods, in the order of the rows."""
        methods = list(dict.fromkeys(row.method for row in self.rows))
        labels = dict(zip(methods, labels_of(methods), strict=True))
        who = "" if self.spec.participation == 1 else " with all clients"
        return labels | {name: BASELINES[name] + who for name in BASELINES if name in labels}


def make_row(
    variant: Variant,
    curves: Sequence[Curve],
    target: float | None,
    budget: Budget,
    every: int,
    **setting: Any,
) -> Row:
    """Summarize the curves of the fresh seeds, which have a record after every `every` rounds."""
    reached = [c.cost_of(target, "rounds") < math.inf for c in curves] if target else []
    within = smallest = NO_BAND
    if curves:
        within = predict([curve.within(budget) for curve in curves])
        smallest = predict([curve.smallest_within(budget) for curve in curves])
    tuned: dict[str, Any] = {"algorithm": variant.method, **setting}
    costs: dict[str, Any] = {**find_costs(curves, target, every)}
    return Row(
        **variant._asdict(),
        **tuned,
        all_clients=variant.method in BASELINES,
        reached=None if target is None else bool(reached) and all(reached),
        seeds_reached=sum(reached),
        **costs,
        suboptimality=within,
        smallest=smallest,
    )


def rank_rows(
    rows: Sequence[Row],
    curves: Mapping[Variant, Sequence[Curve]],
    target: float | None,
    budget: Budget,
) -> tuple[Row, ...]:
    """Sort rows and compare each with the first."""
    ranked = sorted(rows, key=lambda row: row.rank)
    found = [curves.get(row.variant, ()) for row in ranked]
    return tuple(
        replace(row, ratio=find_ratio(ours, found[0], target, budget))
        for row, ours in zip(ranked, found, strict=True)
    )


def find_costs(curves: Sequence[Curve], target: float | None, every: int) -> dict[str, Band]:
    """Return the cost of a target on every axis; NaN if a seed did not reach it.

    Records are `every` rounds apart, so a cost is known to within one record: the interval grows by
    half a record on both sides. 0 if nothing is random.
    """
    if target is None or not curves:
        return dict.fromkeys(AXES, NO_BAND)
    costs = {axis: [curve.cost_of(target, axis) for curve in curves] for axis in AXES}
    if math.inf in costs["rounds"]:
        return dict.fromkeys(AXES, NO_BAND)
    slack = every / 2 / max(every, *costs["rounds"])  # as a share
    return {axis: predict(values, slack=slack) for axis, values in costs.items()}


def find_ratio(
    curves: Sequence[Curve], best: Sequence[Curve], target: float | None, budget: Budget
) -> Band:
    """Return the cost of some curves relative to the best row's, seed by seed."""
    if not curves:
        return NO_BAND
    if target is not None:
        costs = [[curve.cost_of(target, "seconds") for curve in each] for each in (curves, best)]
        if math.inf not in costs[1]:
            return predict_ratio(*costs)
    return predict_ratio(*([curve.within(budget) for curve in each] for each in (curves, best)))


def to_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the rows as a DataFrame; a band becomes three columns."""
    import pandas as pd

    return pd.DataFrame([_flat(row) for row in comparison.rows])


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for JSON, with null in place of NaN and infinity."""
    question, spec = comparison.question, comparison.spec
    rows = [{name: _finite(value) for name, value in _flat(row).items()} for row in comparison.rows]
    return {
        "rows": rows,
        "best": rows[0] if rows and not comparison.rows[0].diverged else None,
        **question.subject,
        "f_star": comparison.f_star,
        "rounds": spec.rounds,
        "target": spec.target,
        "budget": {"amount": _finite(comparison.budget.amount), "axis": comparison.budget.axis},
        "link": str(question.link),
        "tries": spec.tries,
        "tuning_seed": spec.seed,
        "tuning_seeds": list(question.tuning_seeds),
        "methods": list(question.methods),
        "fresh_seeds": list(question.fresh_seeds),
        "runs": comparison.runs,
    }


def to_latex(comparison: Comparison) -> str:
    """Return the best row of every method as a LaTeX table (package booktabs)."""
    axes = AXES if comparison.spec.target is not None else ()
    heads = ["method", "$K$", "$\\eta$", "server step, momentum", "$\\mu$"]
    heads += [{"megabytes": "MB"}.get(axis, axis) for axis in axes]
    heads += [f"$F - F^*$ within {comparison.budget}"]
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        " & ".join(heads) + " \\\\",
        "\\midrule",
    ]
    for row in comparison.best_rows:
        method = row.method + (f", {row.wire}" if row.wire != "float32" else "")
        for character in "&%$#_{}":
            method = method.replace(character, f"\\{character}")
        server = [f"{value:.3g}" for value in (row.server_step, row.momentum) if value is not None]
        texts = [method, str(row.K), "--" if row.eta is None else f"{row.eta:.3g}"]
        texts += [", ".join(server), "" if row.mu is None else f"{row.mu:.3g}"]
        texts += [_latex_band(getattr(row, name)) for name in (*axes, "suboptimality")]
        lines.append(" & ".join(texts) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, Band):
            flat[field.name] = value.middle
            flat |= {f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        else:
            flat[field.name] = value
    return flat | {"level": row.level}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _latex_band(band: Band) -> str:
    if not math.isfinite(band.middle):
        return "--"
    return f"{_latex(band.middle)} ({_latex(band.low)}--{_latex(band.high)})"


def _latex(value: float) -> str:
    if value != 0 and abs(value) < 0.01:
        digits, exponent = f"{value:.1e}".split("e")
        return f"${digits} \\cdot 10^{{{int(exponent)}}}$"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
