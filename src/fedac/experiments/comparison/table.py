# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison: curves of single runs, rows over fresh seeds, and the verdict.

A row is one method with one K and one wire format. Its numbers are geometric means over the fresh
seeds with 90% prediction intervals for the mean of the same number of further seeds.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.handover import hand_over
from fedac.experiments.comparison.question import (
    AXES,
    SUBOPTIMALITY,
    Budget,
    Question,
    Target,
    own_metrics,
)
from fedac.experiments.summary import Band, band_text, labels_of, predict, predict_ratio
from fedac.federation.compression import FLOAT32
from fedac.federation.spec import Spec
from fedac.objectives.metrics import METRICS
from fedac.simulation.result import edge_of, metric_column
from fedac.validate import Array, look_up

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Below this a suboptimality is rounding error of F*.
EXACT = 1e-15
# A run is judged by the mean of this share of its last records, at least one.
LAST = 0.05
WHOLE_RUN = Budget(math.inf, "rounds")
NO_BAND = Band(math.nan, math.nan, math.nan)
# Costs within 0.1% are the same: on every seed, a few bytes more would make a method slower.
SAME = 1.001
LOSS = "training loss"
# A verdict always mentions these, even if they do not win.
WELL_KNOWN = ("fedavg", "fedac-i")
# A method that ends above this share of its first loss has learned nothing.
LEARNED = 0.99
# A longer list of methods would not be read.
MOST_NAMED = 5
UNITS = {"rounds": " rounds", "megabytes": " MB", "seconds": " seconds"}
# The columns of `Comparison.table`.
SHOWN = ("method", "K", "wire", "eta", *AXES, "suboptimality", "ratio", "level")


class Variant(NamedTuple):
    """A method with K, a wire format and a mode, which is tuned on its own."""

    method: str
    K: int
    wire: str
    mode: str = "rounds"


