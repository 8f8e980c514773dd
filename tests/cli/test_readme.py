# SPDX-License-Identifier: Apache-2.0
"""The examples in README and docs work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedac.experiments.grid import read_grid

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def documented_commands():
    """Yield the arguments of every `fedac` command line in README and docs."""
    for page in (README, *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ *(?:\$ )?fedac (.*)", text, re.MULTILINE):
            yield pytest.param(shlex.split(line, comments=True), id=f"{page.stem}: {line:.60}")


@pytest.mark.parametrize("arguments", list(documented_commands()))
def test_documented_commands_are_accepted(parse, arguments):
    parse(arguments)


@pytest.fixture
def example(write):
    """Return the sweep of docs/sweeps.md as a file."""
    page = ROOT / "docs" / "sweeps.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return write(text.encode(), "grid.toml")


def test_the_sweep_can_be_read(example):
    grid = read_grid(example)
    assert (grid.dataset, grid.steps, grid.seed) == ("a9a", 1024, (1, 2))


def test_the_sweep_can_be_run(fedac, example, tmp_path):
    text = example.read_text().replace("[64, 1024]", "[4]").replace("1024", "64")
    example.write_text(text)
    code, out, _ = fedac("sweep", example, "--out", tmp_path / "runs")
    assert code == 0
    assert "first: 108 runs now, 0 before, 108 in all" in " ".join(out.split())
