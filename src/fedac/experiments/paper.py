"""The paper's seven figures, and our runs beside those that its authors published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedac.experiments.published import T

if TYPE_CHECKING:
    import pandas as pd

    from fedac.experiments.grid import Grid

Axis = Literal["M", "K"]
CELL = ["dataset", "l2", "algorithm", "M", "K"]

# The authors ran FedAc-II with another beta than the paper's: not the same algorithm.
NOT_COMPARABLE = "fedac-ii"
# With fewer workers a cell is a noisy draw, theirs and ours.
MANY_WORKERS = 64
# The paper's "32 rounds to 1e-3" is 1.04e-3 in its authors' own table.
SLACK = 1.1


FOUR = ("fedac-i", "mb-ac-sgd", "mb-sgd", "fedavg")
# Of the values on the other axis, those that the text speaks of, or spread over the grid.
PANELS: dict[Axis, tuple[int, ...]] = {"M": (1, 8, 64, 256), "K": (16, 128, 1024, 8192)}


@dataclass(frozen=True)
class Figure:
    """What one of the paper's figures shows.

    Attributes
    ----------
    sweep : str
        The shipped grid that feeds it.
    over : "M" or "K"
        What is on the horizontal axis.
    stands_in_for : str
        The paper's data set, where `dataset` is another.
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
        """What tells the panels apart."""
        return "K" if self.over == "M" else "M"

    def values(self, axis: Axis) -> tuple[int, ...]:
        """Return the grid of M or of K."""
        return self.workers if axis == "M" else self.local_steps

    @property
    def panels(self) -> tuple[int, ...]:
        """Up to four values of the other axis, a panel each.

        Examples
        --------
        >>> FIGURES["figure-1"].panels
        (1, 8, 64, 256)
        """
        there, usual = self.values(self.across), PANELS[self.over]
        return tuple(value for value in usual if value in there) or there[-len(usual) :]

    @property
    def title(self) -> str:
        """What the figure shows, in a line.

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

    def of(self, grid: Grid, *, dataset: str) -> Figure:
        """Return the figure that the runs of a grid on the data of that name make."""
        return replace(
            self,
            dataset=dataset,
            l2=grid.l2,
            workers=tuple(grid.workers),
            local_steps=tuple(grid.local_steps),
            T=grid.steps,
            stands_in_for="" if dataset == self.dataset else self.dataset,
        )

    def select(self, tuned: pd.DataFrame) -> pd.DataFrame:
        """Return the tuned runs of the figure's problem, algorithms and grid."""
        return tuned[
            (tuned["dataset"] == self.dataset)
            & (tuned["l2"] == self.l2)
            & (tuned["T"] == self.T)
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
    """A sentence of the paper: so many rounds suffice for this accuracy with M workers."""

    dataset: str
    l2: float
    M: int
    target: float
    rounds: dict[str, int]


CLAIMS = (
    Claim("a9a", 1e-3, 8192, 1e-3, dict(zip(FOUR, (32, 128, 1024, 4096), strict=True))),
    Claim("epsilon", 1e-4, 2048, 1e-4, dict(zip(FOUR, (64, 256, 4096, 4096), strict=True))),
)


class Headline(NamedTuple):
    """Rounds that one algorithm needs: our runs, the published ones, the paper's words."""

    claim: Claim
    algorithm: str
    ours: int | None
    theirs: int | None
    paper: int


@dataclass(frozen=True)
class Comparison:
    """Our runs beside the published ones.

    Attributes
    ----------
    cells : DataFrame
        A row per cell of both: ``ours`` and ``theirs``, two suboptimalities, and
        ``log2_ratio``, how many times ours is theirs.
    headlines : list of Headline
        For the claims of the paper that the cells cover.
    """

    cells: pd.DataFrame
    headlines: list[Headline]

    @property
    def judged(self) -> pd.DataFrame:
        """The cells with enough workers to be compared one by one."""
        return self.cells[self.cells["M"] >= MANY_WORKERS]

    @property
    def deviation(self) -> pd.Series[float]:
        """abs(log2(ours/theirs)) of the judged cells, the greatest first."""
        return self.judged["log2_ratio"].abs().sort_values(ascending=False, kind="stable")

    @property
    def median(self) -> float:
        """The median deviation."""
        return float(self.deviation.median())

    @property
    def p95(self) -> float:
        """The 95th percentile of the deviations."""
        return float(self.deviation.quantile(0.95))

    def by_problem(self) -> list[tuple[str, Comparison]]:
        """Return the comparison of every (dataset, l2) by itself, under its name."""
        problems = self.cells.groupby(["dataset", "l2"])
        return [(f"{name}, l2 = {l2:g}", Comparison(part, [])) for (name, l2), part in problems]

    def worst(self, count: int = 5) -> pd.DataFrame:
        """Return the judged cells where the two differ most, the worst first."""
        return self.judged.loc[self.deviation.index[:count]]


def tuned(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the best step size of every (dataset, l2, algorithm, M, K, T, seed).

    Parameters
    ----------
    frame : DataFrame
        The runs of a store, `Store.frame`.

    Returns
    -------
    DataFrame
        The best runs as they are, with ``suboptimality`` for ``best_suboptimality``.
    """
    known = frame[frame["best_suboptimality"].notna()]
    best = known.groupby([*CELL, "T", "seed"])["best_suboptimality"].idxmin()
    rows = known.loc[best].rename(columns={"best_suboptimality": "suboptimality"})
    return rows.reset_index(drop=True)


def beside(tuned: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that both tables hold; of several seeds of ours, the median.

    Published losses become suboptimalities by the F* of our runs.
    """
    same = (tuned["T"] == T) & (tuned["algorithm"] != NOT_COMPARABLE)
    seeds = tuned[same].groupby(CELL, as_index=False)
    ours = seeds.agg(ours=("suboptimality", "median"), f_star=("f_star", "first"))
    cells = ours.merge(published[[*CELL, "best_loss"]], on=CELL)
    cells["theirs"] = cells["best_loss"] - cells["f_star"]
    cells = cells[(cells["ours"] > 0) & (cells["theirs"] > 0)]
    return cells.assign(log2_ratio=np.log2(cells["ours"] / cells["theirs"]))


def compare(tuned: pd.DataFrame, published: pd.DataFrame) -> Comparison:
    """Put our runs beside the published ones."""
    cells = beside(tuned, published)
    return Comparison(cells, [line for claim in CLAIMS for line in _headlines(cells, claim)])


def rounds_to_reach(cells: pd.DataFrame, column: str, target: float) -> int | None:
    """Return T/K at the largest K whose suboptimality is at most the target, give or take 10%.

    Examples
    --------
    >>> import pandas as pd
    >>> cells = pd.DataFrame({"K": [1, 2, 4], "ours": [0.5e-3, 1.09e-3, 1.2e-3]})
    >>> rounds_to_reach(cells, "ours", 1e-3)
    2048
    """
    reached = cells.loc[cells[column] <= SLACK * target, "K"]
    return None if reached.empty else T // int(reached.max())


def _headlines(cells: pd.DataFrame, claim: Claim) -> list[Headline]:
    here = (cells["dataset"] == claim.dataset) & (cells["l2"] == claim.l2)
    here &= cells["M"] == claim.M
    lines = []
    for algorithm, paper in claim.rounds.items():
        curve = cells[here & (cells["algorithm"] == algorithm)]
        if not curve.empty:
            ours, theirs = (rounds_to_reach(curve, who, claim.target) for who in ("ours", "theirs"))
            lines.append(Headline(claim, algorithm, ours, theirs, paper))
    return lines
