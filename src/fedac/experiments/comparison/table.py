"""The rows of a comparison as a DataFrame, as JSON and as LaTeX."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedac.experiments.comparison.rows import Row
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.seeds import Band

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
        "best": rows[0] if rows and rows[0]["eta"] is not None else None,
        "dataset": grid.dataset,
        "loss": grid.loss,
        "l2": grid.l2,
        "f_star": comparison.f_star,
        "workers": grid.workers[0] if grid.workers else None,
        "clients": grid.clients[0] if grid.clients else None,
        "split": grid.split[0] if grid.split else None,
        "participation": grid.participation[0],
        "batch": grid.batch[0],
        "rounds": question.rounds,
        "target": question.target,
        "budget": {"amount": _finite(comparison.budget.amount), "axis": comparison.budget.axis},
        "link": str(question.link),
        "tries": question.tries,
        "tuning_seed": grid.seeds[0],
        "fresh_seeds": list(question.fresh_seeds),
        "runs": comparison.runs,
    }


def to_latex(comparison: Comparison) -> str:
    """Return the best row of every method as a LaTeX table (package booktabs)."""
    reach = comparison.question.target is not None
    heads = ["method", "$K$", "$\\eta$", "server step"]
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
        cells.append("" if row.server_step is None else f"{row.server_step:.3g}")
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
    return flat


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
