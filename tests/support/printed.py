# SPDX-License-Identifier: Apache-2.0
"""What a page or a notebook promises to print, and what it prints today."""

from __future__ import annotations

import re

import pytest

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def same_but_for_rounding(printed: str, promised: str) -> None:
    """Compare two texts: words are equal, numbers are within 5%."""
    assert NUMBER.sub("N", printed.rstrip()) == NUMBER.sub("N", promised.rstrip())
    got, said = ([float(n) for n in NUMBER.findall(text)] for text in (printed, promised))
    assert got == pytest.approx(said, rel=0.05), printed
