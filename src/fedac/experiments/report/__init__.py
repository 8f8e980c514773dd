# SPDX-License-Identifier: Apache-2.0
"""The report of a sweep: a store as one HTML file that needs no network.

`page_data` computes its small tables, and `fedac.experiments.page` assembles it from
``intro.html``, ``main.html`` and the scripts in ``js``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedac.errors import InputError
from fedac.experiments.export import with_costs
from fedac.experiments.page import assemble, rounded, write_page
from fedac.experiments.reproduction import published as paper
from fedac.experiments.summary import (
    CELL,
    PROBLEM,
    find_spread,
    labels_of,
    metric_columns,
    summarize,
    tuned,
)
from fedac.experiments.workload import FURTHER_METRICS
from fedac.federation.link import DEFAULT_LINK, Link
from fedac.objectives.metrics import METRICS
from fedac.plotting import STYLES, styles
from fedac.simulation.result import metric_column

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.store import Store

__all__ = ["render", "write"]

# In this order on the page; `start` needs all of them.
SCRIPTS = ("headline", "view", "curves", "layout", "figure", "comparison", "start")
PUBLISHED = (
    "Hollow markers are the numbers that <cite>Yuan &amp; Ma, Federated Accelerated Stochastic "
    "Gradient Descent (NeurIPS 2020)</cite> published for their own runs."
)
# What the introduction says of a point's height: of linear models, and of networks.
HEIGHTS = {
    False: "Its height is the suboptimality, F&nbsp;&minus;&nbsp;F*: the distance of the loss from "
    "its optimum.",
    True: "The height of a network is its training loss, because its optimum is not known.",
}
# Target suboptimalities to choose from.
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
# Columns of the page: of a cell, of its published counterpart and of `fewest_rounds`.
OURS = ["rounds", "megabytes", "seconds", "step_size", "edge", "seeds", "middle", "low", "high"]
FURTHER = [metric_column(name) for name in FURTHER_METRICS]
THEIRS = ["published", "published_eta", "log2_ratio", "deviation"]
HEADLINE = ["target", "text", "published", "paper", "megabytes", "seconds", "step_size", "middle"]

Table = dict[str, list[Any]]


def write(store: Store, path: str | Path, band: str = "range", link: Link = DEFAULT_LINK) -> Path:
    """Write the report of a store to a file."""
    return write_page(render(store, band, link), path)


def render(store: Store, band: str = "range", link: Link = DEFAULT_LINK) -> str:
    """Return the report of a store as HTML; the same runs give the same text.

    `band` selects the summary of several seeds (see `over_seeds`); `link` gives the seconds of a
    round.
    """
    find_spread(band)
    frame = store.frame()
    if frame.empty:
        raise InputError(f"{store.path} has no runs to report; add some with 'fedac sweep'")
    data = page_data(frame, store.traces(), store.info(), band, link)
    measure, networks = data["measure"], data["problems"]["network"]
    title = f"{measure.capitalize()} against communication: {', '.join(frame['dataset'].unique())}"
    compared = any(value is not None for value in data["cells"]["published"])
    return assemble(
        title, data, __name__, SCRIPTS,
        published=PUBLISHED if compared else "",
        height=" ".join(HEIGHTS[kind] for kind in sorted(set(networks))), measure=measure,
    )  # fmt: skip


def page_data(
    frame: pd.DataFrame, traces: pd.DataFrame, info: dict[str, Any], band: str, link: Link
) -> dict[str, Any]:
    """Return the data of the page, ready for JSON, from a store's `frame`, `traces` and `info`.

    Tables are stored as columns, which compress better than rows. A cell refers to its problem by
    text and to its algorithm by label, a trace to its cell by number. A trace has its total seconds
    on the link, a cell the mean over its seeds.
    """
    frame = with_costs(frame, link).drop(columns="rounds")
    best = tuned(frame)
    # Replaces the computing time, whose sum is in `info`.
    best["seconds"] = best.groupby(CELL)["link_seconds"].transform("mean")
    published = paper.published_cells(best, paper.published_runs())
    problems, algorithms = _problems(frame, best), _algorithms(frame)
    networks = problems["network"]
    targets = sorted({*(() if networks.all() else TARGETS), *problems["target"]}, reverse=True)
    cells = summarize(best, band).merge(published[[*CELL, *THEIRS]], how="left", on=CELL)
    cells = _in_order(cells.assign(rounds=cells["T"] / cells["K"]))
    rounds = _in_order(paper.headlines(best, published, targets))
    steps, curves = _traces(frame, traces, cells, best)
    tested = bool((frame["test"] != "").any())
    tests = [
        name
        for metric in METRICS if tested or metric.startswith("client-")
        for name in metric_columns(metric) if name in cells
    ]  # fmt: skip
    middle, spread = find_spread(band)

    def named(table: pd.DataFrame, columns: list[str]) -> Table:
        """Keep these columns, with problems and algorithms as the page names them."""
        table = table.merge(problems[[*PROBLEM, "problem"]], on=PROBLEM)
        table["algorithm"] = table["algorithm"].map(algorithms.set_index("algorithm")["label"])
        return _columns(table[["problem", "algorithm", "M", "K", *columns]])

    return {
        "problems": _columns(problems, digits=10),
        "algorithms": _columns(algorithms),
        "cells": named(cells, [*OURS, *tests, *THEIRS]),
        "headlines": named(rounds, HEADLINE),
        "steps": steps,
        "traces": curves,
        "targets": targets,
        "measure": " or ".join(
            measure
            for measure, some in (
                ("suboptimality", not networks.all()),
                ("training loss", networks.any()),
            )
            if some
        ),
        "seeds": {"middle": middle, "band": spread},
        "link": link.in_words(),
        "stragglers": bool(link.stragglers),
        "many_workers": paper.MANY_WORKERS,
        "made": _provenance(info),
    }


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Sort by algorithm: first the algorithms of the palette, in its order."""
    known = list(STYLES)

    def ranks(names: pd.Series[str]) -> pd.Series[Any]:
        return names.map(lambda name: (known.index(name) if name in known else math.inf, name))

    return table.sort_values("algorithm", key=ranks, kind="stable", ignore_index=True)