@dataclass(frozen=True)
class Curve:
    """One run: cumulative costs and suboptimality, with a value per record from the start on."""

    rounds: Array
    megabytes: Array  # sent and received by a client that is present in every round
    seconds: Array
    suboptimality: Array  # infinite if the run diverged
    metrics: Mapping[str, Array] = field(default_factory=dict)  # on the test set, by name

    @property
    def converged(self) -> bool:
        """Whether the run did not diverge."""
        return math.isfinite(self.suboptimality[-1])

    def cost_of(self, target: Target, axis: str) -> float:
        """Return the cost at the first record that meets a target; infinity if none does."""
        reached = np.flatnonzero(self.converged & target.met_by(self._values(target.metric)))
        return float(getattr(self, axis)[reached[0]]) if reached.size else np.inf

    def within(self, budget: Budget, metric: str = SUBOPTIMALITY) -> float:
        """Return the mean suboptimality, or metric, of the last records within a budget."""
        found = self._records_within(budget, metric)
        return float(found[-max(1, round(LAST * len(found))) :].mean())

    def smallest_within(self, budget: Budget) -> float:
        """Return the smallest suboptimality within a budget."""
        return float(self._records_within(budget).min())

    def _values(self, metric: str) -> Array:
        return self.suboptimality if metric == SUBOPTIMALITY else self.metrics[metric]

    def _records_within(self, budget: Budget, metric: str = SUBOPTIMALITY) -> Array:
        spent: Array = getattr(self, budget.axis)
        # At least the start: a budget may end before the first round.
        last = max(1, int(np.searchsorted(spent, budget.amount, "right")))
        return self._values(metric)[:last]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of a method with one K and wire on fresh seeds.

    ``rounds``, ``megabytes`` and ``seconds`` are the cost of the target, NaN if not all seeds
    reached it. Within the budget, ``suboptimality`` is the mean of the last records, ``smallest``
    the smallest record. ``ratio`` is the cost relative to the first row, seed by seed: seconds to
    the target or, where the first row did not reach it, suboptimality. ``metrics`` are those on
    the test set: the mean over the seeds of the last records within the budget.
    """

    method: str  # as the user named it
    K: int
    wire: str
    mode: str = "rounds"
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
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    curves: tuple[Curve, ...] = field(default=(), repr=False, compare=False)  # of the fresh seeds

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
        return self.ratio.low <= SAME


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """The answer to a question. Printed, it is the table and the verdict.

    Attributes
    ----------
    rows : tuple of Row
        The best first.
    budget : Budget
        The limit within which suboptimality is measured.
    runs : int
        Number of runs, including runs that the store already had.
    disguised : int
        Number of FedAc runs that degenerate to FedAvg (`Workload.disguised`).
    f_star : float
        The minimum of the objective.
    dim : int
        Number of parameters.
    model : str
        What the targets are, and the model: "2 classes: ill, well; logistic regression".
    test : str or None
        Name of the test set.

    Examples
    --------
    >>> from fedac import compare
    >>> found = compare("synthetic", ["fedavg", "fedac-i"], K=8, rounds=20, clients=10, l2=1e-2,
    ...                 target=0.05, tries=6, repeats=2)
    >>> found.table[["method", "K"]].to_dict("records")[0]
    {'method': 'fedac-i', 'K': 8}
    >>> found.verdict.split(" (")[0], len(found.frame.columns)
    ('FedAc-I', 33)
    """

    question: Question
    rows: tuple[Row, ...]
    budget: Budget
    runs: int
    disguised: int
    f_star: float
    dim: int
    model: str
    test: Any = None

    def __repr__(self) -> str:
        """Return title, table and verdict."""
        table = self._short_table().to_string(index=False, float_format="{:.3g}".format, na_rep="-")
        return f"{self.title}\n\n{table}\n\n{self.verdict}"

    def _repr_html_(self) -> str:
        table = self._short_table().to_html(
            index=False, float_format="{:.3g}".format, na_rep="-", border=0
        )
        title, verdict = html.escape(self.title), html.escape(self.verdict)
        verdict = verdict.replace("\n", "<br>\n")
        return f"<p><b>{title}</b></p>\n{table}\n<p>{verdict}</p>"

    @property
    def title(self) -> str:
        """The data set, the model and the federation in one line."""
        spec = self.spec
        who = f"{spec.workers} workers"
        if spec.workers is None:
            who = f"{spec.clients or ''} clients, split {spec.split or 'iid'}".lstrip()
        if spec.participation != 1:
            who += f", participation {spec.participation:g}"
        l2 = f", l2 = {spec.l2:g}" if spec.l2 else ""
        return f"{spec.dataset} ({self.model}){l2}: {who}"

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All rows and columns; a number with its interval is three columns."""
        import pandas as pd

        return pd.DataFrame([_flat(row, self.measure) for row in self.rows])

    @cached_property
    def table(self) -> pd.DataFrame:
        """The ten most important columns: each method (and wire) at its best K, the best first.

        If there are several modes, the best one is a column too. With a test set, its metrics
        follow.
        """
        best = [self.rows.index(row) for row in self.best_rows]
        names = (*METRICS, *own_metrics(self.spec))
        tests = [name for name in map(metric_column, names) if name in self.frame]
        shown = [_column(self.measure) if name == SUBOPTIMALITY else name for name in SHOWN]
        if len(self.question.modes) > 1:
            shown.insert(shown.index("wire") + 1, "mode")
        return self.frame.loc[best, [*shown, *tests]].reset_index(drop=True)

    def _short_table(self) -> pd.DataFrame:
        """Return the table without empty columns, and without the wire if all use float32."""
        table = self.table.dropna(axis=1, how="all")
        return table.drop(columns="wire") if set(table["wire"]) == {FLOAT32} else table

    @property
    def verdict(self) -> str:
        """Which method won or which are level, the runner-up, and the well-known methods."""
        return "\n".join(sentences(self))

    def plot(self, ax: Axes | None = None, *, against: str = "rounds") -> Axes:
        """Plot the best row of every method against rounds, megabytes or seconds.

        Lines are geometric means of the fresh seeds, bands their range. The best methods, FedAvg
        and FedAc-I are coloured, all others are grey.

        Parameters
        ----------
        ax : Axes, optional
            Default: a new figure.
        against : "rounds", "megabytes" or "seconds"
            The cost on the horizontal axis: megabytes of a client that is present in every round,
            seconds on the link.
        """
        from fedac.experiments.comparison.report import draw_lines

        look_up("axis", against, dict.fromkeys(AXES))
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.figure(layout="constrained").add_subplot()
        grey = draw_lines(self, ax, against)
        ax.set_ylabel(self.measure)
        ax.set_title(self.title, fontsize="medium", wrap=True, parse_math=False)
        handles, labels = ax.get_legend_handles_labels()
        others = f"grey: {grey} other method{'s' * (grey > 1)}" if grey else None
        ax.legend(handles[::-1], labels[::-1], title=others)
        return ax

    @property
    def measure(self) -> str:
        """What the suboptimality is: for a network, whose minimum is not known, the loss."""
        return SUBOPTIMALITY if self.spec.model is None else LOSS

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
    curves: tuple[Curve, ...],
    target: Target | None,
    budget: Budget,
    every: int,
    **setting: Any,
) -> Row:
    """Summarize the curves of the fresh seeds, which have a record after every `every` rounds."""
    reached = [c.cost_of(target, "rounds") < math.inf for c in curves] if target else []
    found: dict[str, Any] = {"suboptimality": NO_BAND, "smallest": NO_BAND}
    if curves:
        found["suboptimality"] = predict([curve.within(budget) for curve in curves])
        found["smallest"] = predict([curve.smallest_within(budget) for curve in curves])
        found["metrics"] = {
            name: float(np.mean([curve.within(budget, name) for curve in curves]))
            for name in curves[0].metrics
        }
    return Row(
        **variant._asdict(),
        **{"algorithm": variant.method, **setting},
        all_clients=variant.method in BASELINES,
        reached=None if target is None else bool(reached) and all(reached),
        seeds_reached=sum(reached),
        **find_costs(curves, target, every),
        **found,
        curves=curves,
    )


