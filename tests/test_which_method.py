# SPDX-License-Identifier: Apache-2.0
"""What the pages say about methods is what the files of the benchmarks say.

Every number of docs/which-method.md is compared; of the other pages, the summaries and the tables
that scripts write. After a benchmark was made again, these tests name the sentences to correct.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedac.experiments.summary import label_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINEAR = pd.read_csv(DOCS / "benchmark.csv")
NETWORKS = pd.read_csv(DOCS / "benchmark-networks.csv")
SLOW = pd.read_csv(DOCS / "slow-clients.csv")
BASELINES = ("lbfgs", "agd")
AXES = ("rounds", "megabytes", "seconds")
PLAIN = "fedavg", "fedac-i"
CASE = ["problem", "clients"]

# Which cases a row of docs/which-method.md stands for: kinds of clients in the file.
ALIKE, EPOCH, TENTH = ("i.i.d.",), ("an epoch a round",), ("10% take part",)
DIFFERENT = ("dirichlet(0.3)", "by label")
KINDS = {
    "Linear models": {
        "all answer, full gradients": (*ALIKE, *DIFFERENT, *EPOCH, *TENTH),
        "similar, all present": ALIKE,
        "different, all present": DIFFERENT,
        "different, a round is an epoch": EPOCH,
        "different, a tenth present": TENTH,
        "any, and a large batch is cheap": (*ALIKE, *DIFFERENT, *EPOCH, *TENTH),
    },
    "Networks": {
        "similar": ("i.i.d., all", "i.i.d., 10%"),
        "different, all present": ("dirichlet(0.3), all", "dirichlet(0.3), all, an epoch"),
        "each its own labels": ("by label, all",),
        "different, a tenth present": ("dirichlet(0.3), 10%", "speakers, 10%"),
    },
}
LOSS = "training loss at the end"


def says(text: str, value: float) -> bool:
    """Whether a text is a number of a file, which has four digits, rounded to three."""
    if math.isnan(value):
        return text == "-"
    half = 0.5 * 10.0 ** (math.floor(math.log10(value)) - 3)
    near = (value - half, value, value + half)
    return text in {f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in near}


def text_of(page: str) -> str:
    """Return a page with single spaces in its paragraphs."""
    return re.sub(r"(?<=\S)\n(?=[^\n|`#-])\s*", " ", (DOCS / page).read_text(encoding="utf-8"))


def cheapest(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return the cheapest row of every method that reached the target on all seeds, in order."""
    if axis != "training_loss":
        rows = rows[rows["reached"]]
    return rows.sort_values(axis).drop_duplicates("method").set_index("method")


def of_case(frame: pd.DataFrame, problem: str, clients: str) -> pd.DataFrame:
    found = frame[(frame["problem"] == problem) & (frame["clients"] == clients)]
    assert len(found), f"no rows of {problem}: {clients}"
    return found


def level(one: pd.Series, other: pd.Series, axis: str) -> bool:
    low, high = f"{axis}_low", f"{axis}_high"
    return bool(one[low] <= other[high] and other[low] <= one[high])


def count_level(rows: pd.DataFrame, method: str, axis: str) -> int:
    """Return how many other methods, baselines aside, are level with one of them."""
    others = [name for name in rows.index if name not in (method, *BASELINES)]
    return sum(level(rows.loc[method], rows.loc[name], axis) for name in others)


def rows_below(title: str) -> Iterator[list[str]]:
    """Yield the cells of each row below a heading; an empty one repeats the one above."""
    section = text_of("which-method.md").split(f"\n## {title}\n")[1].split("\n## ")[0]
    above: list[str] = []
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) > 2
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        above = [new or old for new, old in zip(cells, above or cells, strict=True)]
        yield above


ANSWERS = [(title, row) for title in KINDS for row in rows_below(title)]
BAND = r"([\d.]+) \(([\d.]+) to ([\d.]+)\); (\d+) level"


def answer_id(value: object) -> str | None:
    return " ".join(value[:3]) if isinstance(value, list) else None


