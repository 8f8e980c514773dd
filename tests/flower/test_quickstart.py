# SPDX-License-Identifier: Apache-2.0
"""The quickstart app with Flower's FedAvg, and the same app moved by the diff of the page."""

from __future__ import annotations

import difflib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make install")
torch = pytest.importorskip("torch", reason="PyTorch is not installed: make install")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "flower-quickstart.md"
BEFORE = ROOT / "examples" / "flower_quickstart"
AFTER = ROOT / "examples" / "flower_quickstart_fedac"


def blocks_of_the_page(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def files_of(app: Path) -> dict[str, list[str]]:
    """Return the lines of every file of an app."""
    return {
        str(path.relative_to(app)): path.read_text().splitlines(keepends=True)
        for path in sorted(app.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def diff_of_the_apps() -> dict[str, list[str]]:
    """Return the differences by file, as `diff -U1` shows them."""
    before, after = files_of(BEFORE), files_of(AFTER)
    assert before.keys() == after.keys()
    found = {
        name: [*difflib.unified_diff(before[name], after[name], f"a/{name}", f"b/{name}", n=1)]
        for name in before
    }
    return {name: lines for name, lines in found.items() if lines}


def test_the_page_shows_how_the_apps_differ():
    (shown,) = blocks_of_the_page("diff")
    lines = [line.rstrip() for found in diff_of_the_apps().values() for line in found]
    assert shown.splitlines() == lines


def test_moving_takes_three_lines_on_the_server_and_five_on_the_client():
    added = {
        name: sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        for name, lines in diff_of_the_apps().items()
    }
    dependencies = added.pop("pyproject.toml")
    assert dependencies == 1
    assert added.keys() == {"quickstart/client_app.py", "quickstart/server_app.py"}
    assert added["quickstart/server_app.py"] <= 3
    assert added["quickstart/client_app.py"] <= 5


@pytest.mark.slow
def test_both_apps_run_in_one_process(tmp_path):
    """The program of the page, in a process of its own: both apps have a package of one name."""
    (program,) = blocks_of_the_page("py")
    accuracies = {}
    for app in (BEFORE, AFTER):
        copy = shutil.copytree(app, tmp_path / app.name)
        (copy / "simulate.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "simulate.py"], cwd=copy, env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        accuracies[app] = list(json.loads((copy / "result/accuracy.json").read_text()).values())
        model = torch.load(copy / "result/model.pt", weights_only=True)
        assert sum(tensor.numel() for tensor in model.values()) == 5450
    before, after = accuracies[BEFORE], accuracies[AFTER]
    assert len(before) == len(after) == 9  # before the first round, and after each of eight
    assert before[0] == after[0] < 0.2  # the same model
    assert before[-1] > 0.85
    assert after[-1] > 0.95


@pytest.fixture
def benchmark(monkeypatch):
    """Give the names of the benchmark; it imports the first of the apps."""
    monkeypatch.syspath_prepend(str(BEFORE))
    yield runpy.run_path(str(ROOT / "benchmarks" / "flower_quickstart.py"))
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.mark.slow
def test_every_method_of_the_table_runs(benchmark):
    for method in benchmark["METHODS"].values():
        setting = method.settings[0]
        outcome = benchmark["run"](method, setting, "uneven", 0, "validation", 1)
        assert outcome.rounds == outcome.megabytes == float("inf")  # one round is not enough
        assert outcome.loss < float("inf")


@pytest.mark.slow
def test_the_tables_of_the_page_are_those_of_the_runs(benchmark):
    runs = pd.read_csv(PAGE.with_suffix(".csv"))
    cells = runs.groupby(["split", "method"])
    assert list(cells.size().unique()) == [5]
    assert len(cells) == len(benchmark["SPLITS"]) * len(benchmark["METHODS"])
    assert benchmark["table"](runs) in PAGE.read_text()
    assert benchmark["settings"](runs) in PAGE.read_text()
