# SPDX-License-Identifier: Apache-2.0
"""What `import fedac` gives, and rules that hold for every module."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedac

ROOT = Path(fedac.__file__).parent
MODULES = [found.name for found in pkgutil.walk_packages(fedac.__path__, "fedac.")]


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in fedac.__all__ if getattr(fedac, name).__name__ != name] == []


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="'fedac' has no attribute 'nope'"):
        _ = fedac.nope


def test_importing_imports_nothing_heavy() -> None:
    heavy = "{'numba', 'numpy', 'scipy', 'sklearn', 'torch', 'flwr', 'matplotlib'}"
    check = f"import fedac, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/fedac/__init__.py"


def _tree(module: str) -> ast.Module:
    path = ROOT.parent / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _imports(module: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for every ``from fedac... import name`` in a module."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedac"):
            yield from ((node.module, alias.name) for alias in node.names)


def test_a_dotted_name_means_the_module() -> None:
    """A function in the parent package must not hide a module, nor share its name."""
    wrong = []
    for module in MODULES:
        parent, _, name = module.rpartition(".")
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("fedac"):
                raise
            continue  # an extra that is not installed
        inside = getattr(imported, name, imported)
        if getattr(sys.modules[parent], name) is not imported or not inspect.ismodule(inside):
            wrong.append(module)
    assert wrong == []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_stay_in_their_module() -> None:
    for module in MODULES:
        imports = list(_imports(module))
        for source, name in imports:
            # The modules of a private package may be used in the package around it.
            is_own_module = f"{source}.{name}" in MODULES and module.startswith(source)
            assert not _is_private(name) or is_own_module, (module, source, name)
        imported = {name for _, name in imports}
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = _is_private(node.attr) and node.value.id in imported
                assert not used, (module, ast.unparse(node))


def test_the_package_imports_only_what_it_declares() -> None:
    """A package that comes with another one today may not do so tomorrow, as Click with Typer."""
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    extras = ("flower", "parquet", "ray", "torch")
    declared = project["dependencies"] + [
        package for extra in extras for package in project["optional-dependencies"][extra]
    ]
    names = {re.split(r"[\[><=]", package)[0].replace("-", "_") for package in declared}
    # What Numba must bring, because its own API consists of it.
    names |= {"llvmlite", "fedac"}
    imported = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported |= {module.partition(".")[0] for module in modules}
    assert imported - names <= sys.stdlib_module_names


def test_a_class_name_stands_for_one_class() -> None:
    """`FedAc` is public in `fedac.torch` and in `fedac.flower`; no other name occurs twice."""
    names = [
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name in names if names.count(name) > 1} == {"FedAc"}