@pytest.mark.parametrize(("title", "row"), ANSWERS, ids=answer_id)
def test_an_answer_is_a_row_of_a_benchmark(title: str, row: list[str]) -> None:
    kind, paid, start, held, example, needs, plain = row
    method = start.strip("`")
    frame = LINEAR if title == "Linear models" else NETWORKS
    axes = [LOSS] if paid == LOSS else re.split(", | or ", paid)
    of_link = {"wan"} if title == "Networks" else {""}
    for axis in axes:
        column = "training_loss" if axis == LOSS else axis
        assert column in (*AXES, "training_loss")
        links = {"wan", "home"} if title == "Networks" and axis == "seconds" else of_link
        for link in links:
            rows = frame[frame["link"] == link] if link else frame
            assert held == held_in(rows, KINDS[title][kind], method, column), (axis, link)

    found = re.fullmatch(r"\[(.+): (.+?)(?:, K = (\d+))?\]\((.+)\)", example)
    assert found, example
    problem, clients, K, source = found.groups()
    assert source == ("benchmark.csv" if title == "Linear models" else "benchmark-networks.csv")
    assert clients in KINDS[title][kind], "the example is of other clients"
    axis = "training_loss" if axes == [LOSS] else axes[0]
    rows = of_case(frame, problem, clients)
    rows = cheapest(rows[rows["link"] == "wan"] if title == "Networks" else rows, axis)
    assert K is None or int(K) == rows.loc[method, "K"]
    check_band(needs, rows, method, axis)
    check_plain(plain, rows[axis])


def held_in(rows: pd.DataFrame, kinds: Iterable[str], method: str, axis: str) -> str:
    """Return in how many of the cases that anyone reaches a method is level with the cheapest."""
    held = reached = 0
    for _, case in rows[rows["clients"].isin(kinds)].groupby(CASE):
        costs = cheapest(case, axis)
        costs = costs[~costs.index.isin(set(BASELINES) - {method})]
        reached += len(costs) > 0
        held += method in costs.index and level(costs.loc[method], costs.iloc[0], axis)
    return f"{held} of {reached}"


def check_band(text: str, rows: pd.DataFrame, method: str, axis: str) -> None:
    found = re.fullmatch(BAND, text)
    assert found, text
    *band, others = found.groups()
    for part, end in zip(band, ("", "_low", "_high"), strict=True):
        assert says(part, rows.loc[method, axis + end]), f"{part}: {rows.loc[method, axis + end]}"
    assert int(others) == count_level(rows, method, axis)


def check_plain(text: str, costs: pd.Series) -> None:
    for part, name in zip(text.split(", "), PLAIN, strict=True):
        assert says(part, costs.get(name, math.nan)), f"{name}: {costs.get(name)}"


@pytest.mark.parametrize("row", [*rows_below("Slow and absent clients")], ids=answer_id)
def test_an_answer_about_slow_clients_is_a_row_of_a_benchmark(row: list[str]) -> None:
    _, how, start, example, needs, in_rounds, plain = row
    found = re.fullmatch(r"\[(\w+)\]\(slow-clients.csv\)", example)
    named = re.search("`(.+)`", how)
    assert found
    assert named
    rows = SLOW[SLOW["problem"] == found[1]]
    modes = {str(mode): cheapest(of_mode, "seconds") for mode, of_mode in rows.groupby("mode")}
    here, method = modes[named[1]], start.strip("`")
    check_band(needs, here, method, "seconds")
    check_plain(plain, here["seconds"])
    assert says(in_rounds, modes["rounds"].loc[method, "seconds"])
    fastest = rows[rows["reached"]].sort_values("seconds").iloc[0]
    assert level(here.loc[method], fastest, "seconds")
    if found[1] == "mnist":
        assert level(modes["rounds"].loc[method], fastest, "seconds")


# How often the cost of a method is how many times the smallest, by file and axis.


