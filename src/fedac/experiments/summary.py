# SPDX-License-Identifier: Apache-2.0
"""Tables of runs: unique names, the best step size of every cell, the fewest rounds to a target.

A cell is one algorithm on one problem with M workers and K local steps. A federation of clients is
part of the problem. The demo, the report and `fedac reproduce` share these rules:

- The suboptimality of a run is its trained loss minus F*, infinite if the run diverged. Networks
  have no F*: their losses take its place.
- A run reaches a target if its suboptimality is at most the target.
- Every seed is tuned separately; `over_seeds` summarizes several seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedac.algorithms import split_names
from fedac.algorithms.parsing import find_algorithm
from fedac.errors import InputError
from fedac.federation.spec import federation_name
from fedac.objectives.metrics import METRICS
from fedac.simulation.result import edge_of, metric_column
from fedac.validate import look_up

if TYPE_CHECKING:
    import pandas as pd

PROBLEM = ["dataset", "l2", "T", "federation"]
CURVE = [*PROBLEM, "algorithm", "M"]
CELL = [*CURVE, "K"]
FEWEST_TRIED = ", fewest tried"
# The paper's a9a: hashes of its rows and of its objectives.
A9A_ROWS = "bb924b51cf55f0ae4f9b0ad2e7c31b239997d6d21ba09a232778848a19fc2cce"
A9A = {
    1e-2: "781a5f51cd736b9931abc1b21710dcac2be19d3bde4e17fbf1ec25e8903d8011",
    1e-3: "80d181fd5697916d054b8960a5d9da30496783128fdd98bf7a183d80f39c0e38",
    1e-4: "4640626259e5a711c1a569bb04a48f2a810870da45889a8850570db40aee26e3",
}


def tuned(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the run with the best step size of every cell and seed of a `Store.frame`.

    Adds the columns ``suboptimality`` and ``edge``: whether the step size is the "smallest",
    "largest" or "only one" tried in its cell, else "". If all runs of a cell and seed diverged, the
    suboptimality is infinite and the step size NaN.
    """
    suboptimality = frame["trained_loss"].astype(float) - frame["f_star"].fillna(0.0)
    runs = frame.assign(suboptimality=suboptimality.fillna(math.inf))
    etas = runs.groupby(CELL)["eta"]
    ends = zip(runs["eta"], etas.transform("min"), etas.transform("max"), strict=True)
    runs["edge"] = [
        "only one" if low == high else edge_of(eta, low, high) or "" for eta, low, high in ends
    ]
    best = runs.loc[runs.groupby([*CELL, "seed"])["suboptimality"].idxmin()]
    diverged = np.isinf(best["suboptimality"])
    best = best.assign(eta=best["eta"].mask(diverged), edge=best["edge"].mask(diverged, ""))
    return best.reset_index(drop=True)


def summarize(tuned: pd.DataFrame, band: str = "range") -> pd.DataFrame:
    """Return a row per cell with ``middle``, ``low`` and ``high`` of its suboptimality.

    `band` as in `over_seeds`. ``accuracy``, ``accuracy_low`` and ``accuracy_high`` summarize the
    test accuracy, missing without a test set; other metrics have such columns too. The remaining
    columns come from a seed with the step size that most seeds prefer; ``step_size`` is that step
    size as text.
    """
    votes = tuned.groupby([*CELL, "eta"])["seed"].transform("size")  # NaN where all diverged
    rows = tuned.assign(votes=votes).sort_values(["votes", "eta"], ascending=[False, True])
    rows = rows.drop_duplicates(CELL).drop(columns=["votes", "seed", "suboptimality"])
    rows["step_size"] = [eta_text(row) for row in rows.itertuples()]
    cells = tuned.groupby(CELL)
    seeds = cells.agg(seeds=("seed", "nunique")).reset_index()
    found = [over_seeds(values, band) for _, values in cells["suboptimality"]]
    seeds[["middle", "low", "high"]] = np.reshape(found, (-1, 3))
    for name in METRICS:
        if metric_column(name) in tuned:
            found = [over_seeds(values, band) for _, values in cells[metric_column(name)]]
            seeds[metric_columns(name)] = np.reshape(found, (-1, 3))
    return seeds.merge(rows, on=CELL)


def metric_columns(metric: str) -> list[str]:
    """Return the columns of a metric over seeds: middle, low and high."""
    name = metric.replace("-", "_")
    return [name, f"{name}_low", f"{name}_high"]


