# SPDX-License-Identifier: Apache-2.0
"""Which method for which network: the figures and tables of docs/benchmark-networks.md.

    python benchmarks/networks_page.py [FOLDER [digits mnist shakespeare] [--methods a,b]]

The folder keeps all runs, with a store for each case. Stored runs are not repeated. Needs
mnist_5k.csv.gz and shakespeare.txt in $FEDAC_DATA. With names of problems or methods, runs only
these: all other rows stay as docs/benchmark-networks.csv has them. Without a folder, nothing is
run: figures and tables are made from that file.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from dot_plots import COSTS, Measure, draw_dots, save
from matplotlib.figure import Figure
from torch import nn

from fedac import Network, compare, load, models
from fedac.experiments.comparison import Comparison
from fedac.experiments.summary import label_of

DOCS = Path(__file__).parents[1] / "docs"
METHODS = (
    "mb-sgd", "fedavg", "fedprox(0.01)", "fedavgm", "diloco", "fedadam", "fedexp", "fedcm",
    "mimelite(0.9)", "feddyn", "scaffold", "scaffold-m", "fedavg+cv+nesterov(1,0.9)",
    "momentum(0.9)",
    "fedac-i", "fedac-i+local", "fedac-i+cv", "adamw", "adamw+nesterov(0.7,0.9)",
)  # fmt: skip
# A link between data centers, and one to people's homes.
LINKS = ("wan", "home")
KNOWN = ("fedavg", "fedac-i", "scaffold")
CONTEXT, SPEAKERS, MOST_ROWS = 32, 50, 24


class Clients(NamedTuple):
    """A split of the rows, and the participation."""

    name: str
    split: str  # "natural": the clients of the data
    number: int
    participation: float
    epochs: int | None = None  # in a round, instead of K steps; only then is FedNova not FedAvg

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to compare."""
        return METHODS if self.epochs is None else (*METHODS, "fednova")


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with its target."""

    name: str
    title: str
    make: Callable[[], tuple[Network, Any]]
    kinds: tuple[Clients, ...]
    target: str
    options: dict[str, Any]


def digits() -> tuple[Network, None]:
    """Return scikit-learn's digits with a hidden layer of 64."""
    data = load("digits")
    X, y = data.X, data.labels  # pixels from 0 to 1
    test = np.random.default_rng(0).random(len(y)) < 0.2

    def make() -> nn.Module:
        return models.mlp(64)((64,), 10)

    return Network(make, X[~test], y[~test], test=(X[test], y[test])), None


