"""What each mode gains and costs where clients are slow or absent: docs/slow-clients.md.

    python benchmarks/modes_page.py FOLDER [a9a digits mnist]

Writes docs/slow-clients.csv, docs/images/slow-clients-*.png and the tables between the page's
markers. The folder keeps all runs; stored ones are not repeated. Needs mnist_5k.csv.gz in
$FEDAC_DATA. With names, runs only these problems; the rows of all others stay as they are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

import fedac
from fedac import Link, Network, compare, load, models
from fedac.experiments.comparison import Comparison
from fedac.experiments.summary import label_of

DOCS = Path(__file__).parents[1] / "docs"
METHODS = (
    "mb-sgd", "fedavg", "fedavgm", "diloco", "fedadam", "fedexp", "scaffold",
    "fedavg+cv+nesterov(1,0.9)", "fedac-i", "fedac-i+local", "fedac-i+cv",
)  # fmt: skip
FEW = ("fedavg", "fedavgm", "scaffold", "momentum(0.9)", "fedac-i", "fedac-i+cv", "adamw")
# Steps of 50 ms; the fastest and the slowest of 100 clients differ by a factor of about 150.
LINK = Link(latency="50ms", gradient="50ms", speeds="lognormal(1)")
DRAWN = ("fedavg", "scaffold", "fedac-i", "fedac-i+cv")


@dataclass(frozen=True)
class Case:
    """A problem with its modes."""

    name: str
    title: str
    make: Callable[[], Any]
    modes: tuple[str, ...]
    methods: tuple[str, ...]
    options: dict[str, Any]


def digits() -> Network:
    """Return scikit-learn's digits with a hidden layer of 64."""
    data = load("digits")
    test = np.random.default_rng(0).random(len(data.labels)) < 0.2
    X, y = data.X, data.labels
    return Network(lambda: models.mlp(64)((64,), 10), X[~test], y[~test], test=(X[test], y[test]))


def mnist() -> Network:
    """Return 5,000 images of MNIST with a hidden layer of 32."""
    table = pd.read_csv(Path(environ["FEDAC_DATA"]) / "mnist_5k.csv.gz", header=None).to_numpy()
    X, y = (table[:, :-1] / 255).astype(np.float32), table[:, -1]
    test = np.random.default_rng(0).random(len(y)) < 0.2
    return Network(lambda: models.mlp(32)((784,), 10), X[~test], y[~test], test=(X[test], y[test]))


CASES = (
    Case(
        "a9a", "a9a, l2 = 1e-3: 100 clients, dirichlet(0.3), 20 at work, K = 16, target 0.01",
        lambda: load("a9a"), ("rounds", "deadline(1.4s)", "buffer(5)", "buffer(20)"), METHODS,
        {"K": 16, "batch": 4, "clients": 100, "split": "dirichlet(0.3)", "participation": 20,
         "l2": 1e-3, "rounds": 200, "target": 0.01, "oversample": 1.4},
    ),
    Case(
        "digits", "digits, MLP 64-64-10: 30 clients, dirichlet(0.3), 10 at work, K = 8, "
        "target: accuracy 0.9",
        digits, ("rounds", "deadline(0.75s)", "buffer(3)", "buffer(10)"), FEW,
        {"K": 8, "batch": 8, "clients": 30, "split": "dirichlet(0.3)", "participation": 10,
         "rounds": 60, "target": "accuracy 0.9", "oversample": 1.4, "tries": 9, "repeats": 5},
    ),
    Case(
        "mnist", "MNIST, 5,000 images, MLP 784-32-10: 100 clients, dirichlet(0.3), each available "
        "10% of the time, 5 at work, K = 8, target: accuracy 0.8",
        mnist, ("rounds", "deadline(0.75s)", "buffer(2)", "buffer(5)"), FEW,
        {"K": 8, "batch": 16, "clients": 100, "split": "dirichlet(0.3)", "participation": 5,
         "rounds": 40, "target": "accuracy 0.8", "availability": "share(0.1, 10s)",
         "oversample": 1.4, "tries": 8, "repeats": 5},
    ),
)  # fmt: skip


