"""How a comparison was made, as terms and their descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedac.experiments.comparison.curves import LAST
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.comparison.verdict import named
from fedac.simulation.federation import taking_part


def notes_on(comparison: Comparison, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Describe the problem, the federation, the link and the tuning."""
    question, grid = comparison.question, comparison.question.grid
    edges = [
        f"{named(row, names)}: {edge} {what}"
        for row in comparison.rows
        for edge, what in ((row.edge, "step size"), (row.server_edge, "server step"))
        if edge
    ]
    diverged = [named(row, names) for row in comparison.rows if row.diverged]
    pairs = [
        ("data", f"{grid.dataset}, {comparison.dim} parameters"),
        ("loss", f"{grid.loss}, l2 = {grid.l2:g}, F* = {comparison.f_star:.10g}"),
        *_federation(comparison),
        ("batch", str(grid.batch[0])),
        ("wire", ", ".join(grid.wire)),
        ("link", question.link.in_words()),
        ("budget", f"{comparison.budget}{'' if question.budget else _why(comparison)}"),
        ("rounds", f"{question.rounds} of every run"),
        (
            "tuning",
            f"{question.tries} settings for each method, K and wire with seed {grid.seeds[0]}: a "
            "coarse grid of step sizes, then the neighbours of the best, in server step, momentum "
            "and mu too. The best ones also with seeds "
            f"{' and '.join(map(str, question.tuning_seeds[1:]))}; "
            + (
                "the fewest rounds to the target win"
                if question.target is not None
                else "the smallest suboptimality within the budget wins"
            ),
        ),
        (
            "fresh seeds",
            f"{', '.join(map(str, question.fresh_seeds))}: the winners once more; all figures are "
            "of these",
        ),
        (
            "suboptimality",
            f"the mean of the last {LAST:.0%} of the records within the budget, at least one",
        ),
        (
            "level",
            "the interval of the ratio to the best row, seed by seed, contains 1",
        ),
        ("runs", f"{comparison.runs:,}"),
    ]
    if edges:
        what = "a smaller or larger one might do better"
        pairs.append(("at an edge of those tried", f"{'; '.join(edges)} ({what})"))
    if diverged:
        pairs.append(("every try diverged", "; ".join(diverged)))
    return pairs


def _why(comparison: Comparison) -> str:
    return ", in which every run ends" if math.isfinite(comparison.budget.amount) else ""


def _federation(comparison: Comparison) -> list[tuple[str, str]]:
    """Describe who takes part."""
    grid = comparison.question.grid
    share = grid.participation[0]
    if grid.workers:
        M: float = grid.workers[0]
        pairs = [("workers", f"{M}, which all draw from all rows")]
    else:
        # A file of clients says how many there are.
        M = grid.clients[0] if grid.clients else math.nan
        pairs = [("clients", str(M))] if grid.clients else []
        pairs += [("split", grid.split[0] if grid.split else "iid")]
        pairs += [("weighting", grid.weighting)]
    if share == 1:
        return [*pairs, ("participation", "everybody in every round")]
    some = f"{share:g}" if math.isnan(M) else f"{taking_part(share, int(M)) or M} in every round"
    return [*pairs, ("participation", some)]