def fewest_rounds(tuned: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the fewest rounds to a target: a row per problem, algorithm and number of workers.

    Each seed has its own fewest rounds, infinity if it misses the target. ``rounds`` is their
    median (the upper one of an even number, which some seed needed), ``fewest`` and ``most`` are
    their range, ``least`` is the fewest rounds of any run, and ``text`` writes all of it. The other
    columns come from `summarize`, for the cell with this number of rounds.
    """
    made = tuned.assign(made=tuned["T"] / tuned["K"])
    rounds = made["made"].where(tuned["suboptimality"] <= target, math.inf)
    by_seed = made.assign(rounds=rounds).groupby([*CURVE, "seed"])["rounds"].min()
    curves = by_seed.groupby(CURVE).agg(
        rounds=lambda values: sorted(values)[len(values) // 2],
        fewest="min",
        most="max",
        seeds="size",
    )
    cells = summarize(tuned).drop(columns="seeds")
    cells["rounds"] = cells["T"] / cells["K"]
    curves["least"] = made.groupby(CURVE)["made"].min()
    curves["text"] = [rounds_text(row) for row in curves.itertuples()]
    found = curves.reset_index().merge(cells, how="left", on=[*CURVE, "rounds"])
    return found.assign(step_size=found["step_size"].astype(object).fillna(""))


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """Iterate over the rows, whose columns are attributes."""
    return iter(frame.itertuples())


def rounds_text(row: Any) -> str:
    """Write the median of a row of `fewest_rounds`, the range if seeds differ, and the edge.

    >>> from types import SimpleNamespace as Row
    >>> rounds_text(Row(rounds=64, fewest=64, most=math.inf, least=64))
    '64 (64 to not reached), fewest tried'
    """
    numbers = (row.rounds, row.fewest, row.most)
    text = band_text(numbers, lambda n: "not reached" if math.isinf(n) else f"{n:.0f}")
    return text + FEWEST_TRIED if row.rounds == row.least else text


def fewest_note(curves: pd.DataFrame) -> str:
    """Explain "fewest tried" if it occurs in a row of `fewest_rounds`."""
    at_edge = (curves["rounds"] == curves["least"]).any()
    return "Fewest tried: a larger K was not tried, and might need even fewer." if at_edge else ""


def eta_text(row: Any) -> str:
    """Write a step size, with a note if it is the smallest or largest one tried."""
    if math.isnan(row.eta):  # all runs diverged
        return ""
    return f"{row.eta:g} ({row.edge} tried)" if row.edge else f"{row.eta:g}"


def seeds_note(cells: pd.DataFrame, band: str = "range") -> str:
    """Explain the lines and bands of a figure of `summarize`; empty for one seed."""
    most = cells["seeds"].max()
    if not most > 1:
        return ""
    spread = find_spread(band)
    return f"Lines: {spread.middle} of {most} seeds; bands: {spread.band}."


def edge_note(cells: pd.DataFrame) -> str:
    """Write in how many cells of `summarize` the best step size is at an edge."""
    edges = cells["edge"].value_counts().drop("", errors="ignore").sort_index()
    if edges.empty:
        return ""
    which = ", ".join(f"the {edge} in {count}" for edge, count in edges.items())
    return (
        f"Best step size at an edge of those tried in {edges.sum()} of {len(cells)} cells: {which}."
    )


CONFIDENCE = 0.95
PREDICTED = 0.90


class Band(NamedTuple):
    """The center of some values, and an interval around it."""

    middle: float
    low: float
    high: float


class Spread(NamedTuple):
    """A way to summarize seeds: the names of its center and interval."""

    middle: str
    band: str


SPREADS = {
    "range": Spread("median", "range"),
    "quartiles": Spread("median", "quartiles"),
    "confidence": Spread("mean", f"{CONFIDENCE:.0%} confidence interval"),
}


def find_spread(band: str) -> Spread:
    """Return a way to summarize seeds, by name."""
    return look_up("band", band, SPREADS)


def over_seeds(values: Iterable[float], band: str = "range") -> Band:
    """Summarize the results of several seeds; a diverged one is infinite, a missing one NaN.

    ``"range"``: median, smallest and largest. ``"quartiles"``: median and quartiles.
    ``"confidence"``: mean and Student's 95% confidence interval.
    """
    find_spread(band)
    numbers = [float(value) for value in values]
    if any(map(math.isnan, numbers)):
        return Band(math.nan, math.nan, math.nan)
    if band == "range":
        return Band(_quantile(numbers, 0.5), min(numbers), max(numbers))
    if band == "quartiles":
        return Band(*(_quantile(numbers, q) for q in (0.5, 0.25, 0.75)))
    n, mean = len(numbers), math.fsum(numbers) / len(numbers)
    if n == 1 or math.isinf(mean):  # one seed has no interval
        return Band(mean, mean, mean)
    half = stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(numbers, ddof=1) / math.sqrt(n)
    return Band(mean, float(mean - half), float(mean + half))


def _quantile(values: Sequence[float], q: float) -> float:
    """Return an interpolated quantile; NumPy's is NaN next to infinity."""
    place = q * (len(values) - 1)
    ordered = sorted(values)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    share = place % 1
    return below if below == above or not share else below + share * (above - below)


def predict(values: Iterable[float], *, slack: float = 0.0) -> Band:
    """Return the geometric mean and the 90% prediction interval for the mean of another n seeds.

    Assumes normal logarithms (Student's t). `slack` widens the interval by a share of the values;
    an infinite value makes everything infinite.

    >>> band = predict([1.0, 2.0, 4.0])
    >>> round(band.middle, 6), round(band.low, 3), round(band.high, 3)
    (2.0, 0.383, 10.441)
    """
    numbers = [float(value) for value in values]
    if math.inf in numbers:
        return Band(math.inf, math.inf, math.inf)
    if min(numbers) <= 0:  # a target that is reached at the start
        return Band(min(numbers), min(numbers), max(numbers))
    n, logs = len(numbers), np.log(numbers)
    # Both means vary, this one and the predicted one: twice the variance of a mean.
    half = stdtrit(n - 1, (1 + PREDICTED) / 2) * np.std(logs, ddof=1) * math.sqrt(2 / n)
    half += math.log1p(slack)
    middle = math.exp(float(logs.mean())) if len(set(numbers)) > 1 else numbers[0]
    return Band(middle, middle * math.exp(-float(half)), middle * math.exp(float(half)))


def predict_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Band:
    """Predict the ratio of two results, seed by seed, so that the effect of a seed cancels.

    A cost is 0 if a seed starts at the target.

    >>> predict_ratio([0.0, 2.0], [0.0, 2.0]).middle, predict_ratio([1.0, 2.0], [0.0, 2.0]).middle
    (1.0, inf)
    """
    pairs = zip(ours, theirs, strict=True)
    return predict([1.0 if a == b else a / b if b else math.inf for a, b in pairs])


def band_text(band: tuple[float, float, float], write: Callable[[float], str]) -> str:
    """Write a band.

    >>> band_text(Band(2.0, 1.0, 6.0), "{:g}".format), band_text(Band(2.0, 2.0, 2.0), "{:g}".format)
    ('2 (1 to 6)', '2')
    """
    middle, low, high = map(write, band)
    return middle if low == high else f"{middle} ({low} to {high})"


def labels_of(names: Sequence[str]) -> list[str]:
    """Return unique labels of algorithms."""
    found = [label_of(name) for name in names]
    return [
        f"{label} ({name})" if found.count(label) > 1 else label
        for name, label in zip(names, found, strict=True)
    ]


def label_of(name: str) -> str:
    """Return the label of an algorithm, including what a store added to its name.

    >>> label_of("fedavg, mu=0.1"), label_of("fedac-i+step(2)"), label_of("mine")
    ('FedAvg, mu=0.1', 'FedAc-I + step(2)', 'mine')
    """
    plain = split_names(name)[0].partition(" ")[0]
    try:
        label = find_algorithm(plain).label
    except InputError:  # a custom algorithm in a store
        label = plain
    return label + name.removeprefix(plain)


def with_unique_names(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with unambiguous names in `dataset`, `algorithm` and `split`.

    If two of them share a name, part of their hash is added, and so are a network, a loss other
    than logistic, an intercept, and a mu other than l2. The new column `federation` names the
    unusual options.
    """
    named = runs.assign(dataset=_dataset_names(runs), algorithm=_algorithm_names(runs))
    named = named.assign(split=_split_names(named))
    return named.assign(federation=[federation_name(run) for run in named.itertuples()])


def _dataset_names(runs: pd.DataFrame) -> list[str]:
    columns = ["dataset", "data_hash", "rows_hash", "l2", "model", "objective", "intercept"]
    problems: list[Any] = list(runs[columns].drop_duplicates().itertuples())
    # Two data sets share a name if their rows differ, or the objectives with the same options do.
    same_name, same_options = defaultdict(set), defaultdict(set)
    for p in problems:
        same_name[p.dataset].add(p.rows_hash)
        same_options[p.dataset, p.l2, p.model, p.objective, p.intercept].add(p.data_hash)
    shared = {name for name, hashes in same_name.items() if len(hashes) > 1}
    shared |= {name for (name, *_), hashes in same_options.items() if len(hashes) > 1}
    names = {}
    for p in problems:
        # The plain name a9a is reserved for the paper's data set.
        papers = p.rows_hash == A9A_ROWS or p.data_hash in A9A.values()
        other = not papers if p.dataset == "a9a" else p.dataset in shared
        found = p.data_hash if p.model else p.rows_hash or p.data_hash
        name = p.dataset + (f" ({found[:6]})" if other else "")
        name += f", {p.model or p.objective}" if p.model or p.objective != "logistic" else ""
        names[p.dataset, p.data_hash] = name + (", intercept" if p.intercept else "")
    return [names[pair] for pair in zip(runs["dataset"], runs["data_hash"], strict=True)]


def _split_names(runs: pd.DataFrame) -> list[str]:
    versions = runs.groupby(["dataset", "M", "split", "split_seed"])["split_hash"]
    several = versions.transform("nunique") > 1
    listed: list[Any] = list(zip(runs["split"], runs["split_hash"], several, strict=True))
    return [f"{name} ({found[:6]})" if shared else name for name, found, shared in listed]


def _algorithm_names(runs: pd.DataFrame) -> list[str]:
    versions = runs.groupby("algorithm")["fingerprint"].nunique()
    listed: list[Any] = list(runs[["algorithm", "fingerprint", "mu", "l2"]].itertuples())
    names = []
    for run in listed:
        name = run.algorithm
        name += f" ({run.fingerprint[:6]})" if run.fingerprint and versions[name] > 1 else ""
        names.append(name if run.mu == run.l2 else f"{name}, mu={run.mu:g}")
    return names
