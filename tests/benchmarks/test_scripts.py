# SPDX-License-Identifier: Apache-2.0
"""Every name of fedac that a script uses exists, also the names that only a long run would need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
FOLDERS = ["benchmarks", "examples", "scripts"]


def missing_names(source: str, folder: Path) -> Iterator[str]:
    """Yield what the source asks of fedac, or of scripts in its folder, that does not exist."""
    tree = ast.parse(source)
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "fedac":
                    found = _find(alias.name)
                    if found is None:
                        yield alias.name
                    elif alias.asname or "." not in alias.name:
                        modules[alias.asname or alias.name] = found
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if not _exists(node.module, alias.name, folder):
                    yield f"{node.module}.{alias.name}"
                elif node.module.split(".")[0] == "fedac":
                    found = _find(f"{node.module}.{alias.name}")
                    if isinstance(found, ModuleType):
                        modules[alias.asname or alias.name] = found
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A program for another process.
            for module, names in re.findall(r"from (fedac[\w.]*) import ([\w, ]+)", node.value):
                for name in names.replace(" ", "").split(","):
                    if not _exists(module, name, folder):
                        yield f"{module}.{name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = modules.get(node.value.id)
            if used is not None and not hasattr(used, node.attr):
                yield f"{used.__name__}.{node.attr}"


def _exists(module: str, name: str, folder: Path) -> bool:
    top = module.split(".")[0]
    if top == "fedac":
        return _find(f"{module}.{name}") is not None
    script = folder / f"{top}.py"
    return not script.exists() or name in _defined(script)


def _find(path: str) -> object:
    """Return the module or the value at a dotted path under fedac, None if there is none."""
    parent, _, name = path.rpartition(".")
    if parent and hasattr(holder := _find(parent), name):
        return getattr(holder, name)
    try:  # perhaps a module that nothing has imported yet
        return import_module(path)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fedac"):
            return None
        raise


def _defined(script: Path) -> set[str]:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and type(n.ctx) is ast.Store]
    return {*stored, *(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef))}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_exists(folder: str) -> None:
    scripts = sorted((ROOT / folder).rglob("*.py"))
    assert scripts
    missing = {
        script.relative_to(ROOT).as_posix(): list(missing_names(script.read_text(), script.parent))
        for script in scripts
    }
    assert not {script: names for script, names in missing.items() if names}


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("from fedac import simulate, load", None),
        ("from fedac.experiments import sweep; sweep.run", None),
        ("from fedac.experiments.sweep import gone", "fedac.experiments.sweep.gone"),
        ("from fedac import simulator", "fedac.simulator"),
        ("from fedac.simulation.nowhere import simulate", "fedac.simulation.nowhere.simulate"),
        ("import fedac.nowhere", "fedac.nowhere"),
        ("import fedac.experiments.sweep as s; s.gone()", "fedac.experiments.sweep.gone"),
        (
            "def f():\n    from fedac.experiments import sweep as s\n    s.gone()",
            "fedac.experiments.sweep.gone",
        ),
        ("run('from pathlib import Path; from fedac import load, gone;')", "fedac.gone"),
        ("from bench import gone", "bench.gone"),
        ("from bench import ETAS", None),
    ],
)
def test_a_missing_name_is_found(line: str, missing: str | None) -> None:
    assert list(missing_names(line, ROOT / "benchmarks")) == ([missing] if missing else [])