class SmallCNN(nn.Sequential):
    """Two convolutions with stride 2 and one linear layer."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(256, 10),
        )  # fmt: skip


def mnist() -> tuple[Network, None]:
    """Return 5,000 images of MNIST with a small CNN."""
    table = pd.read_csv(Path(environ["FEDAC_DATA"]) / "mnist_5k.csv.gz", header=None).to_numpy()
    X, y = (table[:, :-1] / 255).reshape(-1, 1, 28, 28).astype(np.float32), table[:, -1]
    test = np.random.default_rng(0).random(len(y)) < 0.2
    return Network(SmallCNN, X[~test], y[~test], test=(X[test], y[test])), None


@cache
def speeches() -> tuple[np.ndarray, np.ndarray, int]:
    """Return rows of characters, the speaker of each row, and the number of characters."""
    text = (Path(environ["FEDAC_DATA"]) / "shakespeare.txt").read_text()
    letters = sorted(set(text))
    code = {letter: number for number, letter in enumerate(letters)}
    of_speaker: dict[str, list[str]] = {}
    for part in text.split("\n\n"):
        speaker, _, speech = part.strip().partition(":\n")
        if speech:
            of_speaker.setdefault(speaker, []).append(speech + "\n")
    spoken = {speaker: "".join(parts) for speaker, parts in of_speaker.items()}
    largest = sorted(spoken, key=lambda speaker: -len(spoken[speaker]))[:SPEAKERS]
    rows, owners = [], []
    for m, speaker in enumerate(largest):
        speech = [code[letter] for letter in spoken[speaker]]
        ends = range(CONTEXT + 1, len(speech), CONTEXT)
        some = [speech[end - CONTEXT - 1 : end] for end in ends][:MOST_ROWS]
        rows += some
        owners += [m] * len(some)
    return np.array(rows), np.array(owners), len(letters)


def shakespeare() -> tuple[Network, np.ndarray]:
    """Return the largest roles in Shakespeare with a transformer that predicts characters."""
    rows, owners, letters = speeches()
    test = np.random.default_rng(0).random(len(rows)) < 0.2

    def make() -> nn.Module:
        return models.char_gpt(2, 32, CONTEXT)((CONTEXT,), letters)

    return Network(make, rows[~test], loss="next-token", test=rows[test]), owners[~test]


CASES = (
    Case(
        "digits", "digits, MLP 64-64-10", digits,
        (
            Clients("i.i.d., all", "iid", 30, 1.0),
            Clients("dirichlet(0.3), all", "dirichlet(0.3)", 30, 1.0),
            Clients("by label, all", "label", 30, 1.0),
            Clients("dirichlet(0.3), 10%", "dirichlet(0.3)", 50, 0.1),
            Clients("dirichlet(0.3), all, an epoch", "dirichlet(0.3)", 30, 1.0, epochs=1),
        ),
        "accuracy 0.9", {"K": 8, "rounds": 60, "batch": 8, "tries": 9, "repeats": 5},
    ),
    Case(
        "mnist", "MNIST, 5,000 images, CNN", mnist,
        (
            Clients("i.i.d., all", "iid", 10, 1.0),
            Clients("dirichlet(0.3), all", "dirichlet(0.3)", 10, 1.0),
            Clients("by label, all", "label", 10, 1.0),
            Clients("dirichlet(0.3), 10%", "dirichlet(0.3)", 100, 0.1),
        ),
        "accuracy 0.9", {"K": 8, "rounds": 24, "batch": 16, "tries": 8, "repeats": 5},
    ),
    Case(
        "shakespeare", "Shakespeare, characters, transformer", shakespeare,
        (
            Clients("i.i.d., 10%", "iid", SPEAKERS, 0.1),
            Clients("speakers, 10%", "natural", SPEAKERS, 0.1),
        ),
        "perplexity 16", {"K": 8, "rounds": 20, "batch": 8, "tries": 7, "repeats": 3},
    ),
)  # fmt: skip


def main(folder: Path | None, names: list[str], methods: list[str]) -> None:
    """Run what the folder lacks, and write the page's figures and tables."""
    path = DOCS / "benchmark-networks.csv"
    if folder is not None:
        cases = [case for case in CASES if case.name in names or not names]
        frames = [
            comparison.frame.assign(
                problem=case.name, clients=kind.name, link=link, target=case.target
            )
            for (case, kind, link), comparison in compare_all(folder, cases, methods)
        ]
        rows = with_other_rows(pd.concat(frames, ignore_index=True), pd.read_csv(path))
        rows.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
    rows = pd.read_csv(path)
    for case in CASES:
        save(draw(rows, case), DOCS / "images" / f"benchmark-networks-{case.name}.png")
    write_tables(tables(rows))


def compare_all(
    folder: Path, cases: list[Case], methods: list[str]
) -> Iterator[tuple[tuple[Case, Clients, str], Comparison]]:
    """Compare the methods in every case. A second link costs nothing: runs are stored."""
    for case in cases:
        task, owners = case.make()
        for place, kind in enumerate(case.kinds):
            chosen: dict[str, Any] = {"clients": kind.number, "split": kind.split}
            if kind.split == "natural":
                chosen = {"clients": owners}
            options = case.options
            if kind.epochs is not None:
                options = {k: v for k, v in options.items() if k != "K"} | {"epochs": kind.epochs}
            for link in LINKS:
                before = time.monotonic()
                found = compare(
                    task, methods or kind.methods, target=case.target,
                    participation=kind.participation, link=link,
                    out=folder / f"{case.name}-{place}", jobs=1, **chosen, **options,
                )  # fmt: skip
                seconds = time.monotonic() - before
                print(f"{case.name}, {kind.name}, {link}: {found.runs} runs, {seconds:.0f} s")
                print(found.verdict, flush=True)
                yield (case, kind, link), found


