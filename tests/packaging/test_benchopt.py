# SPDX-License-Identifier: Apache-2.0
"""The benchmark in benchopt's layout; benchopt's own tests need benchopt."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from fedac.algorithms import get

FOLDER = Path(__file__).parents[2] / "benchmarks" / "benchopt"
SOLVERS = sorted((FOLDER / "solvers").glob("*.py"))


def names_in(path: Path) -> dict[str, str]:
    """Return the texts that the class of a file assigns: its name, its algorithm."""
    (defined,) = (
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    )
    return {
        node.targets[0].id: node.value.value
        for node in defined.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


@pytest.mark.parametrize("path", SOLVERS, ids=lambda path: path.stem)
def test_a_solver_names_a_method_of_ours(path):
    assert get(names_in(path)["algorithm"]).name


def test_the_example_names_every_solver():
    example = yaml.safe_load((FOLDER / "example.yml").read_text())
    assert set(example["solver"]) == {names_in(path)["name"] for path in SOLVERS}


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("benchopt"), reason="needs benchopt: see CONTRIBUTING.md")
def test_benchopts_own_tests():
    tools = Path(sys.executable).parent  # benchopt calls `pytest` by its name
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    line = [tools / "benchopt", "test", FOLDER, "--skip-install"]
    subprocess.run(line, check=True, env=environment, timeout=900)
