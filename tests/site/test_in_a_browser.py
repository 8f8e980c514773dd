# SPDX-License-Identifier: Apache-2.0
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
    page.run("document.querySelector('#__search').click()")
    for query, found in (
        ("control variates", "flower-clients.html"),
        ("limitations", "benchmark.html"),
        ("multiclass", "your-own-data.html"),
        ("pandas", "your-own-data.html"),
        ("alternatives", "alternatives.html"),
    ):
        page.run(
            f"""(() => {{
                const query = document.querySelector(".md-search__input");
                query.value = "{query}";
                query.dispatchEvent(new Event("keyup", {{ bubbles: true }}));
                query.dispatchEvent(new Event("input", {{ bubbles: true }}));
            }})()"""
        )
        link = f".md-search-result__link[href*='{found}']"
        page.wait_for(f"document.querySelector({link!r}) !== null")
    assert page.errors == []


def test_lines_have_about_80_characters(page, site) -> None:
    page.open(site / "theory.html", width=1400, drawn=LOADED)
    lengths = page.run(
        """[...document.querySelectorAll(".md-typeset p")].map((text) => {
            const lines = text.clientHeight / parseFloat(getComputedStyle(text).lineHeight);
            return { lines, length: text.textContent.length / lines };
        }).filter(({ lines }) => lines > 3).map(({ length }) => length)"""
    )
    assert len(lengths) > 5
    assert 65 < sum(lengths) / len(lengths) < 90  # the last line of a text is shorter


def test_a_table_sorts_by_keyboard(page, site) -> None:
    page.open(site / "pytorch.html", drawn=LOADED)
    column = """[...document.querySelectorAll(".md-typeset table")].find((table) =>
        table.textContent.includes("gpa(0.9,0.9)") && table.querySelector(".sort"))"""
    page.run(f"window.table = {column}; window.head = table.querySelectorAll('th')[3]; 0")
    page.run("head.querySelector('button').focus()")

    def sent() -> list[str]:
        return page.run("[...table.tBodies[0].rows].map((row) => row.cells[3].textContent.trim())")

    as_written = sent()
    in_order = sorted(as_written, key=float)
    for state, expected in (
        ("ascending", in_order),
        ("descending", in_order[::-1]),
        (None, as_written),
    ):
        page.press("Enter", 13)
        assert page.run("head.getAttribute('aria-sort')") == state
        assert sent() == expected
    assert page.errors == []


def test_a_figure_opens_at_its_full_size_by_keyboard(page, site) -> None:
    page.open(site / "benchmark.html", drawn=LOADED)
    page.run("window.link = document.querySelector('.md-typeset a:has(> img)'); link.focus()")
    page.press("Enter", 13)
    page.wait_for("document.querySelector('dialog[open] img')?.complete")
    assert page.run("document.querySelector('dialog[open] img').width") == page.run(
        "document.querySelector('dialog[open] img').naturalWidth"
    )
    assert serious_findings(page) == []
    page.press("Escape", 27)
    page.wait_for("!document.querySelector('dialog[open]')")
    assert page.run("document.activeElement === link")
    assert page.run("location.pathname.endsWith('benchmark.html')")


def test_what_scrolls_can_be_reached_with_the_keyboard(page, site) -> None:
    page.open(site / "benchmark.html", width=400, drawn=LOADED)
    page.wait_for("document.querySelectorAll('.md-typeset__scrollwrap[tabindex]').length > 0")


# One page of each kind: the home page, a tutorial, wide tables, a notebook, an API reference. Each
# takes axe a second or more.
KINDS = (
    "index",
    "tutorials/simulate-and-compare",
    "benchmark",
    "notebooks/theory-beside-simulation",
    "api/algorithms",
)


@wide_and_narrow
def test_axe_has_no_serious_finding(page, site, width, dark) -> None:
    for kind in KINDS:
        page.open(site / f"{kind}.html", width=width, dark=dark, drawn=LOADED)
        assert serious_findings(page) == [], kind