def with_other_rows(rows: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Add the rows of the file whose problem, clients, link and method were not run now."""
    key = ["problem", "clients", "link", "method"]
    new = pd.MultiIndex.from_frame(rows[key])
    kept = before[~pd.MultiIndex.from_frame(before[key]).isin(new)]
    found = pd.concat([kept, rows], ignore_index=True)
    order = {case.name: i for i, case in enumerate(CASES)}
    kinds = {(case.name, kind.name): i for case in CASES for i, kind in enumerate(case.kinds)}
    place = [
        (order[p], kinds[p, c], link, s if reached else math.inf)
        for p, c, link, s, reached in zip(
            found["problem"], found["clients"], found["link"], found["seconds"], found["reached"],
            strict=True,
        )
    ]  # fmt: skip
    found = found.iloc[sorted(range(len(found)), key=place.__getitem__)]
    first = ["problem", "clients", "link", "target"]
    return found[first + [name for name in found if name not in first]]


def draw(rows: pd.DataFrame, case: Case) -> Figure:
    """Draw what the target costs, and the metric on the test set at the end."""
    metric = case.target.split()[0]
    at_end = Measure(
        f"test_{metric}", f"{metric} on the test set at the end", True, metric == "accuracy"
    )
    of_case = rows[(rows["problem"] == case.name) & (rows["link"] == LINKS[0])]
    of_case = of_case.assign(column=of_case["clients"])
    names = [kind.name for kind in case.kinds]
    title = f"{case.title}, target: {case.target}"
    return draw_dots(of_case, names, [*COSTS[:2], at_end], title)


def reached_in(rows: pd.DataFrame, case: Case, kind: Clients, link: str) -> pd.DataFrame:
    """Return the rows of a case that reached the target."""
    of_case = (rows["problem"] == case.name) & (rows["clients"] == kind.name)
    return rows[of_case & (rows["link"] == link) & rows["reached"]]


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Return the page's tables, by their markers."""
    return {"wins": wins(rows), "winners": winners(rows)}


def wins(rows: pd.DataFrame) -> str:
    """Count how often each method needs the least, or at most a tenth more."""
    axes = {"rounds": ("rounds", LINKS[0]), "MB": ("megabytes", LINKS[0])}
    axes |= {f"seconds ({link})": ("seconds", link) for link in LINKS}
    lines = [
        f"| method | reached | {' | '.join(f'{name}: best, within 10%' for name in axes)} |",
        "|---" + "|---:" * (1 + len(axes)) + "|",
    ]
    cases = [(case, kind) for case in CASES for kind in case.kinds]
    table = []
    for method in (*METHODS, "fednova"):
        cells, near, reached, tried = [], 0, 0, 0
        for axis, link in axes.values():
            best = close = 0
            for case, kind in cases:
                costs = reached_in(rows, case, kind, link).set_index("method")[axis]
                if method in costs:
                    best += bool(costs[method] <= costs.min())
                    close += bool(costs[method] <= 1.1 * costs.min())
                    reached += axis == "rounds"
            cells.append(f"{best}, {close}")
            near += close
        of_method = rows[(rows["method"] == method) & (rows["link"] == LINKS[0])]
        tried = len(of_method)
        text = f"| {label_of(method)} | {reached} of {tried} | {' | '.join(cells)} |"
        table.append((-near, -reached, text))
    return "\n".join(lines + [line for *_, line in sorted(table)])


def winners(rows: pd.DataFrame) -> str:
    """Return the best method of every case on every axis, and the costs of well-known methods."""
    heads = ["clients", "fewest rounds", "fewest MB", *(f"fewest seconds ({x})" for x in LINKS)]
    heads += [f"{label_of(name)}: rounds, MB" for name in KNOWN]
    lines = []
    for case in CASES:
        lines += ["", f"**{case.title}, target: {case.target}**", ""]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for kind in case.kinds:
            first = reached_in(rows, case, kind, LINKS[0])
            cells = [kind.name, winner(first, "rounds"), winner(first, "megabytes")]
            cells += [winner(reached_in(rows, case, kind, link), "seconds") for link in LINKS]
            known = first.set_index("method")
            for method in KNOWN:
                costs = [known[axis].get(method) for axis in ("rounds", "megabytes")]
                cells.append(", ".join("-" if cost is None else f"{cost:.3g}" for cost in costs))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def winner(rows: pd.DataFrame, axis: str) -> str:
    """Name the best method on an axis with its interval, and how many intervals overlap it."""
    if not len(rows):
        return "none"
    best = rows.loc[rows[axis].idxmin()]
    low, high = (f"{best[f'{axis}_{end}']:.3g}" for end in ("low", "high"))
    overlap = int((rows[f"{axis}_low"] <= best[f"{axis}_high"]).sum()) - 1
    text = f"**{label_of(best['method'])}**: {best[axis]:.3g} ({low} to {high})"
    return text + (f"; {overlap} overlap" if overlap else "")


def write_tables(tables: dict[str, str]) -> None:
    """Replace the tables between the markers of docs/benchmark-networks.md."""
    page = DOCS / "benchmark-networks.md"
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("problems", nargs="*", help="digits, mnist, shakespeare (default: all)")
    parser.add_argument("--methods", default="", help="a,b: only these methods")
    given = parser.parse_args()
    main(given.folder, given.problems, [name for name in given.methods.split(",") if name])
