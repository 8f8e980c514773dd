"""The files of a comparison: figure, tables and report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fedac.errors import InputError
from fedac.experiments.comparison.baselines import BASELINES
from fedac.experiments.comparison.figure import draw
from fedac.experiments.comparison.question import Question
from fedac.experiments.comparison.report import write_report
from fedac.experiments.comparison.study import Comparison
from fedac.experiments.comparison.table import subject_of, to_frame, to_json, to_latex
from fedac.experiments.figures import save
from fedac.files import write_atomically

NAME = "comparison"


def with_earlier_methods(question: Question, folder: Path) -> tuple[Question, list[str]]:
    """Return a question with the methods that a folder already compares, and these.

    A folder has one table: what was in it stays in it.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        return question, []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        methods = list(map(str, before["methods"]))
        now = subject_of(question)
        subject = {name: before[name] for name in now}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"'{path}' is not the table of a comparison; use another folder") from None
    for name in now:
        if subject[name] != now[name]:
            raise InputError(
                f"'{folder}' has a comparison with {name} = {subject[name]}, this one has "
                f"{now[name]}; use another folder"
            )
    grid, baselines = question.grid, question.baselines
    added = [name for name in methods if name not in (*grid.algorithms, *baselines)]
    of_grid = (name for name in added if name not in BASELINES)
    grid = grid.model_copy(update={"algorithms": (*grid.algorithms, *of_grid)})
    baselines = (*baselines, *(name for name in added if name in BASELINES))
    return replace(question, grid=grid, baselines=baselines), added


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
