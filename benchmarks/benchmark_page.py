# SPDX-License-Identifier: Apache-2.0
"""The benchmark: 20 methods on 4 problems and 5 kinds of clients, on three axes.

Writes docs/images/benchmark-*.png, docs/benchmark.csv and the tables of docs/benchmark.md, between
its markers: python benchmarks/benchmark_page.py FOLDER

The folder keeps all runs, with a store for each problem and kind of clients. Stored runs are not
repeated. Without a folder, nothing is run: figures and counts are made from docs/benchmark.csv.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
from dot_plots import COSTS, LOOK, WIDTH, draw_dots, save, short_label
from matplotlib import rc_context
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from fedac import Dataset, load
from fedac.experiments.comparison import Comparison, Question, Study, open_store
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.question import AXES
from fedac.experiments.comparison.table import Row
from fedac.experiments.summary import label_of, predict_ratio

DOCS = Path(__file__).parents[1] / "docs"
METHODS = (
    "mb-sgd", "mb-ac-sgd", "fedavg", "fednova", "fedavgm", "diloco", "outer-nesterov", "fedadam",
    "fedexp", "fedcm", "mimelite(0.9)", "feddyn", "scaffold", "scaffold-m",
    "fedavg+cv+nesterov(1,0.9)",
    "fedac-i", "fedac-ii", "fedac-i+local", "fedac-i+local+nesterov(1,0.3)", "fedac-i+cv",
    "fedac-i+cv+nesterov(1,0.3)",
)  # fmt: skip
# Where all clients take the same number of steps, it is FedAvg.
FEDNOVA = "fednova"
KNOWN = ("fedavg", "fedac-i", "lbfgs")
CLIENTS = 100


class Case(NamedTuple):
    """A problem."""

    name: str
    dataset: str
    l2: float
    target: float
    rounds: int = 200
    local_steps: tuple[int, ...] = (8, 32, 128)
    batch: int = 8  # where a round is an epoch


CASES = (
    Case("a9a, l2 = 1e-3", "a9a", 1e-3, 5e-3),
    Case("a9a, l2 = 1e-4", "a9a", 1e-4, 1e-2),
    # Two thousand dense columns: a step costs 140 times as much as on a9a.
    Case("synthetic-dense, l2 = 1e-6", "synthetic-dense", 1e-6, 5e-2, 50, (8, 32)),
    Case("digits, 8 against the rest, l2 = 1e-3", "digits", 1e-3, 5e-3, batch=2),
)
# The split of the rows, and the participation. In the last one, clients take different numbers of
# steps: a round is an epoch.
EPOCHS = "an epoch a round"
KINDS = {
    "i.i.d.": ("iid", 1.0),
    "dirichlet(0.3)": ("dirichlet(0.3)", 1.0),
    "by label": ("label", 1.0),
    "10% take part": ("dirichlet(0.3)", 0.1),
    EPOCHS: ("dirichlet(0.3)", 1.0),
}


def main(folder: Path | None) -> None:
    """Run what the folder lacks, and write the page's figures and tables."""
    path = DOCS / "benchmark.csv"
    if folder is not None:
        found = dict(compare_all(folder))
        frames = [
            comparison.frame.assign(problem=case.name, clients=kind, target=case.target)
            for (case, kind), comparison in found.items()
        ]
        rows = pd.concat(frames, ignore_index=True)
        columns = ["problem", "clients", "target"]
        rows = rows[columns + [name for name in rows if name not in columns]]
        rows.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
        write_table("winners", winners(found))
    rows = pd.read_csv(path)
    for name, table in tables(rows).items():
        write_table(name, table)
    save(draw_overview(rows), DOCS / "images" / "benchmark-overview.png")
    for number, case in enumerate(CASES, start=1):
        of_case = rows[rows["problem"] == case.name].assign(column=rows["clients"])
        drawing = draw_dots(of_case, [*KINDS], COSTS, f"{case.name}, target {case.target:g}")
        save(drawing, DOCS / "images" / f"benchmark-{number}.png")


def compare_all(folder: Path) -> Iterator[tuple[tuple[Case, str], Comparison]]:
    """Compare the methods in every case."""
    for number, case in enumerate(CASES, start=1):
        data = digits() if case.dataset == "digits" else load(case.dataset)
        for place, (kind, (split, share)) in enumerate(KINDS.items()):
            length: dict[str, Any] = {"local_steps": case.local_steps}
            methods = [name for name in METHODS if name != FEDNOVA]
            if kind == EPOCHS:
                length, methods = {"epochs": 1, "batch": case.batch}, [*METHODS]
            question = Question.ask(
                {"dataset": data.name, "l2": case.l2, "clients": CLIENTS, "split": split,
                 "participation": share, "methods": (*methods, *BASELINES),
                 "rounds": case.rounds, "target": case.target} | length
            )  # fmt: skip
            before = time.monotonic()
            with open_store(folder / f"{number}-{place}") as store:
                found = Study(question, data).answer(store)
            seconds = time.monotonic() - before
            print(f"{case.name}, {kind}: {found.runs} runs, {seconds:.0f} s", flush=True)
            yield (case, kind), found


def digits() -> Dataset:
    """Return scikit-learn's digits, the eights against all others, with pixels from 0 to 1."""
    data = load_digits()
    labels = np.where(data.target == 8, 1.0, -1.0)
    return Dataset("digits", sp.csr_array(data.data / 16), labels)


def label(method: str) -> str:
    """Return the label of a method or a baseline."""
    return BASELINES.get(method) or label_of(method)


