"""The paper's seven figures, and our runs compared with those its authors published."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedac.experiments.reproduction.published import T, paper_datasets
from fedac.experiments.summary import CELL, CURVE, FEWEST_TRIED, PROBLEM, fewest_rounds, summarize

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.grid import Grid

Axis = Literal["M", "K"]

# The authors ran FedAc-II with a different beta than the paper: not the same algorithm.
NOT_COMPARABLE = "fedac-ii"
# With fewer workers both their result and ours depend too much on the draw.
MANY_WORKERS = 64

FOUR = ("fedac-i", "mb-ac-sgd", "mb-sgd", "fedavg")
# Which values of the other axis get a panel: those in the paper's text, or spread over the grid.
PANELS: dict[Axis, tuple[int, ...]] = {"M": (1, 8, 64, 256), "K": (16, 128, 1024, 8192)}


@dataclass(frozen=True)
class Figure:
    """What one of the paper's figures shows.

    Attributes
    ----------
    sweep : str
        The shipped sweep whose runs it draws.
    over : "M" or "K"
        What is on the horizontal axis.
    stands_in_for : str
        The paper's data set, if `dataset` is a different one.
    """

    name: str
    sweep: str
    dataset: str
    l2: float
    over: Axis
    algorithms: tuple[str, ...] = FOUR
    workers: tuple[int, ...] = tuple(2**i for i in range(2, 14))
    local_steps: tuple[int, ...] = tuple(2**i for i in range(9))
    T: int = T
    stands_in_for: str = ""

    @property
    def across(self) -> Axis:
        """What differs from panel to panel."""
        return "K" if self.over == "M" else "M"

    def values(self, axis: Axis) -> tuple[int, ...]:
        """Return all values of M or of K."""
        return self.workers if axis == "M" else self.local_steps

    @property
    def panels(self) -> tuple[int, ...]:
        """Up to four values of the other axis, one per panel.

        Examples
        --------
        >>> FIGURES["figure-1"].panels
        (1, 8, 64, 256)
        """
        values, usual = self.values(self.across), PANELS[self.over]
        return tuple(value for value in usual if value in values) or values[-len(usual) :]

    @property
    def title(self) -> str:
        """What the figure shows, in one line.

        Examples
        --------
        >>> FIGURES["figure-2"].title
        'Figure 2: a9a, l2 = 0.0001, over the workers M'
        """
        data = self.dataset
        if self.stands_in_for:
            data += f" in place of {self.stands_in_for}"
        over = "the workers M" if self.over == "M" else "the local steps K"
        return f"{self.name.capitalize().replace('-', ' ')}: {data}, l2 = {self.l2:g}, over {over}"

    def drawn_from(self, grid: Grid, runs: pd.DataFrame) -> Figure:
        """Return the same figure of the runs of another grid, perhaps on other data."""
        dataset, paper = runs["dataset"].iloc[0], paper_datasets(runs).iloc[0]
        return replace(
            self,
            dataset=dataset,
            l2=grid.l2,
            workers=tuple(grid.workers),
            local_steps=tuple(grid.local_steps),
            T=grid.steps,
            stands_in_for="" if paper == self.dataset else self.dataset,
        )

    def select(self, tuned: pd.DataFrame) -> pd.DataFrame:
        """Return the tuned runs of the figure's problem, algorithms and grid."""
        return tuned[
            (tuned["dataset"] == self.dataset)
            & (tuned["l2"] == self.l2)
            & (tuned["T"] == self.T)
            & (tuned["federation"] == "")
            & tuned["algorithm"].isin(self.algorithms)
            & tuned["M"].isin(self.workers)
            & tuned["K"].isin(self.local_steps)
        ]


INSTABILITY = ("fedac-vanilla", "fedac-i", "mb-ac-sgd")
FIGURES = {
    figure.name: figure
    for figure in (
        Figure("figure-1", "a9a-l2-1e-3", "a9a", 1e-3, over="M"),
        Figure("figure-2", "a9a-l2-1e-4", "a9a", 1e-4, over="M", algorithms=INSTABILITY),
        Figure("figure-3", "a9a-l2-1e-3", "a9a", 1e-3, over="K"),
        Figure("figure-4", "a9a-l2-1e-2", "a9a", 1e-2, over="M"),
        Figure("figure-5", "a9a-l2-1e-2", "a9a", 1e-2, over="K"),
        Figure("figure-6", "epsilon-l2-1e-4", "epsilon", 1e-4, over="M"),
        Figure("figure-7", "epsilon-l2-1e-4", "epsilon", 1e-4, over="K"),
    )
}


class Claim(NamedTuple):
    """A sentence of the paper: how many rounds reach this suboptimality with M workers."""

    dataset: str
    l2: float
    M: int
    target: float
    rounds: dict[str, int]


CLAIMS = (
    Claim("a9a", 1e-3, 8192, 1e-3, dict(zip(FOUR, (32, 128, 1024, 4096), strict=True))),
    Claim("epsilon", 1e-4, 2048, 1e-4, dict(zip(FOUR, (64, 256, 4096, 4096), strict=True))),
)


def published_cells(tuned: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return our cells that were also published, matched by the content of the data.

    To the columns of `summarize` it adds ``published``, the published suboptimality (with the F*
    of our runs), ``published_eta``, ``log2_ratio``, the base-2 logarithm of ours/published, and
    ``deviation``, its absolute value. Ours is the median over seeds.
    """
    paper = (tuned["T"] == T) & (tuned["federation"] == "")
    ours = tuned[paper & (tuned["algorithm"] != NOT_COMPARABLE)]
    ours = summarize(ours.assign(paper_dataset=paper_datasets(ours)))
    theirs = published.rename(columns={"dataset": "paper_dataset", "eta": "published_eta"})
    match = ["paper_dataset", "l2", "algorithm", "M", "K"]
    theirs = theirs[[*match, "published_eta", "best_loss"]]
    cells = ours.drop(columns="best_loss", errors="ignore").merge(theirs, on=match)
    cells["published"] = cells["best_loss"] - cells["f_star"]
    cells = cells[cells["middle"].between(0, math.inf, "neither") & (cells["published"] > 0)]
    log2_ratio = np.log2(cells["middle"] / cells["published"])
    return cells.assign(log2_ratio=log2_ratio, deviation=np.abs(log2_ratio))


def judged(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with enough workers to be compared one by one, worst first."""
    cells = cells[cells["M"] >= MANY_WORKERS]
    return cells.sort_values("deviation", ascending=False, kind="stable")


def headlines(tuned: pd.DataFrame, cells: pd.DataFrame, targets: Iterable[float]) -> pd.DataFrame:
    """Return the `fewest_rounds` of every target, beside what is published.

    ``published`` is the text of the published runs in `cells`, from `published_cells`; ``paper``
    is the number in the paper's text, missing where it has none.
    """
    import pandas as pd

    theirs = cells[CELL].assign(
        seed=0, suboptimality=cells["published"], eta=cells["published_eta"], edge=""
    )
    tables = []
    for target in targets:
        published = fewest_rounds(theirs, target)[[*CURVE, "text"]]
        published = published.rename(columns={"text": "published"})
        # The authors tried every K: an edge of `cells` is none of theirs.
        published = published.replace(FEWEST_TRIED, "", regex=True)
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