def rank_rows(rows: Sequence[Row], target: Target | None, budget: Budget) -> tuple[Row, ...]:
    """Sort rows and compare each with the first."""
    first, *others = sorted(rows, key=lambda row: row.rank)
    return tuple(
        replace(row, ratio=find_ratio(row.curves, first.curves, target, budget))
        for row in (first, *others)
    )


def find_costs(curves: Sequence[Curve], target: Target | None, every: int) -> dict[str, Any]:
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
    curves: Sequence[Curve], best: Sequence[Curve], target: Target | None, budget: Budget
) -> Band:
    """Return the cost of some curves relative to the best row's, seed by seed."""
    if not curves:
        return NO_BAND
    if target is not None:
        costs = [[curve.cost_of(target, "seconds") for curve in each] for each in (curves, best)]
        if math.inf not in costs[1]:
            return predict_ratio(*costs)
    return predict_ratio(*([curve.within(budget) for curve in each] for each in (curves, best)))


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for JSON, with null in place of NaN and infinity."""
    question, spec = comparison.question, comparison.spec
    flat = [_flat(row, comparison.measure) for row in comparison.rows]
    rows = [{name: _finite(value) for name, value in row.items()} for row in flat]
    return {
        "rows": rows,
        "best": None if comparison.rows[0].diverged else rows[0],
        **question.subject,
        **{name: value for name, value in question.held_out.items() if value is not None},
        "f_star": comparison.f_star if comparison.measure == SUBOPTIMALITY else None,
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


def _column(measure: str) -> str:
    return measure.replace(" ", "_")


def _flat(row: Row, measure: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in (each.name for each in fields(row) if each.compare):
        value = getattr(row, name)
        if isinstance(value, Band):
            if name == SUBOPTIMALITY:
                name = _column(measure)
            flat |= {name: value.middle, f"{name}_low": value.low, f"{name}_high": value.high}
        elif name == "metrics":
            flat |= {metric_column(metric): one for metric, one in value.items()}
        else:
            flat[name] = value
    return flat | {"level": row.level}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sentences(comparison: Comparison) -> list[str]:
    """Return the verdict: the winner or the tied methods, the runner-up, well-known methods.

    Of networks, the lines of code that run the winner follow.
    """
    spec, rows, best = comparison.spec, comparison.rows, comparison.rows[0]
    target = comparison.question.target
    if best.diverged:
        return ["Every method diverged."]
    said = []
    if target is not None and not best.reached:
        rounds = f"{spec.rounds} round{'s' * (spec.rounds != 1)}"
        said = [
            f"No method reached {target.in_words(comparison.measure)} on all seeds in {rounds}."
        ]
    if nothing_learned(best):
        start = float(np.mean([curve.suboptimality[0] for curve in best.curves]))
        return [
            *said,
            f"No method learned anything: the {comparison.measure} is {start:.3g} at the start and "
            f"{best.suboptimality.middle:.3g} at the end. Check the data and the model, or use "
            "more rounds.",
        ]
    said += _winner(comparison)
    said += _left_target(comparison)
    other_wires = [r for r in comparison.best_rows if r.method == best.method and r is not best]
    said += [f"{_compared(row, comparison)}." for row in other_wires]
    runner_up = next((row for row in rows if row.method != best.method), None)
    if runner_up is not None and best.reached and not runner_up.reached:
        said.append("No other method reached it on all seeds.")
        runner_up = None
    if runner_up is not None:
        said.append(f"Runner-up: {_compared(runner_up, comparison)}.")
    local = next((row for row in rows if not row.all_clients), None)
    if best.all_clients and local is not None and local is not runner_up:
        said.append(f"Best with local steps: {_compared(local, comparison)}.")
    for name in WELL_KNOWN:
        known = next((row for row in rows if row.method == name != best.method), None)
        if known is not None and known not in (runner_up, local):
            said.append(f"{_compared(known, comparison)}.")
    if best.reached:  # who wins on the axes that do not rank
        for axis in AXES[:2]:
            reached = (row for row in rows if row.reached)
            first = min(reached, key=lambda row: getattr(row, axis).middle)
            if first is not best:
                said.append(f"Fewest {axis}: {described(first, comparison)}, {_cost(first, axis)}.")
    Ks = spec.several("local_steps")
    edge = None if best.all_clients else edge_of(best.K, min(Ks), max(Ks))
    if edge:
        said.append(f"K = {best.K} is the {edge} tried: another may be better.")
    if spec.model is not None and not best.diverged:
        said += hand_over(best, spec)
    return said


def nothing_learned(best: Row) -> bool:
    """Return whether the best row misses the target and ends hardly below its start."""
    if best.reached or not best.curves:
        return False
    start = float(np.mean([curve.suboptimality[0] for curve in best.curves]))
    return best.suboptimality.middle > LEARNED * start


def _winner(comparison: Comparison) -> list[str]:
    """Name the best method, and the methods that the seeds cannot separate from it."""
    best, repeats = comparison.rows[0], comparison.spec.repeats
    won = f"came closest to the optimum within {comparison.budget}"
    if comparison.measure == LOSS:
        won = f"has the smallest training loss within {comparison.budget}"
    result = _suboptimality(best, comparison)
    target = comparison.question.target
    if best.reached and target is not None:
        won = "is the fastest on this link"
        costs = ", ".join(_cost(best, axis) for axis in ("seconds", "rounds", "megabytes"))
        result = f"it reached {target.in_words(comparison.measure)} in {costs}"
    name = described(best, comparison)
    level = [row for row in comparison.best_rows if row.method != best.method and row.level]
    if not level:
        return [f"{name} {won}: {result}."]
    tied = list(dict.fromkeys(comparison.labels[row.method] for row in (best, *level)))
    if len(tied) > MOST_NAMED:
        tied[MOST_NAMED - 1 :] = [f"{len(tied) - MOST_NAMED + 1} others"]
    listed = f"{', '.join(tied[:-1])} and {tied[-1]}"
    return [f"{listed} are level: {repeats} seeds cannot separate them.", f"{name}: {result}."]


def _left_target(comparison: Comparison) -> list[str]:
    """Warn if the best method reaches the target but ends its runs on the wrong side of it."""
    best, target = comparison.rows[0], comparison.question.target
    if target is None or not best.reached:
        return []
    if comparison.budget != WHOLE_RUN:  # rows have the end of the budget
        return []
    if target.metric == SUBOPTIMALITY:
        name, end = comparison.measure, best.suboptimality.middle
    else:  # NaN is on neither side
        name, end = target.metric, best.metrics.get(target.metric, math.nan)
    missed = end < target.value if target.larger_is_better else end > target.value
    if not missed:
        return []
    return [f"It does not stay there (mean {name} at the end: {end:.3g}): stop at the target."]


def described(row: Row, comparison: Comparison) -> str:
    """Return a row's method and setting."""
    settings = [] if row.all_clients else [f"K = {row.K}"]
    settings += [f"step size {row.eta:.3g}"] if row.eta is not None else []
    settings += [f"server step {row.server_step:.3g}"] if row.server_step is not None else []
    settings += [f"momentum {row.momentum:g}"] if row.momentum is not None else []
    settings += [f"mu {row.mu:.3g}"] if row.mu is not None else []
    settings += [row.mode] if len(comparison.question.modes) > 1 and not row.all_clients else []
    wire = "" if row.wire == "float32" else f" with {row.wire} messages"
    return comparison.labels[row.method] + wire + (f" ({', '.join(settings)})" if settings else "")


