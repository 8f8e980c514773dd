"""What the report says: the store's runs as the small tables that the page draws from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedac.algorithms import ALGORITHMS
from fedac.experiments.paper import CELL, CLAIMS, MANY_WORKERS, SLACK, beside, tuned
from fedac.experiments.published import T as PUBLISHED_STEPS
from fedac.experiments.published import published
from fedac.palette import STYLES, style

if TYPE_CHECKING:
    import pandas as pd

PROBLEM = ["dataset", "l2", "T"]
# Of suboptimality, to choose from.
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
Table = dict[str, list[Any]]


def contents(frame: pd.DataFrame, traces: pd.DataFrame, info: dict[str, Any]) -> dict[str, Any]:
    """Return what the page draws, ready for JSON.

    Tables are columns, which pack better than rows. A cell names its problem and its algorithm by
    their place in their tables, a trace its cell; measured numbers keep six digits.

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
    problems = _problems(frame)
    algorithms = in_order(frame["algorithm"].unique())
    cells = _cells(best).merge(problems[[*PROBLEM, "problem"]], on=PROBLEM)
    problems["target"] = [_target(cells[cells["problem"] == i]) for i in problems["problem"]]
    steps, curves = _traces(frame, traces, cells, best)
    shown = cells.drop(columns=[*PROBLEM, "cell"])
    shown["algorithm"] = shown["algorithm"].map(algorithms.index)
    return {
        "problems": _table(problems.drop(columns="problem"), digits=10),
        "algorithms": _looks(algorithms),
        "cells": _table(shown),
        "steps": steps,
        "traces": curves,
        "claims": [claim._asdict() for claim in CLAIMS],
        "targets": sorted({*TARGETS, *problems["target"]}, reverse=True),
        "many_workers": MANY_WORKERS,
        "slack": SLACK,
        "made": made(info),
    }


def in_order(names: Iterable[str]) -> list[str]:
    """Sort algorithms as the palette lists them, those of the user's own last.

    Examples
    --------
    >>> in_order(["mine", "fedavg", "fedac-i"])
    ['fedac-i', 'fedavg', 'mine']
    """
    known = list(STYLES)
    return sorted(names, key=lambda name: (known.index(name) if name in known else math.inf, name))


def rounded(value: float, digits: int = 6) -> float | None:
    """Keep the digits that a reader can use; null for what JSON has no number for.

    Examples
    --------
    >>> rounded(0.12345678), rounded(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def made(info: dict[str, Any]) -> list[tuple[str, str]]:
    """Say how the runs were made, as terms and what is to be said of them.

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
    places = f"{processor}, {cores} core{'s' if cores != 1 else ''}, {system}"
    return f"{places}; {', '.join(f'{name} {version}' for name, version in versions.items())}"


def _problems(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per data set, l2 and T."""
    problems = frame.groupby(PROBLEM, as_index=False).agg(
        f_star=("f_star", "first"),
        n_samples=("n_samples", "first"),
        n_features=("n_features", "first"),
        seeds=("seed", "nunique"),
    )
    return problems.assign(problem=range(len(problems)))


def _cells(best: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell: the median over seeds, their range, and the published value."""
    cells = best.groupby([*CELL, "T"], as_index=False).agg(
        # The step size that most seeds prefer.
        eta=("eta", lambda etas: etas.mode().iloc[0]),
        seeds=("seed", "nunique"),
        value=("suboptimality", "median"),
        low=("suboptimality", "min"),
        high=("suboptimality", "max"),
        megabytes=("megabytes_per_worker", "max"),
    )
    theirs = published()
    known = beside(best, theirs).merge(theirs[[*CELL, "eta"]], on=CELL)
    known = known.rename(columns={"theirs": "published", "eta": "published_eta"})
    known = known[[*CELL, "published", "published_eta"]].assign(T=PUBLISHED_STEPS)
    cells = cells.merge(known, how="left", on=[*CELL, "T"])
    return cells.assign(cell=range(len(cells)))


def _target(cells: pd.DataFrame) -> float:
    """Return the target to begin with: the paper's, or one that every algorithm reaches.

    That is the smallest power of ten, with the most workers of the grid.
    """
    here = cells[cells["M"] == cells["M"].max()]
    for claim in CLAIMS:
        same = (here["dataset"] == claim.dataset) & (here["l2"] == claim.l2)
        if (same & (here["M"] == claim.M)).any():
            return claim.target
    worst = float(here.groupby("algorithm")["value"].min().max())
    if not 0 < worst < math.inf:  # at the optimum to all digits, or nothing that is a number
        return min(TARGETS)
    return float(f"1e{math.ceil(math.log10(worst / SLACK))}")


def _traces(
    frame: pd.DataFrame, traces: pd.DataFrame, cells: pd.DataFrame, best: pd.DataFrame
) -> tuple[list[list[int]], Table]:
    """Return the distinct lists of recorded steps, and a row per run with its suboptimalities."""
    runs = frame.merge(cells[[*CELL, "T", "cell"]], on=[*CELL, "T"])
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
    table["best"] = table.index.isin(best["key"])
    # Nearly all runs are recorded at the same steps.
    places = {steps: place for place, steps in enumerate(dict.fromkeys(table["steps"]))}
    table["steps"] = table["steps"].map(places)
    return [list(steps) for steps in places], _table(table)


def _looks(names: list[str]) -> Table:
    looks = [style(name) for name in names]
    return {
        "label": [ALGORITHMS[name].label if name in ALGORITHMS else name for name in names],
        "name": names,
        "colour": [look.colour for look in looks],
        "symbol": [look.symbol for look in looks],
    }


def _table(frame: pd.DataFrame, digits: int = 6) -> Table:
    """Return a frame as columns of plain values."""
    return {
        str(name): [rounded(v, digits) if isinstance(v, float) else v for v in column.tolist()]
        for name, column in frame.items()
    }
