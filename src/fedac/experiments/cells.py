"""Compare runs: the best step size of every cell, and how few rounds reach a target.

A cell is one algorithm on one problem with M workers that synchronize every K steps. A federation
of clients is part of the problem, so two of them never meet in a curve. The demo, the report and
`fedac reproduce` share these rules:

- The suboptimality of a run is its trained loss minus F*; that of a diverged run is infinite.
- A run reaches a target if its suboptimality is at most the target.
- Every seed is tuned separately. Several seeds are reported as `over_seeds` summarizes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedac.experiments.seeds import band_text, find_spread, over_seeds
from fedac.simulation.result import edge_of

if TYPE_CHECKING:
    import pandas as pd

PROBLEM = ["dataset", "l2", "T", "federation"]
CURVE = [*PROBLEM, "algorithm", "M"]
CELL = [*CURVE, "K"]
FEWEST_TRIED = ", fewest tried"


def tuned(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the run with the best step size of every cell and seed, of those in a `Store.frame`.

    Adds two columns: ``suboptimality``, and ``edge``, which says whether the step size is the
    "smallest", "largest" or "only one" tried in its cell, or "". If all runs of a cell and seed
    diverged, its suboptimality is infinite and its step size NaN.
    """
    suboptimality = frame["trained_loss"].astype(float) - frame["f_star"]
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
    """Return a row per cell: ``middle``, ``low`` and ``high`` of the suboptimality over its seeds.

    `band` says what these are: see `over_seeds`. ``accuracy``, ``accuracy_low`` and
    ``accuracy_high`` are the same of the accuracy on the test set, missing where there is none.
    The other columns are those of a seed with the step size that most seeds prefer.
    ``step_size`` is its text, with a note if it is at an edge of those tried.
    """
    votes = tuned.groupby([*CELL, "eta"])["seed"].transform("size")  # NaN where all diverged
    rows = tuned.assign(votes=votes).sort_values(["votes", "eta"], ascending=[False, True])
    rows = rows.drop_duplicates(CELL).drop(columns=["votes", "seed", "suboptimality"])
    rows["step_size"] = [eta_text(row) for row in rows.itertuples()]
    cells = tuned.groupby(CELL)
    seeds = cells.agg(seeds=("seed", "nunique")).reset_index()
    found = [over_seeds(values, band) for _, values in cells["suboptimality"]]
    seeds[["middle", "low", "high"]] = np.reshape(found, (-1, 3))
    if "test_accuracy" in tuned:
        found = [over_seeds(values, band) for _, values in cells["test_accuracy"]]
        seeds[["accuracy", "accuracy_low", "accuracy_high"]] = np.reshape(found, (-1, 3))
    return seeds.merge(rows, on=CELL)


def fewest_rounds(tuned: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return how few rounds reach a target: a row per problem, algorithm and number of workers.

    Each seed has its own fewest rounds, infinity if it does not reach the target. ``rounds`` is
    their median (of an even number of seeds the upper one, which some seed needed), ``fewest``
    and ``most`` are their range, ``least`` is the fewest that any run has, ``text`` is all in
    words. The other columns are those of `summarize` for the cell with that many rounds, empty if
    there is none.
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
    """Write a row of `fewest_rounds`: the median, the range where seeds differ, and the edge.

    Examples
    --------
    >>> from types import SimpleNamespace as Row
    >>> rounds_text(Row(rounds=64, fewest=32, most=64, least=16))
    '64 (32 to 64)'
    >>> rounds_text(Row(rounds=64, fewest=64, most=math.inf, least=64))
    '64 (64 to not reached), fewest tried'
    >>> rounds_text(Row(rounds=math.inf, fewest=math.inf, most=math.inf, least=16))
    'not reached'
    """
    numbers = (row.rounds, row.fewest, row.most)
    text = band_text(numbers, lambda n: "not reached" if math.isinf(n) else f"{n:.0f}")
    return text + FEWEST_TRIED if row.rounds == row.least else text


def fewest_note(curves: pd.DataFrame) -> str:
    """Explain "fewest tried", if a row of `fewest_rounds` says it."""
    at_edge = (curves["rounds"] == curves["least"]).any()
    return "Fewest tried: a larger K was not tried, and might need even fewer." if at_edge else ""


def eta_text(row: Any) -> str:
    """Write a step size, and say so if it is at an edge of those that were tried.

    Examples
    --------
    >>> from types import SimpleNamespace as Row
    >>> eta_text(Row(eta=0.05, edge=""))
    '0.05'
    >>> eta_text(Row(eta=10.0, edge="largest"))
    '10 (largest tried)'
    """
    if math.isnan(row.eta):  # all runs diverged
        return ""
    return f"{row.eta:g} ({row.edge} tried)" if row.edge else f"{row.eta:g}"


def seeds_note(cells: pd.DataFrame, band: str = "range") -> str:
    """Say what the lines and bands of cells of `summarize` are; nothing if there is one seed.

    Examples
    --------
    >>> import pandas as pd
    >>> seeds_note(pd.DataFrame({"seeds": [5, 5]}), "confidence")
    'Lines: mean of 5 seeds; bands: 95% confidence interval.'
    """
    most = cells["seeds"].max()
    if not most > 1:
        return ""
    spread = find_spread(band)
    return f"Lines: {spread.middle} of {most} seeds; bands: {spread.band}."


def edge_note(cells: pd.DataFrame) -> str:
    """Say in how many cells of `summarize` the best step size is at an edge of those tried."""
    edges = cells["edge"].value_counts().drop("", errors="ignore").sort_index()
    if edges.empty:
        return ""
    which = ", ".join(f"the {edge} in {count}" for edge, count in edges.items())
    return (
        f"Best step size at an edge of those tried in {edges.sum()} of {len(cells)} cells: {which}."
    )
