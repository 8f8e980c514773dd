# SPDX-License-Identifier: Apache-2.0
"""`fedac data`: list, fetch and path."""

from __future__ import annotations

import pytest


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDAC_DATA", raising=False)
    monkeypatch.setenv("FEDAC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def test_list_has_a_line_for_each(fedac, nothing_here):
    code, out, err = fedac("data", "list")
    assert (code, err) == (0, "")
    lines = {line.split()[1]: line for line in out.splitlines() if line.count("│") == 6}
    assert {"synthetic", "a9a", "rcv1", "epsilon"} <= set(lines)
    assert "generated" in lines["synthetic"]
    assert "32,561" in lines["a9a"]
    assert "embedded" in lines["a9a"]
    assert "CC BY 4.0" in lines["a9a"]
    assert "not here" in lines["w8a"]


def test_list_shows_the_whole_path(fedac, nothing_here, monkeypatch, tmp_path):
    folder = tmp_path / "[bold]" / ("long" * 40)
    folder.mkdir(parents=True)
    (folder / "w8a").touch()
    monkeypatch.setenv("FEDAC_DATA", str(folder))
    _, out, _ = fedac("data", "list")
    assert str(folder / "w8a") in out


def test_path_prints_the_path_and_nothing_else(fedac, nothing_here):
    nothing_here.mkdir(parents=True)
    (nothing_here / "a9a").touch()
    assert fedac("data", "path", "a9a") == (0, f"{nothing_here / 'a9a'}\n", "")


def test_path_of_a_missing_file(assert_refused, nothing_here):
    assert_refused("data", "path", "w8a", saying="get it with 'fedac data fetch w8a'")


@pytest.mark.parametrize("command", ["path", "fetch"])
def test_unknown_and_generated_names(assert_refused, nothing_here, command):
    assert_refused("data", command, "a8a", saying="unknown data set 'a8a'; did you mean ")
    assert_refused("data", command, "", saying="known: a1a, ")
    assert_refused("data", command, "synthetic", saying="synthetic has no file: it is generated")


def test_fetch_of_a_local_file(fedac, a9a):
    code, out, err = fedac("data", "fetch", a9a.name)
    assert (code, err) == (0, "")
    assert (code, out, err) == fedac("data", "path", a9a.name)


def test_fetch_of_a_damaged_file(assert_refused, nothing_here):
    nothing_here.mkdir(parents=True)
    (nothing_here / "a9a").write_text("+1 1:1\n")
    assert_refused("data", "fetch", "a9a", saying="is damaged: expected sha256 f5d5ffd8")
