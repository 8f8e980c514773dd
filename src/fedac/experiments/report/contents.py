"""What the report shows: the runs of a store as the small tables that the page draws from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedac.algorithms import ALGORITHMS
from fedac.experiments.compare import CELL, CURVE, PROBLEM, fewest_rounds, summarize, tuned
from fedac.experiments.paper import CLAIMS, MANY_WORKERS, published_cells, published_tuned
from fedac.experiments.published import T, paper_datasets, published_runs
from fedac.palette import STYLES, styles

if TYPE_CHECKING:
    import pandas as pd

# Suboptimalities to choose from.
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
# The problems that the paper's text mentions.
PAPER = {claim[:2] for claim in CLAIMS}
Table = dict[str, list[Any]]


def page_data(frame: pd.DataFrame, traces: pd.DataFrame, info: dict[str, Any]) -> dict[str, Any]:
    """Return what the page draws, ready for JSON.

    Tables are stored as columns, which compress better than rows. A cell refers to its problem
    and its algorithm by their row numbers, a trace to its cell. Measured numbers keep six digits.

    Parameters
    ----------
    frame : DataFrame
        A row per run, from `Store.frame`.
    traces : DataFrame
        The recorded losses (key, step, loss), from `Store.traces`.
    info : dict
        How the runs were made, from `Store.info`.
    """
    best = tuned(frame)
    beside = published_cells(best, published_runs())
    algorithms = in_order(frame["algorithm"].unique())
    problems = _problems(frame, best)
    in_paper = [pair in PAPER for pair in zip(problems["paper"], problems["l2"], strict=True)]
    cells = _cells(best, beside)
    steps, curves = _traces(frame, traces, cells, best)
    targets = sorted({*TARGETS, *problems["target"]}, reverse=True)

    def numbered(table: pd.DataFrame) -> Table:
        """Refer to problems and algorithms by number."""
        table = table.merge(problems[[*PROBLEM, "problem"]], on=PROBLEM)
        table["algorithm"] = table["algorithm"].map(algorithms.index)
        return _columns(table.drop(columns=PROBLEM))

    return {
        "problems": _columns(problems.drop(columns="problem"), digits=10),
        "first_problem": in_paper.index(True) if any(in_paper) else 0,
        "algorithms": _looks(algorithms),
        "cells": numbered(cells),
        "headlines": numbered(_headlines(best, published_tuned(beside), targets)),
        "steps": steps,
        "traces": curves,
        "targets": targets,
        "many_workers": MANY_WORKERS,
        "made": made(info),
    }


def in_order(names: Iterable[str]) -> list[str]:
    """Sort algorithms as the palette lists them, others last.

    Examples
    --------
    >>> in_order(["mine", "fedavg", "fedac-i"])
    ['fedac-i', 'fedavg', 'mine']
    """
    known = list(STYLES)
    return sorted(names, key=lambda name: (known.index(name) if name in known else math.inf, name))


def rounded(value: float, digits: int = 6) -> float | None:
    """Keep the digits that a reader can use; None for NaN and infinity, which JSON lacks.

    Examples
    --------
    >>> rounded(0.12345678), rounded(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def made(info: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe how the runs were made, as pairs of a term and its description.

    Examples
    --------
    >>> machine = {"processor": "Z80", "cores": 1, "system": "CP/M", "python": "3.11", "numpy": "2"}
    >>> info = {
    ...     "runs": 5616, "diverged": 12, "seconds": 302.0, "gradient_queries": 3 * 10**9,
    ...     "seeds": [1], "first": "2026-01-01T10:00:00+00:00", "last": "2026-01-01T10:06:00+00:00",
    ...     "versions": ["0.1.0"], "machines": [machine],
    ... }
    >>> for term, text in made(info):
    ...     print(f"{term}: {text}")
    runs: 5,616, of which 12 diverged
    gradients: 3.00e+09
    time in the engine: 5 min 2 s, 9.9 million gradients per second
    seeds: 1
    first and last run: 2026-01-01 10:00 to 2026-01-01 10:06 UTC
    fedac: 0.1.0
    machine: Z80, 1 core, CP/M; python 3.11, numpy 2
    """
    seconds, queries = info["seconds"], info["gradient_queries"]
    minutes, rest = divmod(round(seconds), 60)
    time = f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    first, last = (info[when][:16].replace("T", " ") for when in ("first", "last"))
    return [
        ("runs", f"{info['runs']:,}, of which {info['diverged']:,} diverged"),
        ("gradients", f"{queries:.2e}"),
        (
            "time in the engine",
            f"{time}, {queries / max(seconds, 1e-9) / 1e6:,.1f} million gradients per second",
        ),
        ("seeds", ", ".join(map(str, info["seeds"]))),
        ("first and last run", f"{first} to {last} UTC"),
        ("fedac", ", ".join(info["versions"])),
        *(("machine", _machine(**machine)) for machine in info["machines"]),
    ]


def _machine(processor: str, cores: int, system: str, **versions: str) -> str:
    hardware = f"{processor}, {cores} core{'s' if cores != 1 else ''}, {system}"
    return f"{hardware}; {', '.join(f'{name} {version}' for name, version in versions.items())}"


def _problems(frame: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """Return a row per data set, l2 and T, with the target and the view to begin with."""
    frame = frame.assign(paper=paper_datasets(frame))
    problems = frame.groupby(PROBLEM, as_index=False).agg(
        f_star=("f_star", "first"),
        n_samples=("n_samples", "first"),
        n_features=("n_features", "first"),
        seeds=("seed", "nunique"),
        paper=("paper", "first"),
    )
    runs = [best.merge(problems.loc[[i], [*PROBLEM, "paper"]]) for i in problems.index]
    targets, views = [_target(mine) for mine in runs], [_view(mine) for mine in runs]
    return problems.assign(problem=problems.index, target=targets, view=views)


def _target(best: pd.DataFrame) -> float:
    """Return the paper's target, or the smallest power of ten that every algorithm reaches.

    Both with the most workers.
    """
    best = best[best["M"] == best["M"].max()]
    for claim in CLAIMS:
        if tuple(best[["paper", "l2", "M"]].iloc[0]) == claim[:3]:
            return claim.target
    by_seed = best.groupby(["algorithm", "seed"])["suboptimality"].min()
    worst = by_seed.groupby("algorithm").median().max()
    if not 0 < worst < math.inf:  # exactly at the optimum, or all diverged
        return min(TARGETS)
    return float(f"1e{math.ceil(math.log10(worst))}")


def _view(best: pd.DataFrame) -> str:
    """Return the figure to begin with: one whose horizontal axis has more than one value."""
    finite = best[best["suboptimality"] < math.inf]
    views = {"M": "M", "K": "rounds"}
    return next((views[axis] for axis in views if finite[axis].nunique() > 1), "traces")


def _cells(best: pd.DataFrame, beside: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell: its seeds and its published value."""
    cells = summarize(best).rename(columns={"median": "value", "megabytes_per_worker": "megabytes"})
    cells = cells[[*CELL, "step_size", "edge", "seeds", "value", "low", "high", "megabytes"]]
    theirs = beside[[*CELL, "theirs", "published_eta"]].rename(columns={"theirs": "published"})
    return cells.merge(theirs, how="left", on=CELL)


def _headlines(best: pd.DataFrame, theirs: pd.DataFrame, targets: list[float]) -> pd.DataFrame:
    """Return the rows of "How few rounds?" for every target."""
    import pandas as pd

    names = {"text": "rounds", "median": "value", "megabytes_per_worker": "megabytes"}
    tables = []
    for target in targets:
        ours = fewest_rounds(best, target).drop(columns="rounds").rename(columns=names)
        ours = ours[[*CURVE, "rounds", "megabytes", "K", "step_size", "value"]]
        published = fewest_rounds(theirs, target)[[*CURVE, "text"]]
        published = published.rename(columns={"text": "published"})
        tables.append(ours.merge(published, how="left", on=CURVE).assign(target=target))
    paper = [
        {"T": T, "algorithm": name, "paper": rounds, **claim._asdict()}
        for claim in CLAIMS
        for name, rounds in claim.rounds.items()
    ]
    claims = pd.DataFrame(paper).drop(columns="rounds")
    return pd.concat(tables, ignore_index=True).merge(claims, how="left")


def _traces(
    frame: pd.DataFrame, traces: pd.DataFrame, cells: pd.DataFrame, best: pd.DataFrame
) -> tuple[list[list[int]], Table]:
    """Return the distinct lists of recorded steps, and a row per run with its suboptimalities."""
    runs = frame.merge(cells.assign(cell=cells.index)[[*CELL, "cell"]], on=CELL)
    points = traces.merge(runs[["key", "cell", "eta", "seed", "f_star"]], on="key")
    points["value"] = points["loss"] - points["f_star"]
    curves = points.sort_values(["cell", "eta", "seed", "key", "step"]).groupby("key", sort=False)
    table = curves.agg(
        cell=("cell", "first"),
        eta=("eta", "first"),
        seed=("seed", "first"),
        steps=("step", tuple),
        values=("value", lambda values: [rounded(value) for value in values]),
    )
    table["best"] = table.index.isin(best.loc[best["suboptimality"] < math.inf, "key"])
    # Nearly all runs are recorded at the same steps.
    places = {steps: place for place, steps in enumerate(dict.fromkeys(table["steps"]))}
    table["steps"] = table["steps"].map(places)
    return [list(steps) for steps in places], _columns(table)


def _looks(names: list[str]) -> Table:
    """Return the label, colour and marker of each algorithm; no two labels are the same."""
    labels, looks = [_label(name) for name in names], styles(names)
    return {
        "label": [
            label if labels.count(label) == 1 else f"{label} ({name})"
            for label, name in zip(labels, names, strict=True)
        ],
        "name": names,
        "colour": [look.colour for look in looks],
        "symbol": [look.symbol for look in looks],
    }


def _label(name: str) -> str:
    """Return the label of an algorithm, with what the store added to its name.

    Examples
    --------
    >>> _label("fedavg, mu=0.1"), _label("mine")
    ('FedAvg, mu=0.1', 'mine')
    """
    plain = name.partition(",")[0].partition(" ")[0]
    label = ALGORITHMS[plain].label if plain in ALGORITHMS else plain
    return label + name.removeprefix(plain)


def _columns(frame: pd.DataFrame, digits: int = 6) -> Table:
    """Return a frame as columns of plain values."""
    return {
        str(name): [rounded(v, digits) if isinstance(v, float) else v for v in column.tolist()]
        for name, column in frame.items()
    }
