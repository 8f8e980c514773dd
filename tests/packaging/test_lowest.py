# SPDX-License-Identifier: Apache-2.0
"""The lowest versions that pyproject.toml allows, which a workflow installs and tests."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def printed(*extras: str, code: int = 0) -> list[str]:
    line = [sys.executable, ROOT / "scripts" / "lowest.py", *extras]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


def test_every_dependency_has_a_lowest_version_that_it_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["torch"], *extras["flower"]]
    pins = printed("torch", "flower")
    assert len(pins) == len(declared)
    for text, pin in zip(declared, map(Requirement, pins), strict=True):
        requirement = Requirement(text)
        (exactly,) = pin.specifier
        assert (pin.name, exactly.operator) == (requirement.name, "==")
        assert requirement.specifier.contains(exactly.version)


def test_extras_are_left_out_unless_named():
    assert not any(pin.startswith(("torch==", "flwr==")) for pin in printed())