def _provenance(info: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe how the runs were made, in pairs of a term and its description."""
    seconds, queries = info["seconds"], info["gradient_queries"]
    minutes, rest = divmod(round(seconds), 60)
    time = f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    speed = f"{queries / max(seconds, 1e-9) / 1e6:,.1f} million gradients per second"
    first, last = (info[when][:16].replace("T", " ") for when in ("first", "last"))
    return [
        ("runs", f"{info['runs']:,}, of which {info['diverged']:,} diverged"),
        ("gradients", f"{queries:.2e}"),
        ("time in the engine", f"{time}, {speed}"),
        ("seeds", ", ".join(map(str, info["seeds"]))),
        ("first and last run", f"{first} to {last} UTC"),
        ("fedac", ", ".join(info["versions"])),
        *(("machine", _machine(**machine)) for machine in info["machines"]),
    ]


def _machine(processor: str, cores: int, system: str, **versions: str) -> str:
    hardware = f"{processor}, {cores} core{'s' if cores != 1 else ''}, {system}"
    return f"{hardware}; {', '.join(f'{name} {version}' for name, version in versions.items())}"


def _problems(frame: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """Return a row per data set, l2, T and federation, with its initial target and view.

    Problems of the paper's text come first.
    """
    seeds = frame.groupby(PROBLEM)["seed"].transform("nunique")
    frame = frame.assign(
        paper=paper.paper_datasets(frame), seeds=seeds, network=frame["model"] != ""
    )
    columns = [*PROBLEM, "f_star", "n_samples", "n_features", "seeds", "paper", "network"]
    problems = frame[columns].drop_duplicates(PROBLEM).sort_values(PROBLEM, ignore_index=True)
    runs = [best.merge(problems.loc[[i], [*PROBLEM, "paper"]]) for i in problems.index]
    problems["target"], problems["view"] = [*map(_target, runs)], [*map(_view, runs)]
    # With uniform weights, F* depends on the clients and so on their number.
    minima = frame.groupby(PROBLEM)["f_star"].nunique().rename("minima").reset_index()
    several = problems.merge(minima, on=PROBLEM)["minima"] > 1
    problems["f_star"] = problems["f_star"].mask(several)
    problems["problem"] = problems["dataset"] + problems["l2"].map(", l2 = {:g}".format)
    if problems["T"].nunique() > 1:
        problems["problem"] += problems["T"].map(", T = {}".format)
    problems["problem"] += problems["federation"].map(lambda name: name and f", {name}")
    claims = [claim[:2] for claim in paper.CLAIMS]
    keys = zip(problems["paper"], problems["l2"], problems["federation"], strict=True)
    other = [(name, l2) not in claims or bool(federation) for name, l2, federation in keys]
    return problems.assign(other=other).sort_values("other", kind="stable")


def _target(best: pd.DataFrame) -> float:
    """Return the paper's target, or the smallest power of ten that every algorithm reaches.

    Of networks, the smallest loss with one digit. All are for the largest number of workers.
    """
    best = best[best["M"] == best["M"].max()]
    first = best.iloc[0]
    for claim in paper.CLAIMS:
        if tuple(first[["paper", "l2", "M"]]) == claim[:3] and not first["federation"]:
            return claim.target
    by_seed = best.groupby(["algorithm", "seed"])["suboptimality"].min()
    worst = by_seed.groupby("algorithm").median().max()
    if not 0 < worst < math.inf:  # exactly at the optimum, or all diverged
        return min(TARGETS)
    power = 10.0 ** math.floor(math.log10(worst))
    if first["model"]:  # losses do not fall by powers of ten
        return float(f"{math.ceil(worst / power) * power:.1g}")
    return float(f"1e{math.ceil(math.log10(worst))}")


def _view(best: pd.DataFrame) -> str:
    """Return the initial figure: one whose horizontal axis has more than one value."""
    finite = best[best["suboptimality"] < math.inf]
    views = {"M": "M", "K": "rounds"}
    return next((views[axis] for axis in views if finite[axis].nunique() > 1), "traces")


def _traces(
    frame: pd.DataFrame, traces: pd.DataFrame, cells: pd.DataFrame, best: pd.DataFrame
) -> tuple[list[list[int]], Table]:
    """Return the distinct lists of recorded steps, and a row per run with its suboptimalities."""
    runs = frame.merge(cells.assign(cell=cells.index)[[*CELL, "cell"]], on=CELL)
    points = traces.merge(runs[["key", "cell", "eta", "seed", "link_seconds", "f_star"]], on="key")
    points["value"] = points["loss"] - points["f_star"].fillna(0.0)
    curves = points.sort_values(["cell", "eta", "seed", "key", "step"]).groupby("key", sort=False)
    table = curves.agg(
        cell=("cell", "first"),
        eta=("eta", "first"),
        seed=("seed", "first"),
        seconds=("link_seconds", "first"),
        steps=("step", tuple),
        values=("value", lambda values: [rounded(value) for value in values]),
        accuracies=("test_accuracy", _all_or_none),
        **{name: (name, _all_or_none) for name in FURTHER if name in points},
    )
    for name in ("accuracies", *FURTHER):  # no run has it
        if name in table and table[name].isna().all():
            del table[name]
    table["best"] = table.index.isin(best.loc[best["suboptimality"] < math.inf, "key"])
    # Nearly all runs are recorded at the same steps.
    places = {steps: place for place, steps in enumerate(dict.fromkeys(table["steps"]))}
    table["steps"] = table["steps"].map(places)
    return [list(steps) for steps in places], _columns(table)


def _all_or_none(values: Iterable[float]) -> list[float | None] | None:
    found = [rounded(value) for value in values]
    return None if None in found else found


def _algorithms(frame: pd.DataFrame) -> pd.DataFrame:
    """Return label and style of each algorithm; labels are unique."""
    import pandas as pd

    table = _in_order(frame[["algorithm"]].drop_duplicates())
    names = list(table["algorithm"])
    return pd.DataFrame(styles(names)).assign(label=labels_of(names), **table)


def _columns(frame: pd.DataFrame, digits: int = 6) -> Table:
    """Return a frame as columns of plain values, with floats rounded."""
    return {
        str(name): [rounded(v, digits) if isinstance(v, float) else v for v in column.tolist()]
        for name, column in frame.items()
    }
