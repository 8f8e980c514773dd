"""The files of a comparison: figure, tables and report."""

from __future__ import annotations

import json
from pathlib import Path

from fedac.experiments.comparison.figure import draw
from fedac.experiments.comparison.report import write_report
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.comparison.table import to_frame, to_json, to_latex
from fedac.experiments.figures import save
from fedac.files import write_atomically

NAME = "comparison"


def write_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``comparison`` as HTML, JSON, CSV, LaTeX and, unless all diverged, as a figure."""
    texts = {
        "json": json.dumps(to_json(comparison), allow_nan=False, indent=1) + "\n",
        "csv": to_frame(comparison).to_csv(index=False, lineterminator="\n"),
        "tex": to_latex(comparison),
    }
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{NAME}.{ending}")
        content = text.encode()
        write_atomically(paths[-1], lambda file, content=content: file.write(content))  # type: ignore[misc]
    paths.append(write_report(comparison, folder / f"{NAME}.html"))
    return paths + (save(draw(comparison), folder, NAME) if comparison.curves else [])
