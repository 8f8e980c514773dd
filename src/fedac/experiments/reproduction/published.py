# SPDX-License-Identifier: Apache-2.0
"""The published numbers of the paper's authors, and our runs compared with them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedac.data.registry import SOURCES
from fedac.experiments import summary
from fedac.experiments.summary import CELL, CURVE, PROBLEM, fewest_rounds

if TYPE_CHECKING:
    import pandas as pd

# The published runs have 4096 steps and record the loss every 512.
T = 4096
FOUR = ("fedac-i", "mb-ac-sgd", "mb-sgd", "fedavg")
# F* to 1e-12, by `fedac.objectives.optimum`. For epsilon it would need 12 GB of data.
F_STAR = {("a9a", 1e-3): 0.3333407520687, ("a9a", 1e-4): 0.3245069247138}
# The authors ran FedAc-II with a different beta than the paper: not the same algorithm.
NOT_COMPARABLE = "fedac-ii"
# With fewer workers both results depend too much on the seed.
MANY_WORKERS = 64


class Claim(NamedTuple):
    """A sentence of the paper: the rounds to this suboptimality with M workers."""

    dataset: str
    l2: float
    M: int
    target: float
    rounds: dict[str, int]


CLAIMS = (
    Claim("a9a", 1e-3, 8192, 1e-3, dict(zip(FOUR, (32, 128, 1024, 4096), strict=True))),
    Claim("epsilon", 1e-4, 2048, 1e-4, dict(zip(FOUR, (64, 256, 4096, 4096), strict=True))),
)


def published_runs() -> pd.DataFrame:
    """Return the published runs, tuned over the step sizes of our sweeps.

    A row per (dataset, l2, algorithm, M, K) with the best ``eta``, its ``best_loss`` and its
    ``suboptimality``, which is missing where F* is not known here. Made by
    ``scripts/make_published.py``. The runs of FedAc-II used a different beta than the paper.
    """
    import pandas as pd

    source = files("fedac.experiments.reproduction").joinpath("published.csv")
    with source.open(encoding="utf-8") as file:
        # An empty field repeats the one above it.
        table = pd.read_csv(file).ffill().astype({"M": int, "K": int})
    f_star = [F_STAR.get(problem) for problem in zip(table.dataset, table.l2, strict=True)]
    return table.assign(suboptimality=table.best_loss - pd.Series(f_star, dtype=float))


def paper_datasets(frame: pd.DataFrame) -> pd.Series[str]:
    """Return which of the paper's data sets each run used, by content: "a9a", "epsilon" or "".

    There is no published hash of epsilon; its name and shape identify it.
    """
    epsilon = SOURCES["epsilon"]
    is_epsilon = (
        (frame["dataset"] == epsilon.name)
        & (frame["n_samples"] == epsilon.n_samples)
        & (frame["n_features"] == epsilon.n_features)
    )
    names = is_epsilon.map({True: epsilon.name, False: ""})
    return names.mask(frame["data_hash"].isin(summary.A9A.values()), "a9a")


def published_cells(tuned: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return our cells that were also published, matched by the content of the data.

    Adds to `summarize`: ``published``, the published suboptimality (with F* of our runs),
    ``published_eta``, ``log2_ratio`` of ours/published, and ``deviation``, its absolute value. Ours
    is the median over seeds.
    """
    paper = (tuned["T"] == T) & (tuned["federation"] == "")
    ours = tuned[paper & (tuned["algorithm"] != NOT_COMPARABLE)]
    ours = summary.summarize(ours.assign(paper_dataset=paper_datasets(ours)))
    theirs = published.rename(columns={"dataset": "paper_dataset", "eta": "published_eta"})
    match = ["paper_dataset", "l2", "algorithm", "M", "K"]
    theirs = theirs[[*match, "published_eta", "best_loss"]]
    cells = ours.drop(columns="best_loss", errors="ignore").merge(theirs, on=match)
    cells["published"] = cells["best_loss"] - cells["f_star"]
    cells = cells[cells["middle"].between(0, math.inf, "neither") & (cells["published"] > 0)]
    log2_ratio = np.log2(cells["middle"] / cells["published"])
    return cells.assign(log2_ratio=log2_ratio, deviation=np.abs(log2_ratio))


def judged(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with enough workers to compare one by one, the largest deviation first."""
    cells = cells[cells["M"] >= MANY_WORKERS]
    return cells.sort_values("deviation", ascending=False, kind="stable")


def headlines(tuned: pd.DataFrame, cells: pd.DataFrame, targets: Iterable[float]) -> pd.DataFrame:
    """Return the `fewest_rounds` of every target with the published ones.

    ``published`` has the rounds of the published runs in `cells`, from `published_cells`; ``paper``
    has the number in the paper's text, missing if there is none.
    """
    import pandas as pd

    theirs = cells[CELL].assign(
        seed=0, suboptimality=cells["published"], eta=cells["published_eta"], edge=""
    )
    tables = []
    for target in targets:
        published = fewest_rounds(theirs, target)[[*CURVE, "text"]]
        published = published.rename(columns={"text": "published"})
        # The authors tried every K: the edge of `cells` is not theirs.
        published = published.replace(summary.FEWEST_TRIED, "", regex=True)
        ours = fewest_rounds(tuned, target).merge(published, how="left", on=CURVE)
        tables.append(ours.assign(target=target))
    workers = tuned[tuned["federation"] == ""]
    problems = workers.assign(paper_dataset=paper_datasets(workers))[[*PROBLEM, "paper_dataset"]]
    claims = pd.DataFrame(
        [(*claim[:4], T, *rounds) for claim in CLAIMS for rounds in claim.rounds.items()],
        columns=["paper_dataset", "l2", "M", "target", "T", "algorithm", "paper"],
    ).merge(problems.drop_duplicates())
    claims = claims.drop(columns="paper_dataset")
    return pd.concat(tables, ignore_index=True).merge(claims, how="left")
