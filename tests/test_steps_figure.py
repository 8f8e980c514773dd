# SPDX-License-Identifier: Apache-2.0
"""The picture of what happens between synchronizations is the one that its script makes."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "fedac-steps.svg"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_script_makes_the_picture() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "steps_figure.py"))["picture"]()
    assert made == PICTURE.read_text(encoding="utf-8")


def test_the_picture_is_for_everybody() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    named = {part.get("id"): part.tag for part in root if part.get("id")}
    assert [named[name] for name in root.get("aria-labelledby", "").split()] == [
        f"{SVG}title",
        f"{SVG}desc",
    ]
    assert not root.findall(f".//{SVG}script")
    still, moving = text.split("@media (prefers-reduced-motion:no-preference)")
    assert "animation" in moving
    assert "animation" not in still
    assert "prefers-color-scheme:dark" in still
    assert len(text) < 60_000
