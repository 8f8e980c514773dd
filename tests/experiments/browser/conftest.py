# SPDX-License-Identifier: Apache-2.0
"""A report, opened in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Page, page

__all__ = ["desktop", "page"]


@pytest.fixture
def desktop(page: Page, report: Path) -> Iterator[Page]:
    """Give a module's report, opened; whatever a test does must leave the console silent."""
    page.open(report)
    yield page
    assert page.errors == []