def times_the_best(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return the cost of the target at each method's best K, relative to the best method.

    A row per method, the baselines last, and a column per case.
    """
    costs = rows.pivot_table(
        index="method", columns=["problem", "clients"], values=axis, aggfunc="min", dropna=False
    )
    columns = [(case.name, kind) for case in CASES for kind in KINDS]
    costs = costs.reindex(index=[*METHODS, *BASELINES], columns=pd.MultiIndex.from_tuples(columns))
    return costs / costs.loc[list(METHODS)].min()


def draw_overview(rows: pd.DataFrame) -> Figure:
    """Draw the cost of each method relative to the best one, on every axis."""
    names = [*METHODS, *BASELINES]
    with rc_context(LOOK):
        drawing = Figure(figsize=(WIDTH, 12.5), layout="constrained")
        panels = drawing.subplots(len(AXES), 1, sharex=True)
        for ax, axis in zip(panels, AXES, strict=True):
            ratios = times_the_best(rows, axis).to_numpy()
            image = ax.imshow(ratios, cmap="viridis_r", norm=LogNorm(1, 10), aspect="auto")
            for (i, j), ratio in np.ndenumerate(ratios):
                light = not math.isnan(ratio) and ratio > 3
                weight = "bold" if ratio == 1 else "normal"
                ax.text(j, i, written_ratio(ratio), ha="center", va="center", fontsize=7,
                        fontweight=weight, color="white" if light else "black")  # fmt: skip
            ax.set_yticks(range(len(names)), [short_label(name) for name in names])
            ax.tick_params(length=0)
            ax.axhline(len(METHODS) - 0.5, color="white", linewidth=2)
            for number, case in enumerate(CASES):
                ax.axvline(len(KINDS) * number - 0.5, color="white", linewidth=2)
                middle = len(KINDS) * (number + 0.5) - 0.5
                name = case.name.replace(", 8 against the rest", "")
                ax.text(middle, -0.7, name, ha="center", va="bottom")
            ax.set_title(f"{axis} to the target", pad=16, fontweight="bold")
        kinds = [kind for _ in CASES for kind in KINDS]
        panels[-1].set_xticks(range(len(kinds)), kinds, rotation=90)
        drawing.colorbar(
            image, ax=panels, label="cost relative to the best method", ticks=[1, 2, 5, 10],
            format="%d", shrink=0.4, pad=0.01, location="bottom",
        )  # fmt: skip
    return drawing


def written_ratio(ratio: float) -> str:
    """Write a ratio in three characters."""
    if math.isnan(ratio):
        return "-"
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"[1:]


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return the tables that need no single runs, by their markers."""
    return {"counts": counts(rows)}


def write_table(name: str, table: str) -> None:
    """Replace a table between its markers in docs/benchmark.md."""
    page = DOCS / "benchmark.md"
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    before, after = pattern.split(text)
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


def winners(found: dict[tuple[Case, str], Comparison]) -> str:
    """Return the best method of every case on every axis, and the costs of well-known methods."""
    heads = ["clients", *(f"fewest {axis}" for axis in AXES)]
    heads += [f"{label(name)}: rounds, MB, s" for name in KNOWN]
    lines = []
    for case in CASES:
        lines += ["", f"**{case.name}, target {case.target:g}**", ""]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for kind in KINDS:
            comparison = found[case, kind]
            cells = [kind, *(winner(comparison, axis) for axis in AXES)]
            for method in KNOWN:
                ours = [row for row in comparison.rows if row.method == method and row.reached]
                cells.append(
                    ", ".join(
                        cost(min((getattr(row, axis).middle for row in ours), default=math.nan))
                        for axis in AXES
                    )
                )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def winner(comparison: Comparison, axis: str) -> str:
    """Name the best method on an axis, and the number of methods that are level with it."""
    best: dict[str, Row] = {}  # of each method
    for row in sorted(comparison.rows, key=lambda row: getattr(row, axis).middle):
        if row.reached and row.method not in BASELINES:
            best.setdefault(row.method, row)
    if not best:
        return "none"

    target = comparison.question.target
    assert target is not None

    def costs(row: Row) -> list[float]:
        curves = row.curves
        return [curve.cost_of(target, axis) for curve in curves]

    first, *others = best.values()
    band = getattr(first, axis)
    text = f"**{label(first.method)}**, K={first.K}: {cost(band.middle)} "
    text += f"({cost(band.low)} to {cost(band.high)})"
    level = sum(predict_ratio(costs(row), costs(first)).low <= 1 for row in others)
    return text + (f"; {level} level" if level else "")


def cost(value: float) -> str:
    """Write a cost with three digits."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def counts(rows: pd.DataFrame) -> str:
    """Count how often each method is the best, or within a tenth of it, on every axis."""
    heads = [
        "method",
        *(f"best on {axis}" for axis in AXES),
        "within 10%: rounds, MB, s",
        "reached",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    ratios = {axis: times_the_best(rows, axis) for axis in AXES}
    order = sorted(METHODS, key=lambda name: -(ratios["seconds"].loc[name] <= 1.1).sum())
    for name in order:
        best = [str(int((ratios[axis].loc[name] == 1).sum())) for axis in AXES]
        near = [str(int((ratios[axis].loc[name] <= 1.1).sum())) for axis in AXES]
        reached = int(ratios["rounds"].loc[name].notna().sum())
        compared = len(rows.loc[rows["method"] == name, ["problem", "clients"]].drop_duplicates())
        cells = [label(name), *best, ", ".join(near), f"{reached} of {compared}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
