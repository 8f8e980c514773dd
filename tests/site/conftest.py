# SPDX-License-Identifier: Apache-2.0
"""The site, made once for all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chromium import page

__all__ = ["page", "pages", "site"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Return the folder of the site, made as `make docs` makes it: every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site) -> list[Path]:
    """Return all pages but the one for servers, whose addresses start at the server's root."""
    return sorted(set(site.rglob("*.html")) - {site / "404.html"})
