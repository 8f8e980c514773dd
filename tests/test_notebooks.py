# SPDX-License-Identifier: Apache-2.0
"""Notebooks run from a clean kernel, and what is stored in them is what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from printed import same_but_for_rounding

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(notebook: Path) -> list[dict]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def texts_of(cell: dict) -> list[str]:
    """Return what a cell printed and returned; of a figure, its size."""
    outputs = (
        out["text"] if "text" in out else out["data"]["text/plain"] for out in cell["outputs"]
    )
    return ["".join(output) for output in outputs]


def test_there_are_four() -> None:
    assert len(NOTEBOOKS) == 4


@each_notebook
def test_outputs_are_stored(notebook: Path) -> None:
    cells = code_of(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {"stdout"} == {output["name"] for output in outputs if "name" in output}
    drawn = [
        cell for cell in cells if any("image/png" in out.get("data", ()) for out in cell["outputs"])
    ]
    assert drawn
    assert all(cell["metadata"]["alt"] for cell in drawn)
    assert notebook.stat().st_size < 300_000


@pytest.mark.slow
@each_notebook
def test_a_clean_kernel_prints_the_same(notebook: Path, tmp_path: Path) -> None:
    copy = tmp_path / notebook.name
    copy.write_bytes(notebook.read_bytes())
    command = (sys.executable, str(ROOT / "scripts" / "run_notebooks.py"), str(copy))
    # The command sets this variable; tests that ran before in this process may have called it.
    environment = os.environ | {"MPLBACKEND": "agg"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    for now, stored in zip(code_of(copy), code_of(notebook), strict=True):
        for printed, promised in zip(texts_of(now), texts_of(stored), strict=True):
            same_but_for_rounding(printed, promised)