def _compared(row: Row, comparison: Comparison) -> str:
    """Describe a row's cost, and how it compares with the best row."""
    name, best = described(row, comparison), comparison.rows[0]
    times = f"{written(row.ratio)} times as"
    level = "; level" if row.level else ""
    if not best.reached:
        if row.diverged:
            return f"{name}: diverged"
        result = _suboptimality(row, comparison)
        if best.suboptimality.low <= EXACT:  # a ratio to rounding errors means nothing
            return f"{name}: {result}{level}"
        return f"{name}: {result}, {times} much{level}"
    if not row.reached:
        return f"{name}: not reached ({row.seeds_reached} of {comparison.spec.repeats} seeds)"
    sent = f", {_cost(row, 'megabytes')}" if row.wire != best.wire else ""
    return f"{name}: {_cost(row, 'seconds')}, {times} long{sent}{level}"


def _suboptimality(row: Row, comparison: Comparison) -> str:
    some = f"; {row.seeds_reached} of {comparison.spec.repeats} seeds reached the target"
    result = f"{comparison.measure} {written(row.suboptimality)}"
    return f"{result}{some if row.seeds_reached else ''}"


def _cost(row: Row, axis: str) -> str:
    """Write the cost of the target, with the unit before the interval."""
    middle, *interval = written(getattr(row, axis)).partition(" (")
    unit = UNITS[axis].removesuffix("s") if middle == "1" else UNITS[axis]
    return middle + unit + "".join(interval)


def written(band: Band) -> str:
    """Write a band with three digits.

    >>> written(Band(1234.5, 0.00123456, math.inf)), written(Band(EXACT, EXACT, EXACT))
    ('1234 (0.00123 to inf)', 'below 1e-15')
    """
    if band.high <= EXACT:
        return f"below {EXACT:g}"
    return band_text(band, lambda v: f"{v:.0f}" if 100 <= v < 1e6 else f"{v:.3g}")


def proposed_target(comparison: Comparison) -> float | None:
    """Return a reachable target: twice the best suboptimality with local steps, to one digit.

    None if the comparison has a target, or nothing converged.
    """
    best = next(row for row in comparison.rows if not row.all_clients)
    if comparison.spec.target is not None or best.diverged:
        return None
    twice = 2 * best.suboptimality.middle
    digit = 10.0 ** math.floor(math.log10(twice))
    return float(f"{math.ceil(twice / digit) * digit:.1g}")
