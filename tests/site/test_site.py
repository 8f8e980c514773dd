# SPDX-License-Identifier: Apache-2.0
"""The site is whole: every page, every public name, and nothing from another host.

Broken links and anchors, and pages that the navigation leaves out, are warnings of `mkdocs`
(`validation` in mkdocs.yml), and it is called with --strict.
"""

from __future__ import annotations

import re
import zlib
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # tests/test_docs.py checks names and links of the sources

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = [
    "fedac",
    "fedac.algorithms",
    "fedac.data",
    "fedac.experiments.comparison",
    "fedac.flower",
    "fedac.objectives",
    "fedac.simulation",
    "fedac.theory",
    "fedac.torch",
]
# What a browser fetches by itself; <a href> is only followed when clicked.
LOADS = {"href": {"link"}, "src": {"script", "img", "iframe", "source"}, "srcset": {"img"}}


@pytest.fixture(scope="module")
def reference(site) -> set[str]:
    """Return all names in the API reference, from the inventory that mkdocstrings writes."""
    packed = (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
    return {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package, reference) -> None:
    names = {f"{package}.{name}" for name in import_module(package).__all__}
    assert names <= reference, f"no docstring, or not on a page of docs/api/: {names - reference}"


def test_every_name_that_a_page_imports_is_in_the_reference(reference) -> None:
    for page in DOCS.rglob("*.md"):
        for module, names in re.findall(r"from (fedac[\w.]*) import ([\w, ]+)", page.read_text()):
            for name in names.replace(" ", "").split(","):
                assert f"{module}.{name}" in reference, f"{page.name} uses {module}.{name}"


def test_every_page_is_made(site) -> None:
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")]
    assert len(pages) > 20
    for page in [*pages, Path("changelog.html")]:
        assert (site / page).exists(), page


def test_the_changelog_leads_to_pages_of_the_site(site) -> None:
    assert 'href="slow-clients.html"' in (site / "changelog.html").read_text()


@pytest.mark.parametrize(
    ("page", "anchor"),
    [("pytorch", "any-optimizer-inside"), ("flower", "deadlines-and-asynchronous-rounds")],
)
def test_links_from_before_a_page_was_split_find_the_place_that_leads_on(
    site, page, anchor
) -> None:
    assert (
        f'<a id="{anchor}"></a><a href="{page}-guide.html#{anchor}">'
        in (site / f"{page}.html").read_text()
    )


def test_no_line_ends_inside_a_number_or_an_option(site) -> None:
    page = (site / "clients.html").read_text()
    assert '<span class="whole">9.5e-4</span>' in page
    assert '<code><span class="whole">--split-seed</span></code>' in page
    assert "whole" not in "".join(re.findall(r"<pre\b.*?</pre>", page, re.DOTALL))


def test_a_picture_leads_to_itself(site) -> None:
    page = (site / "benchmark.html").read_text()
    assert '<a href="images/benchmark-overview.png"><img ' in page


def test_no_link_leaves_the_site_for_a_file_of_the_repository(pages) -> None:
    for page in pages:
        for target in re.findall(r'href="(?!https?:|#)([^"#]*)', page.read_text()):
            assert not target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_nothing_comes_from_another_host(site, pages) -> None:
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.addresses, page
        for address in loads.addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


class Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and tag in LOADS.get(name, ()):
                self.addresses.append(value)
