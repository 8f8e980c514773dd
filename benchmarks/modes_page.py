# SPDX-License-Identifier: Apache-2.0
"""What each mode gains and costs where clients are slow or absent: docs/slow-clients.md.

    python benchmarks/modes_page.py [FOLDER [a9a digits mnist]]

Writes docs/slow-clients.csv, docs/images/slow-clients-*.png and the tables between the page's
markers. The folder keeps all runs; stored ones are not repeated. Needs mnist_5k.csv.gz in
$FEDAC_DATA. With names, runs only these problems; the rows of all others stay as they are. Without
a folder, nothing is run: figures and tables are made from the CSV file.
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
from dot_plots import LOOK, WIDTH, Measure, draw_dots, save
from matplotlib import rc_context
from matplotlib.figure import Figure

import fedac
from fedac import Link, Network, compare, load, models
from fedac.experiments.summary import label_of

DOCS = Path(__file__).parents[1] / "docs"
METHODS = (
    "mb-sgd", "fedavg", "fedavgm", "diloco", "fedadam", "fedexp", "scaffold",
    "fedavg+cv+nesterov(1,0.9)", "fedac-i", "fedac-i+local", "fedac-i+cv",
)  # fmt: skip
FEW = ("fedavg", "fedavgm", "scaffold", "momentum(0.9)", "fedac-i", "fedac-i+cv", "adamw")
# Steps of 50 ms; the fastest and the slowest of 100 clients differ by a factor of about 150.
LINK = Link(latency="50ms", gradient="50ms", speeds="lognormal(1)")


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


def main(folder: Path | None, names: list[str]) -> None:
    """Run what the folder lacks, and write the page's figures and tables."""
    path = DOCS / "slow-clients.csv"
    if folder is not None:
        cases = [case for case in CASES if case.name in names or not names]
        frames = [compare_modes(case, folder) for case in cases]
        before = pd.read_csv(path)
        frames.append(before[~before["problem"].isin([case.name for case in cases])])
        rows = pd.concat(frames, ignore_index=True)
        rows = rows[["problem", *(name for name in rows if name != "problem")]]
        rows.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
    rows = pd.read_csv(path)
    write_tables(tables(rows))
    for case in CASES:
        save(draw(rows, case), DOCS / "images" / f"slow-clients-{case.name}.png")
    save(draw_timelines(), DOCS / "images" / "slow-clients-timelines.png")


def compare_modes(case: Case, folder: Path) -> pd.DataFrame:
    """Compare the methods of a problem in every mode."""
    before = time.monotonic()
    found = compare(
        case.make(), case.methods, mode=case.modes, link=LINK, jobs=1, out=folder / case.name,
        **case.options,
    )  # fmt: skip
    print(f"{case.name}: {found.runs} runs, {time.monotonic() - before:.0f} s", flush=True)
    print(found, flush=True)
    return found.frame.assign(problem=case.name)


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return the page's tables, by their markers."""
    return {case.name: table(rows, case) for case in CASES}


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


def draw(rows: pd.DataFrame, case: Case) -> Figure:
    """Draw the seconds to the target, a panel for each mode."""
    of_case = rows[rows["problem"] == case.name].assign(column=rows["mode"])
    seconds = Measure("seconds", "simulated seconds to the target")
    return draw_dots(of_case, case.modes, [seconds], case.title.partition(":")[0])


def draw_timelines() -> Figure:
    """Draw who works when in three modes: twelve clients, six of them at work."""
    F = fedac.NoisyQuadratic([1.0, 0.1])
    with rc_context(LOOK):
        drawing = Figure(figsize=(WIDTH, 2.6), layout="constrained")
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
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:])
