# SPDX-License-Identifier: Apache-2.0
"""Tables in terminals of any width; progress in bars and in lines."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from fedac.cli import console
from fedac.experiments.sweep import Progress

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


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_bar_keeps_its_numbers(width, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    best = (1.23e-4, "fedac-i+cv+nesterov(1,0.3)", 0.0625)
    with console.sweep_bar("a sweep with quite a long name, as it happens") as show:
        show(Progress(cells=26_000, done=12_345, queries=0, work=0.47, best=best))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    lines = [line for line in re.split("[\r\n]", shown) if "12345/26000" in line]
    assert lines
    assert max(map(len, lines)) <= width
    assert all("━" in line and re.search(r"[-\d]:[-\d]", line) for line in lines)
    if width == 160:  # what fits
        assert "best 1.23e-04, fedac-i+cv+nesterov(1,0.3), eta=0.0625" in lines[-1]


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the seconds that the clock shows."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "shares"), [(4, []), (60, [4, 54]), (3000, [*range(0, 100, 10)])]
)
def test_lines_of_progress_are_rare(clock, capsys, seconds, shares):
    with console.progress_bar("fedac-i", total=1000) as advance:
        for _ in range(1000):
            advance(1)
            clock[0] += seconds / 1000
    out, err = capsys.readouterr()
    assert out == ""
    lines = re.findall(r"^fedac: fedac-i: (\d+)% done, .* left$", err, re.MULTILINE)
    assert len(lines) == len(err.splitlines())
    assert [int(share) for share in lines] == pytest.approx(shares, abs=1)


def test_stages_are_lines_where_it_takes_long(capsys):
    for long, said in ((False, ""), (True, "fedac: search 1 of 4\nfedac: search 2 of 4\n")):
        with console.stage_bars(long=long) as (begin, show):
            for stage in ("search 1 of 4", "search 2 of 4"):
                begin(stage)
                show(Progress(cells=4, done=2, best=None, work=0.5))
        assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("run", "-M", 4, "-K", 2, "-T", 8, "--eta", 0.1), "fedac compare --quick --dataset"),
        (("run", "-M", 4, "-K", 2, "-T", 8, "--eta", 1e9), "--eta 1e+06,1e+08, or another"),
        (("sweep", "-M", 4, "--l2", 1e-2, "--algorithms", "fedavg", "-K", 2, "-T", 8, "--eta", 0.1,
          "--out", "runs"), "fedac report runs"),
        (("plan", "-M", 4), "fedac run --dataset"),
        (("split", "--clients", 4), "fedac compare --quick --dataset"),
    ],
)  # fmt: skip
def test_what_to_do_next_is_for_terminals(fedac, small, tmp_path, monkeypatch, command, line):
    monkeypatch.chdir(tmp_path)
    code, out, _ = fedac(*command, "--dataset", small)
    assert (code, "Next" in out) == (0, False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = fedac(*command, "--dataset", small)
    assert (code, line in out.partition("Next: ")[2]) == (0, True)
    if command[0] != "sweep":
        assert "Next" not in fedac(*command, "--dataset", small, "--json").out


def test_intervals_wrap_where_the_terminal_is_narrow(monkeypatch, capsys):
    rows = [{"method": "fedavg", "loss": "1.08e-02 (1.48e-03 to 7.89e-02)", "K": "128"}]
    for width, lines in ((80, 5), (40, 6)):
        monkeypatch.setattr(console, "results_console", lambda width=width: Console(width=width))
        console.print_table(rows, words={"method"}, bands={"loss"})
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == lines
        assert max(map(len, printed)) <= width