def ratios(frame: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return the cost relative to the cheapest method: a row per method, a column per case."""
    rows = frame[frame["reached"] & ~frame["method"].isin(BASELINES)]
    costs = rows.pivot_table(index="method", columns=CASE, values=axis, aggfunc="min")
    return costs / costs.min()


WAN = NETWORKS[NETWORKS["link"] == "wan"]
AXIS_RATIOS = {axis: ratios(LINEAR, axis) for axis in AXES}
NET_RATIOS = {axis: ratios(WAN, axis) for axis in AXES}
HOME_SECONDS = ratios(NETWORKS[NETWORKS["link"] == "home"], "seconds")
FEDAC_CV = ["fedac-i+cv", "fedac-i+cv+nesterov(1,0.3)"]


def cases(frame: pd.DataFrame) -> int:
    return len(frame[CASE].drop_duplicates())


def best(costs: pd.DataFrame, methods: str | list[str], within: float = 1.0) -> int:
    """Return in how many cases a method, or one of several, is within a factor of the cheapest."""
    names = [methods] if isinstance(methods, str) else methods
    return int((costs.reindex(names) <= within).any().sum())


def reached(costs: pd.DataFrame, method: str) -> int:
    return int(costs.loc[method].notna().sum()) if method in costs.index else 0


def span(
    costs: pd.DataFrame,
    methods: str | list[str],
    kinds: Iterable[str],
    *problems: str,
) -> tuple[float, float]:
    """Return the smallest and the largest ratio in some cases."""
    names = [methods] if isinstance(methods, str) else methods
    chosen = [
        case
        for case in costs.columns
        if case[1] in kinds and (not problems or case[0].startswith(problems))
    ]
    assert chosen
    values = costs.loc[names, chosen].min()
    return float(values.min()), float(values.max())


def of_network(problem: str, clients: str, column: str) -> pd.Series:
    return of_case(WAN, problem, clients).set_index("method")[column]


def faster_baselines() -> int:
    """Return in how many cases a baseline needs fewer seconds than all other methods."""
    costs = LINEAR[LINEAR["reached"]].groupby([*CASE, "method"])["seconds"].min().unstack()
    others = costs.drop(columns=[*BASELINES]).min(axis=1).fillna(math.inf)
    return int((costs[[*BASELINES]].min(axis=1) < others).sum())


def share_of_others(method: str) -> pd.Series:
    """Return the seconds of a baseline relative to the best other method, where it is faster."""
    costs = LINEAR[LINEAR["reached"]].groupby([*CASE, "method"])["seconds"].min().unstack()
    share = costs[method] / costs.drop(columns=[*BASELINES]).min(axis=1)
    return share[share < 1]


def slow(problem: str, mode: str, method: str) -> float:
    rows = SLOW[(SLOW["problem"] == problem) & (SLOW["mode"] == mode)]
    return float(rows.set_index("method").loc[method, "seconds"])


def two_digits(value: float) -> str:
    return f"{value:.2f}" if value < 2 else f"{value:.1f}"


Claim = tuple[str, str, Callable[[], Iterable[Any]]]
A9A, DIGITS = "a9a", "digits"
DIGITS_NAME = "digits, 8 against the rest, l2 = 1e-3"
TUNED = LINEAR[~LINEAR["method"].isin(BASELINES)]
SPLIT = (A9A, DIGITS)
CLAIMS: list[Claim] = [
    # The page, a pattern, and what its groups must be.
    (
        "which-method.md",
        r"take `feddyn` where megabytes are expensive \(fewest in (\d+) of (\d+) cases\), "
        r"`momentum\(0.9\)` where rounds are \(level with the fewest in (\d+) of (\d+)\)",
        lambda: [
            best(NET_RATIOS["megabytes"], "feddyn"),
            len(NET_RATIOS["rounds"].columns),
            *held_in(WAN, WAN["clients"].unique(), "momentum(0.9)", "rounds").split(" of "),
        ],
    ),
    (
        "which-method.md",
        r"At the end `fedac-i` classifies (\d+)% of the test images, `fedcm` (\d+)%, "
        r"FedAvg (\d+)% and `adamw` (\d+)%",
        lambda: accuracies("fedac-i", "fedcm", "fedavg", "adamw"),
    ),
    (
        "which-method.md",
        r"reaches (\d+) of (\d+) targets, `fedac-i` (\d+) and `feddyn` (\d+)",
        lambda: [
            reached(NET_RATIOS["rounds"], "momentum(0.9)"),
            cases(NETWORKS),
            reached(NET_RATIOS["rounds"], "fedac-i"),
            reached(NET_RATIOS["rounds"], "feddyn"),
        ],
    ),
    (
        "which-method.md",
        r"it needs ([\d.]+) and ([\d.]+) times the fewest rounds \(a9a, i.i.d.\)",
        lambda: map(two_digits, span(AXIS_RATIOS["rounds"], "fedac-i", ALIKE, A9A)),
    ),
    (
        "which-method.md",
        r"it needs ([\d.]+) to ([\d.]+) times the fewest rounds on a9a and digits, and it is "
        r"never the best of the (\d+) linear cases",
        lambda: [
            *(f"{x:.1f}" for x in span(AXIS_RATIOS["rounds"], "fedac-i", DIFFERENT, *SPLIT)),
            cases(LINEAR) if not wins("fedac-i") else "never is wrong",
        ],
    ),
    (
        "which-method.md",
        r"it needs the fewest rounds in (\d+) of (\d+)\. On networks it needs the fewest rounds in "
        r"(\d+) of (\d+) cases that any method reaches and is within (10)% of them in (\d+), but "
        r"never needs the fewest megabytes",
        lambda: [
            best(AXIS_RATIOS["rounds"], FEDAC_CV),
            cases(LINEAR),
            best(NET_RATIOS["rounds"], "fedac-i"),
            len(NET_RATIOS["rounds"].columns),
            10,
            best(NET_RATIOS["rounds"], "fedac-i", 1.1)
            if not best(NET_RATIOS["megabytes"], "fedac-i")
            else "never is wrong",
        ],
    ),
    (
        "which-method.md",
        r"`(fedac-i)`, `(fedavgm)` and `(diloco)` miss the target with `buffer\(5\)`",
        lambda: [
            name
            for name in ("fedac-i", "fedavgm", "diloco")
            if math.isnan(slow("a9a", "buffer(5)", name))
        ],
    ),
    (
        "benchmark.md",
        r"fewest seconds in (\d+) of (\d+) cases, L-BFGS ([\d.]+) to ([\d.]+) times the seconds of "
        r"the best other method",
        lambda: [
            faster_baselines(),
            cases(LINEAR),
            *(f"{x:.2f}" for x in (share_of_others("lbfgs").min(), share_of_others("lbfgs").max())),
        ],
    ),
    (
        "benchmark.md",
        r"needs ([\d.]+) to ([\d.]+) times the fewest rounds on three of the four",
        lambda: [
            f"{sorted(AXIS_RATIOS['rounds'].loc['mimelite(0.9)', (slice(None), ALIKE)])[i]:.2f}"
            for i in (0, 2)
        ],
    ),
    (
        "benchmark.md",
        r"FedAc-I itself needs ([\d.]+) to ([\d.]+) times the fewest rounds, but it sends two "
        r"vectors and so needs ([\d.]+) to ([\d.]+) times the megabytes",
        lambda: [
            f"{x:.1f}"
            for axis in ("rounds", "megabytes")
            for x in span(AXIS_RATIOS[axis], "fedac-i", ALIKE)
        ],
    ),
    (
        "benchmark.md",
        r"need the fewest rounds in (\d) of (\d) cases on a9a and digits; plain FedAc-I needs "
        r"([\d.]+) to ([\d.]+) times the fewest",
        lambda: [
            *won(AXIS_RATIOS["rounds"], [*FEDAC_CV, "fedavg+cv+nesterov(1,0.9)"], DIFFERENT),
            *tenths(AXIS_RATIOS["rounds"], "fedac-i", DIFFERENT),
        ],
    ),
    (
        "benchmark.md",
        r"without momentum and needs ([\d.]+) to ([\d.]+) times the rounds of the best; SCAFFOLD-M "
        r"puts momentum into the clients' steps and needs ([\d.]+) to ([\d.]+) times",
        lambda: [
            *tenths(AXIS_RATIOS["rounds"], "scaffold", DIFFERENT),
            *tenths(AXIS_RATIOS["rounds"], "scaffold-m", DIFFERENT),
        ],
    ),
    (
        "benchmark.md",
        r"outer Nesterov, FedAvgM and FedAdam send one vector and win (\d) of these (\d) cases",
        lambda: won(
            AXIS_RATIOS["megabytes"], ["outer-nesterov", "fedavgm", "fedadam"], DIFFERENT
        ),
    ),
    (
        "benchmark.md",
        r"the fewest megabytes on a9a and digits, in ([\d.]+) to ([\d.]+) times the fewest rounds",
        lambda: [
            x if won(AXIS_RATIOS["megabytes"], ["feddyn"], EPOCH) == [3, 3] else "it is not"
            for x in tenths(AXIS_RATIOS["rounds"], "feddyn", EPOCH)
        ],
    ),
    (
        "benchmark.md",
        r"FedAvg reaches (\d) target of (\d); FedNova, which removes the bias of unequal steps, "
        r"reaches (\d) of (\d), but in ([\d.]+) to ([\d.]+) times the fewest rounds",
        lambda: [
            *reached_of("fedavg", EPOCH, A9A, DIGITS, "synthetic"),
            *reached_of("fednova", EPOCH, A9A, DIGITS, "synthetic"),
            *(f"{x:.2g}" for x in span(AXIS_RATIOS["rounds"], "fednova", EPOCH)),
        ],
    ),
    (
        "benchmark.md",
        r"needs the fewest rounds on digits \((\d+); DiLoCo: (\d+)\)",
        lambda: [
            f"{of_digits.loc[name, 'rounds']:.0f}"
            for of_digits in [cheapest(of_case(LINEAR, DIGITS_NAME, *TENTH), "rounds")]
            for name in ("fedac-i+cv", "diloco")
        ],
    ),
    (
        "benchmark.md",
        r"with l2 = 1e-3 \(([\d.]+) and ([\d.]+) times the rounds\), and FedAc-I \+ cv needs "
        r"([\d.]+) and ([\d.]+) times their rounds",
        lambda: [
            *(f"{at_tenth(name, 'a9a, l2 = 1e-3'):.2f}" for name in ("feddyn", "fedcm")),
            *(f"{at_tenth('fedac-i+cv', f'a9a, l2 = {l2}'):.1f}" for l2 in ("1e-3", "1e-4")),
        ],
    ),
    (
        "benchmark.md",
        r"MB-AC-SGD wins (\d+) of the (\d+) cases that any method reaches",
        lambda: [best(AXIS_RATIOS["seconds"], "mb-ac-sgd"), len(AXIS_RATIOS["seconds"].columns)],
    ),
    (
        "benchmark.md",
        r"reaches (\d+) of (\d+) targets. DiLoCo adds a Nesterov step on the server and reaches "
        r"(\d+). FedExP finds its server step by itself and reaches (\d+)",
        lambda: [
            reached(AXIS_RATIOS["rounds"], "fedavg") if not wins("fedavg") else "never is wrong",
            cases(LINEAR),
            reached(AXIS_RATIOS["rounds"], "diloco"),
            reached(AXIS_RATIOS["rounds"], "fedexp") if not wins("fedexp") else "never is wrong",
        ],
    ),
    (
        "benchmark.md",
        r"it needs ([\d.]+) to ([\d.]+) times the rounds of the best method on a9a and digits, and "
        r"reaches (\d) of (\d) targets there if a round is an epoch",
        lambda: [
            *tenths(AXIS_RATIOS["rounds"], "fedac-i", DIFFERENT),
            *reached_of("fedac-i", EPOCH, *SPLIT),
        ],
    ),
    (
        "benchmark.md",
        r"it reaches only (\d) target of (\d) on a9a and digits, or (\d) with a server step",
        lambda: [
            *reached_of("fedac-i+local", DIFFERENT, *SPLIT),
            reached_of("fedac-i+local+nesterov(1,0.3)", DIFFERENT, *SPLIT)[0],
        ],
    ),
    (
        "benchmark.md",
        r"Of the (\d+) tuned rows, (\d+) have their step size and (\d+) their server step",
        lambda: [
            len(TUNED),
            TUNED["edge"].notna().sum(),
            TUNED["server_edge"].notna().sum(),
        ],
    ),
    (
        "benchmark-networks.md",
        r"There are (\d+) cases; in one of them, no method reaches the target",
        lambda: [
            cases(NETWORKS) if len(NET_RATIOS["rounds"].columns) == cases(NETWORKS) - 1 else "not 1"
        ],
    ),
    (
        "benchmark-networks.md",
        r"fewest megabytes in (\d+) of the (\d+) cases that any method reaches, and the fewest "
        r"rounds in (\d+):",
        lambda: [
            best(NET_RATIOS["megabytes"], "feddyn"),
            len(NET_RATIOS["rounds"].columns),
            best(NET_RATIOS["rounds"], "feddyn"),
        ],
    ),
    (
        "benchmark-networks.md",
        r"it has the lowest accuracy of all methods: (\d+)% after 24 rounds; FedAvg (\d+)%, "
        r"FedAc-I (\d+)%",
        lambda: accuracies(
            of_network("mnist", "by label, all", "test_accuracy").idxmin(), "fedavg", "fedac-i"
        ),
    ),
    (
        "benchmark-networks.md",
        r"the moments are stale: (\d+) rounds, where FedAc-I needs (\d+)",
        lambda: [
            f"{of_network('digits', 'dirichlet(0.3), 10%', 'rounds')[name]:.0f}"
            for name in ("adamw", "fedac-i")
        ],
    ),
    (
        "benchmark-networks.md",
        r"Tuned like a step size, it reaches the target in (\d+) of (\d+) cases and is within 10% "
        r"of the fewest rounds in (\d+)",
        lambda: [
            reached(NET_RATIOS["rounds"], "fedac-i"),
            cases(NETWORKS),
            best(NET_RATIOS["rounds"], "fedac-i", 1.1),
        ],
    ),
    (
        "benchmark-networks.md",
        r"it reaches the target in (\d+) of (\d+) cases, more than any other method, and is within "
        r"10% of the fewest rounds in (\d+)",
        lambda: [
            max(reached(NET_RATIOS["rounds"], name) for name in NET_RATIOS["rounds"].index),
            cases(NETWORKS),
            best(NET_RATIOS["rounds"], "momentum(0.9)", 1.1),
        ],
    ),
    (
        "benchmark-networks.md",
        r"within (1\.2) times the fewest rounds in (\d+) of the (\d+) cases that it reaches",
        lambda: [
            1.2,
            best(NET_RATIOS["rounds"], "fedcm", 1.2),
            reached(NET_RATIOS["rounds"], "fedcm"),
        ],
    ),
    (
        "benchmark-networks.md",
        r"SCAFFOLD reaches (\d+) targets and never wins; `fedac-i\+cv` reaches (\d+) but needs "
        r"more rounds than FedAc-I in each. SCAFFOLD-M reaches (\d+), in (\d+) of them with fewer "
        r"rounds than both",
        lambda: [
            reached(NET_RATIOS["rounds"], "scaffold"),
            reached(NET_RATIOS["rounds"], "fedac-i+cv")
            if not fewer("fedac-i+cv", "fedac-i")
            else "not in each",
            reached(NET_RATIOS["rounds"], "scaffold-m"),
            fewer("scaffold-m", "scaffold", "fedac-i+cv"),
        ],
    ),
    (
        "slow-clients.md",
        r"every method that bears asynchronous rounds is ([\d.]+) to ([\d.]+) times faster with "
        r"them: FedAvg needs (\d+) simulated seconds instead of (\d+), SCAFFOLD (\d+) "
        r"instead of (\d+), FedAdam (\d+) instead of (\d+)",
        lambda: [
            *(f"{x:.1f}" for x in speedups()),
            *(
                f"{slow('a9a', mode, name):.0f}"
                for name in ("fedavg", "scaffold", "fedadam")
                for mode in ("buffer(5)", "rounds")
            ),
        ],
    ),
    (
        "slow-clients.md",
        r"\(`buffer\(20\)`: (\d+) seconds, in rounds (\d+)\); the same with momentum kept at home "
        r"\(`fedac-i\+local`: (\d+)\).*\(`fedac-i\+cv` with `buffer\(5\)`: (\d+)\)",
        lambda: [
            f"{slow('a9a', mode, name):.0f}"
            for mode, name in (
                ("buffer(20)", "fedac-i"), ("rounds", "fedac-i"), ("buffer(20)", "fedac-i+local"),
                ("buffer(5)", "fedac-i+cv"),
            )
        ],
    ),
]  # fmt: skip


def won(costs: pd.DataFrame, methods: list[str], kinds: Iterable[str]) -> list[int]:
    """Return in how many cases on a9a and digits one of some methods is the cheapest."""
    chosen = [case for case in costs.columns if case[1] in kinds and case[0].startswith(SPLIT)]
    return [best(costs[chosen], methods), len(chosen)]


def tenths(costs: pd.DataFrame, method: str, kinds: Iterable[str]) -> list[str]:
    """Return the smallest and the largest ratio on a9a and digits."""
    return [f"{x:.1f}" for x in span(costs, method, kinds, *SPLIT)]


def reached_of(method: str, kinds: Iterable[str], *problems: str) -> list[int]:
    """Return how many targets a method reaches, and out of how many."""
    found = LINEAR[LINEAR["clients"].isin(kinds) & LINEAR["problem"].str.startswith(problems)]
    return [
        cases(found[(found["method"] == method) & found["reached"]]),
        cases(found[found["method"] == method]),
    ]


def at_tenth(method: str, problem: str) -> float:
    """Return the rounds relative to the fewest, with a tenth of the clients in a round."""
    return float(AXIS_RATIOS["rounds"].loc[method, (problem, *TENTH)])


def fewer(method: str, *than: str) -> int:
    """Return in how many networks a method needs fewer rounds than all of some others."""
    costs = NET_RATIOS["rounds"].fillna(math.inf)
    return int((costs.loc[method] < costs.loc[[*than]].min()).sum())


def speedups() -> tuple[float, float]:
    """Return the least and the largest gain of asynchronous rounds on a9a."""
    costs = SLOW[SLOW["problem"] == "a9a"].pivot(index="method", columns="mode", values="seconds")
    gains = costs[["rounds"]].to_numpy() / costs[["buffer(5)", "buffer(20)"]]
    return float(gains.min(axis=None)), float(gains.max(axis=None))


def wins(method: str) -> int:
    """Return how often a method is the cheapest on any axis of the linear cases."""
    return sum(best(costs, method) for costs in AXIS_RATIOS.values())


def accuracies(*methods: str) -> list[str]:
    """Return percent of test images in the case that no method reaches: MNIST by label."""
    values = of_network("mnist", "by label, all", "test_accuracy")
    return [f"{100 * values[name]:.0f}" for name in methods]


@pytest.mark.parametrize(
    ("page", "pattern", "truth"), CLAIMS, ids=[f"{page} {text[:50]}" for page, text, _ in CLAIMS]
)
def test_a_claim_is_true(page: str, pattern: str, truth: Callable[[], Iterable[Any]]) -> None:
    found = re.search(pattern, text_of(page))
    assert found, f"{page} says it no more, or in other words"
    assert list(found.groups()) == [str(value) for value in truth()]


def test_no_number_of_the_advice_is_left_unchecked() -> None:
    text = text_of("which-method.md")
    for page, pattern, _ in CLAIMS:
        if page == "which-method.md":
            text = re.sub(pattern, "", text)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)  # tables
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    assert (
        re.findall(r".*\d.*", text.replace("90% prediction interval", "").replace("a9a", "")) == []
    )


@pytest.mark.parametrize(
    ("script", "page", "frame"),
    [
        ("benchmark_page", "benchmark.md", LINEAR),
        ("networks_page", "benchmark-networks.md", NETWORKS),
        ("modes_page", "slow-clients.md", SLOW),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_is_the_one_of_its_file(
    script: str, page: str, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script != "benchmark_page":
        pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = import_module(script).tables(frame)
    assert tables
    for name, table in tables.items():
        found = (DOCS / page).read_text(encoding="utf-8").split(f"<!-- {name} -->\n")[1]
        assert found.split(f"\n<!-- end of {name} -->")[0] == table, name


def test_the_best_of_a_case_is_the_one_of_the_file() -> None:
    """Of these tables, the script needs single runs only for how many methods are level."""
    for problem in LINEAR["problem"].unique():
        _, after = text_of("benchmark.md").split(f"**{problem}, target ")
        for clients in LINEAR["clients"].unique():
            cells = re.search(rf"^\| {re.escape(clients)} \| (.*) \|$", after, re.MULTILINE)
            assert cells
            winners, known = cells[1].split(" | ")[:3], cells[1].split(" | ")[3:]
            of_clients = of_case(LINEAR, problem, clients)
            for axis, winner in zip(AXES, winners, strict=True):
                rows = cheapest(of_clients[~of_clients["method"].isin(BASELINES)], axis)
                pattern = (
                    r"\*\*(.+)\*\*, K=(\d+): ([\d.]+) \(([\d.]+) to ([\d.]+)\)(?:; \d+ level)?"
                )
                found = re.fullmatch(pattern, winner)
                assert (found is None) == (len(rows) == 0) == (winner == "none")
                if found:
                    best_row = rows[[label_of(name) == found[1] for name in rows.index]].iloc[0]
                    assert best_row[axis] == rows[axis].iloc[0]
                    assert int(found[2]) == best_row["K"]
                    for text, end in zip(found.groups()[2:], ("", "_low", "_high"), strict=True):
                        assert says(text, best_row[axis + end]), (problem, clients, axis, text)
            for name, cell in zip((*PLAIN, "lbfgs"), known, strict=True):
                for text, axis in zip(cell.split(", "), AXES, strict=True):
                    value = cheapest(of_clients, axis)[axis].get(name, math.nan)
                    assert says(text, value), (problem, clients, name, axis, text)
