"""The examples in the README work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedac.experiments.grid import Grid

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def example(write):
    """Return the README's sweep as a file."""
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return write(text.encode(), "grid.toml")


def test_the_sweep_can_be_read(example):
    grid = Grid.from_toml(example)
    assert (grid.dataset, grid.steps, grid.seeds) == ("synthetic", 1024, (1, 2))


def test_the_sweep_can_be_run(fedac, example, tmp_path):
    text = example.read_text().replace("[64, 1024]", "[4]").replace("1024", "64")
    example.write_text(text)
    code, out, _ = fedac("sweep", example, "--out", tmp_path / "runs")
    assert code == 0
    assert "first: 72 runs now, 0 before, 72 in all" in " ".join(out.split())
