"""The site as a reader sees it who opened it from disk."""

from __future__ import annotations

import pytest
from accessibility import serious_findings, wide_and_narrow

pytestmark = pytest.mark.slow
LOADED = "document.readyState === 'complete'"


def test_pages_ask_for_files_only(page, pages) -> None:
    assert len(pages) > 20
    for each in pages:
        page.open(each, drawn=LOADED)
        elsewhere = [url for url in page.requests if not url.startswith(("file:", "data:"))]
        assert (elsewhere, page.errors) == ([], []), each


def test_nothing_is_wider_than_a_phone(page, pages) -> None:
    for each in pages:
        page.open(each, width=400, drawn=LOADED)
        assert page.run("document.documentElement.scrollWidth") <= 400, each


def test_long_names_break_after_a_dot(page, site) -> None:
    page.open(site / "api/theory.html", width=400, drawn=LOADED)
    lines = page.run(
        """(() => {
            const name = document.getElementById("fedac.theory.instability.proven_bound");
            const range = document.createRange();
            const ends = [...name.querySelector(".doc-object-name").childNodes].map((node) => {
                range.selectNodeContents(node);
                return range.getClientRects().length;
            });
            return Math.max(...ends);
        })()"""
    )
    assert lines == 1


def test_search_works_from_disk(page, site) -> None:
    page.open(site / "index.html", drawn=LOADED)
    page.run(
        """(() => {
            document.querySelector("#__search").click();
            const query = document.querySelector(".md-search__input");
            query.value = "control variates";
            query.dispatchEvent(new Event("keyup", { bubbles: true }));
            query.dispatchEvent(new Event("input", { bubbles: true }));
        })()"""
    )
    page.wait_for("document.querySelectorAll('.md-search-result__link').length > 0")
    assert page.errors == []


def test_what_scrolls_can_be_reached_with_the_keyboard(page, site) -> None:
    page.open(site / "benchmark.html", width=400, drawn=LOADED)
    page.wait_for("document.querySelectorAll('.md-typeset__scrollwrap[tabindex]').length > 0")


# One page of each kind: pictures, code, wide tables, a notebook, an API reference. Each takes axe a
# second or more.
KINDS = ("index", "pytorch", "benchmark", "notebooks/theory-beside-simulation", "api/algorithms")


@wide_and_narrow
def test_axe_has_no_serious_finding(page, site, width, dark) -> None:
    for kind in KINDS:
        page.open(site / f"{kind}.html", width=width, dark=dark, drawn=LOADED)
        assert serious_findings(page) == [], kind
