# SPDX-License-Identifier: Apache-2.0
"""What axe finds on a page: contrast, names, roles, keyboard use."""

from __future__ import annotations

from importlib.resources import files

import pytest
from chromium import Page

wide_and_narrow = pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (400, True)], ids=["wide and light", "narrow and dark"]
)
RUN = """(() => {
    window.found = null;
    axe.run({ resultTypes: ["violations"] })
        .then((result) => { window.found = result.violations; });
})()"""


def serious_findings(page: Page) -> list[str]:
    """Return rule and places of what axe calls serious or critical on the open page."""
    # Read here: `make lowest` collects these tests, but has no axe.
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    page.run(f"{axe}; 0")
    page.run(RUN)
    page.wait_for("window.found !== null")
    return [
        f"{rule['id']}: {[node['target'] for node in rule['nodes'][:5]]}"
        for rule in page.run("window.found")
        if rule["impact"] in ("serious", "critical")
    ]
