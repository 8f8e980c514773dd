# SPDX-License-Identifier: Apache-2.0
"""Print the lowest versions that pyproject.toml allows, as constraints for pip.

    python scripts/lowest.py > lowest.txt
    pip install --constraint lowest.txt . hypothesis pytest pytest-xdist scikit-learn

With the names of extras, their packages are printed too.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirements: Iterable[str]) -> list[str]:
    """Return ``name==version`` for every ``name>=version`` or ``name==version``."""
    pins = []
    for requirement in requirements:
        found = re.match(r"([\w.-]+)(?:\[.*\])?(?:>=|==)([\d.]+)", requirement)
        if found is None:
            raise SystemExit(f"no lowest version: {requirement}")
        pins.append(f"{found[1]}=={found[2]}")
    return pins


def main(extras: list[str]) -> None:
    """Print the pins of the core, and of some extras."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
    print("\n".join(pin for requirements in lists for pin in lowest(requirements)))


if __name__ == "__main__":
    main(sys.argv[1:])
