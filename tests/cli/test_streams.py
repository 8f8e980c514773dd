"""Tables in terminals of any width."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from fedac.cli import console

NUMBERS = ["0.0005", "1.2345e-03", "32,561"]


@pytest.mark.parametrize("width", [5, 20, 40, 48, 60, 80, 200])
def test_numbers_stay_whole(width, monkeypatch, capsys):
    monkeypatch.setattr(console, "results_console", lambda: Console(width=width, markup=False))
    console.print_table(
        [
            dict(zip(("eta", "status", "best suboptimality", "rows"), cells, strict=True))
            for cells in (
                (NUMBERS[0], "ok", *NUMBERS[1:]),
                ("[b]", "diverged after a long while", "-", "7"),
            )
        ],
        words={"status"},
        title="title",
        caption="A caption.",
    )
    printed = capsys.readouterr().out
    assert all(number in printed for number in NUMBERS)
    assert "[b]" in printed
    assert max(map(len, printed.splitlines())) <= max(width, 48)
    words = set(re.findall("[a-z]+", printed))
    assert {"best", "suboptimality", "diverged", "after", "long", "while"} <= words
