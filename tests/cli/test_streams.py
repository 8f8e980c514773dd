"""Tables in terminals of any width."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from fedac.cli import console

NUMBERS = ["0.0005", "1.2345e-03", "32,561"]


@pytest.fixture
def table():
    headings = ("eta", "status", "best suboptimality", "rows")
    table = console.new_table(*headings, words={"status"}, title="title", caption="A caption.")
    table.add_row(NUMBERS[0], "ok", *NUMBERS[1:])
    table.add_row("[b]0.2[/b]", "diverged after a long while", "-", "7")
    return table


@pytest.mark.parametrize("width", [5, 20, 40, 48, 60, 80, 200])
def test_numbers_stay_whole(table, width, monkeypatch, capsys):
    monkeypatch.setattr(console, "results_console", lambda: Console(width=width))
    console.print_table(table)
    printed = capsys.readouterr().out
    assert all(number in printed for number in NUMBERS)
    assert "[b]" not in printed
    is_list = "best suboptimality: 1.2345e-03\n" in printed
    assert is_list == (width < 48)
    if not is_list:
        assert max(map(len, printed.splitlines())) <= width
        words = set(re.findall("[a-z]+", printed))
        assert {"best", "suboptimality", "diverged", "after", "long", "while"} <= words