def main(folder: Path, names: list[str]) -> None:
    """Run what the folder lacks, and write the page's figures and tables."""
    path, frames = DOCS / "slow-clients.csv", []
    cases = [case for case in CASES if case.name in names or not names]
    for case in cases:
        before = time.monotonic()
        found = compare(
            case.make(), case.methods, mode=case.modes, link=LINK, jobs=1,
            out=folder / case.name, **case.options,
        )  # fmt: skip
        print(f"{case.name}: {found.runs} runs, {time.monotonic() - before:.0f} s", flush=True)
        print(found, flush=True)
        frames.append(found.frame.assign(problem=case.name))
        draw(found, case).savefig(DOCS / "images" / f"slow-clients-{case.name}.png", dpi=130)
    if path.exists():
        before_ = pd.read_csv(path)
        frames.append(before_[~before_["problem"].isin([case.name for case in cases])])
    rows = pd.concat(frames, ignore_index=True)
    rows = rows[["problem", *(name for name in rows if name != "problem")]]
    rows.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
    write_tables({case.name: table(rows, case) for case in CASES if case.name in set(rows.problem)})
    draw_timelines().savefig(DOCS / "images" / "slow-clients-timelines.png", dpi=130)


def table(rows: pd.DataFrame, case: Case) -> str:
    """Return the seconds to the target by method and mode; in brackets where a run ended."""
    heads = ["method", *case.modes]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * len(case.modes) + "|"]
    of_case = rows[rows["problem"] == case.name].set_index(["method", "mode"])
    fastest = of_case["seconds"].min()
    result = "suboptimality" if case.name == "a9a" else "test_accuracy"
    for method in case.methods:
        cells = []
        for mode in case.modes:
            if (method, mode) not in of_case.index:
                cells.append("")
                continue
            row = of_case.loc[(method, mode)]
            ended = f"{row[result]:.2g}" if case.name == "a9a" else f"{row[result]:.3f}"
            text = f"- ({ended})"
            if row["reached"]:
                text = (
                    f"{row['seconds']:.3g} ({row['seconds_low']:.3g} to {row['seconds_high']:.3g})"
                )
                text = f"**{text}**" if row["seconds"] <= 1.1 * fastest else text
            cells.append(text)
        lines.append(f"| {label_of(method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: Comparison, case: Case) -> Figure:
    """Draw loss over simulated time, a panel for each mode."""
    metric = None if case.name == "a9a" else "accuracy"
    colours = dict(zip(DRAWN, ("0.45", "tab:green", "tab:blue", "tab:red"), strict=True))
    with rc_context({"font.size": 7, "axes.titlesize": 8}):
        drawing = Figure(figsize=(11, 3), layout="constrained")
        panels = drawing.subplots(1, len(case.modes), sharey=True, sharex=True)
        for ax, mode in zip(panels, case.modes, strict=True):
            for row in found.rows:
                if row.method not in DRAWN or row.mode != mode or not row.curves:
                    continue
                seconds = np.mean([curve.seconds for curve in row.curves], axis=0)
                values = [c.metrics[metric] if metric else c.suboptimality for c in row.curves]
                mean = (
                    np.mean(values, axis=0) if metric else np.exp(np.mean(np.log(values), axis=0))
                )
                ax.plot(seconds, mean, color=colours[row.method], label=label_of(row.method),
                        linewidth=1.2)  # fmt: skip
            ax.axhline(found.question.target.value, color="0.35", linestyle="--", linewidth=0.8)
            ax.set(title=mode, xlabel="simulated seconds")
            ax.grid(True, color="0.92", linewidth=0.5)
            if metric is None:
                ax.set(yscale="log")
        panels[0].set_ylabel("suboptimality" if metric is None else f"{metric} on the test set")
        ends = [row.curves[0].seconds[-1] for row in found.rows if row.curves]
        panels[0].set_xlim(0, float(np.median(ends)))
        handles, labels = panels[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return drawing


def draw_timelines() -> Figure:
    """Draw who works when in three modes: twelve clients, six of them at work."""
    F = fedac.NoisyQuadratic([1.0, 0.1])
    with rc_context({"font.size": 7, "axes.titlesize": 8}):
        drawing = Figure(figsize=(11, 2.6), layout="constrained")
        modes = ("rounds", "deadline(1.4s)", "buffer(3)")
        for ax, mode in zip(drawing.subplots(1, 3), modes, strict=True):
            run = fedac.simulate(
                F, "fedavg", M=12, participation=6, K=16, rounds=40, eta=0.1, link=LINK, mode=mode,
                engine="reference",
            ).runs[0]  # fmt: skip
            run.timeline.plot(ax, until=8.0)
            ax.set_title(mode)
    return drawing


def write_tables(tables: dict[str, str]) -> None:
    """Replace the tables between the markers of docs/slow-clients.md."""
    page = DOCS / "slow-clients.md"
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{lines}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
