"""The rows of a comparison as a DataFrame, as JSON and as LaTeX."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedac.experiments.comparison.question import Question
from fedac.experiments.comparison.rows import Row
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.summary import Band

if TYPE_CHECKING:
    import pandas as pd


def to_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the rows as a table; a band has three columns."""
    import pandas as pd

    return pd.DataFrame([_flat(row) for row in comparison.rows])


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for JSON, with nulls where a number does not exist."""
    question, grid = comparison.question, comparison.question.grid
    rows = [{name: _finite(value) for name, value in _flat(row).items()} for row in comparison.rows]
    return {
        "rows": rows,
        "best": rows[0] if rows and not comparison.rows[0].diverged else None,
        **subject_of(question),
        "f_star": comparison.f_star,
        "rounds": question.rounds,
        "target": question.target,
        "budget": {"amount": _finite(comparison.budget.amount), "axis": comparison.budget.axis},
        "link": str(question.link),
        "tries": question.tries,
        "tuning_seed": grid.seeds[0],
        "tuning_seeds": list(question.tuning_seeds),
        "methods": [*grid.algorithms, *question.baselines],
        "fresh_seeds": list(question.fresh_seeds),
        "runs": comparison.runs,
    }


def subject_of(question: Question) -> dict[str, Any]:
    """Return what a comparison is about: the problem and who takes part."""
    grid = question.grid
    return {
        "dataset": grid.dataset,
        "loss": grid.loss,
        "l2": grid.l2,
        "workers": grid.workers[0] if grid.workers else None,
        "clients": grid.clients[0] if grid.clients else None,
        "split": grid.split[0] if grid.split else None,
        "participation": grid.participation[0],
        "batch": grid.batch[0],
        "weighting": grid.weighting,
    }


def to_latex(comparison: Comparison) -> str:
    """Return the best row of every method as a LaTeX table (package booktabs)."""
    reach = comparison.question.target is not None
    heads = ["method", "$K$", "$\\eta$", "server step, momentum", "$\\mu$"]
    heads += ["rounds", "MB", "seconds"] if reach else []
    heads += [f"$F - F^*$ within {comparison.budget}"]
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        " & ".join(heads) + " \\\\",
        "\\midrule",
    ]
    for row in comparison.best_rows:
        cells = [_latex(row.method + f", {row.wire}" * (row.wire != "float32")), str(row.K)]
        cells.append("--" if row.eta is None else f"{row.eta:.3g}")
        server = [f"{value:.3g}" for value in (row.server_step, row.momentum) if value is not None]
        cells += [", ".join(server), "" if row.mu is None else f"{row.mu:.3g}"]
        bands = [row.rounds, row.megabytes, row.seconds] if reach else []
        cells += [_band(band) for band in (*bands, row.suboptimality)]
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, Band):
            flat[field.name] = value.middle
            flat |= {f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        else:
            flat[field.name] = value
    return flat | {"level": row.level}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _band(band: Band) -> str:
    if not math.isfinite(band.middle):
        return "--"
    return " ".join([_number(band.middle), f"({_number(band.low)}--{_number(band.high)})"])


def _number(value: float) -> str:
    r"""Write a number as LaTeX does.

    >>> print(_number(0.000123), _number(12.34), _number(1234.0))
    $1.2 \cdot 10^{-4}$ 12.3 1234
    """
    if value != 0 and abs(value) < 0.01:
        digits, exponent = f"{value:.1e}".split("e")
        return f"${digits} \\cdot 10^{{{int(exponent)}}}$"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _latex(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text
