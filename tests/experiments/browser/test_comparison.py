# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison in a real browser."""

from __future__ import annotations

import json
import math

import pytest
from accessibility import serious_findings, wide_and_narrow

from fedac.experiments.comparison.report import write_report

HOSTILE = "</script><img src=x onerror=alert(1)>"
# After 0, 1, 2 and 3 rounds, on two seeds.
REACHED = {
    ("fedac-i", 8, "float32"): [[1.0, 0.1, 0.01, 0.01], [1.0, 0.4, 0.04, 0.01]],
    ("fedac-i", 16, "float32"): [[1.0, 0.5, 0.1, 0.04], [1.0, 0.5, 0.1, 0.04]],
    ("fedavg", 8, "float32"): [[1.0, 0.5, 0.2, 0.04], [1.0, 0.5, 0.2, 0.2]],
    ("fedavg", 16, "float32"): [[1.0, 0.5, 0.2, 0.2], [math.inf] * 4],
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(made_up, tmp_path_factory):
    """Give the report of a small comparison."""
    comparison = made_up(REACHED, dataset=HOSTILE)
    return write_report(comparison, tmp_path_factory.mktemp("comparison") / "report.html")


def lines(page):
    """Return what plotly draws, by name."""
    drawn = page.run(
        """[...document.getElementById("plot").data].map(
            ({name, x, y}) => ({name, x: [...x], y: [...y]}))"""
    )
    return {line["name"]: line for line in drawn}


def axis_title(page):
    return page.run("document.getElementById('plot').layout.xaxis.title.text")


def texts(page, selector):
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
    return page.run(script)


def test_loads_from_a_file_and_asks_for_nothing(desktop, report):
    elsewhere = [address for address in desktop.requests if not address.startswith("data:")]
    assert elsewhere == [report.resolve().as_uri()]
    assert desktop.run("performance.getEntriesByType('resource').length") == 0
    assert texts(desktop, "h1") == [f"Which method? {HOSTILE}"]
    assert desktop.run("document.images.length") == 0
    (verdict,) = texts(desktop, "#verdict")
    assert verdict.startswith("FedAc-I (K = 8, step size 0.5) is the fastest on this link")
    nobody, said, _ = texts(desktop, "#details li")
    assert nobody == "No other method reached it on all seeds."
    assert said == "FedAvg (K = 8, step size 0.5): not reached (1 of 2 seeds)."
    assert any("20 settings" in text for text in texts(desktop, "#notes dd"))


def test_from_seconds_to_rounds_and_megabytes(desktop):
    assert axis_title(desktop) == "seconds"
    drawn = lines(desktop)
    assert set(drawn) == {"seeds", "FedAc-I", "FedAvg"}
    assert drawn["FedAc-I"]["x"] == [0, 3, 6, 9]
    assert drawn["FedAc-I"]["y"] == [1, 0.2, 0.02, 0.01]
    desktop.choose("unit", "rounds")
    assert lines(desktop)["FedAc-I"]["x"] == [0, 1, 2, 3]
    assert axis_title(desktop) == "rounds"
    desktop.choose("unit", "megabytes")
    assert lines(desktop)["FedAc-I"]["x"] == [0, 0.5, 1, 1.5]
    assert axis_title(desktop) == "megabytes per client, up and down"
    (target,) = desktop.run(
        "document.getElementById('plot').layout.shapes.map(({y0, y1}) => [y0, y1])"
    )
    assert target == [0.05, 0.05]


def test_one_k_or_the_best_of_each_method(desktop):
    desktop.choose("K", 16)
    drawn = lines(desktop)
    assert set(drawn) == {"seeds", "FedAc-I"}
    assert drawn["FedAc-I"]["y"] == [1, 0.5, 0.1, 0.04]
    (caption,) = texts(desktop, "#caption")
    assert caption.endswith("Not drawn, because a seed diverged: FedAvg.")
    desktop.choose("K", "best of each method")
    assert set(lines(desktop)) == {"seeds", "FedAc-I", "FedAvg"}


def test_methods_are_ticked_on_and_off_with_the_keyboard(desktop):
    assert desktop.run(
        "[...document.querySelectorAll('select, input')].every((e) => e.labels.length === 1)"
    )
    desktop.run("document.querySelector('#lines input').focus()")
    desktop.press(" ", 32)
    assert set(lines(desktop)) == {"seeds", "FedAvg"}
    desktop.press("Tab", 9)
    desktop.press(" ", 32)
    assert lines(desktop) == {}
    (note,) = desktop.run("document.getElementById('plot').layout.annotations.map((a) => a.text)")
    assert note.startswith("Nothing to draw")


def test_all_rows_can_be_sorted(desktop):
    rows = "[...document.getElementById('rows').tBodies[0].rows]"
    cells = f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))"
    heads = texts(desktop, "#rows thead th")
    assert heads == [
        "method", "K", "rounds", "MB", "seconds", "suboptimality within 4 s",
        "ratio to the best",
        "step size", "smallest record",
    ]  # fmt: skip
    assert texts(desktop, "#rows [aria-sort=ascending]") == ["seconds"]
    first, second, third, last = desktop.run(cells)
    assert first[:4] == ["FedAc-I", "8", "2 (1.6 to 2.5)", "1 (0.8 to 1.25)"]
    assert first[6:8] == ["1", "0.5"]
    assert second[:3] == ["FedAc-I", "16", "3 (2.57 to 3.5)"]
    assert third[:5] == ["FedAvg", "8", "not reached (1 of 2 seeds)", "\u2013", "\u2013"]
    assert third[7] == "0.5 (largest tried)"
    assert last[-1] == "diverged"
    desktop.run("document.querySelector('#rows [data-key=K] button').focus()")
    desktop.press("Enter", 13)
    assert [row[1] for row in desktop.run(cells)] == ["8", "8", "16", "16"]
    # What was not reached comes last.
    desktop.run("document.querySelector('#rows [data-key=rounds] button').click()")
    assert [row[0] for row in desktop.run(cells)] == ["FedAc-I", "FedAc-I", "FedAvg", "FedAvg"]


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_fits_light_or_dark(page, report, width, dark):
    page.open(report, width=width, dark=dark)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.getElementById('plot')._fullLayout.width") <= width
    ink = page.run("document.getElementById('plot').layout.font.color")
    assert ink == ("#e7eaee" if dark else "#1d2126")
    assert page.errors == []


@wide_and_narrow
def test_axe_has_no_serious_finding(page, report, width, dark):
    page.open(report, width=width, dark=dark)
    assert serious_findings(page) == []
