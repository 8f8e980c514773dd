# SPDX-License-Identifier: Apache-2.0
"""`fedac merge`: the stores of several machines become one."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from fedac.experiments import store


@pytest.fixture
def sweep(fedac, small, tmp_path):
    """Return a function that makes a sweep with some step sizes in a folder."""

    def sweep(name, eta):
        grid = ("--algorithms", "fedavg", "--workers", 4, "--local-steps", 2, "--steps", 8)
        where = ("--dataset", small, "--l2", 1e-2, "--out", tmp_path / name)
        assert fedac("sweep", *where, *grid, "--eta", eta).code == 0
        return tmp_path / name

    return sweep


def test_merge(fedac, sweep, tmp_path):
    a, b, whole = sweep("a", "0.1,0.2"), sweep("b", "0.2,0.5,1"), sweep("whole", "0.1,0.2,0.5,1")
    out = tmp_path / "out"
    assert fedac("merge", out, a, b) == (
        0,
        f"{a}: 2 runs added, 0 already there\n"
        f"{b}: 2 runs added, 1 already there\n"
        f"{out}: 4 runs added, 4 in all\n",
        "",
    )
    again = fedac("merge", out, a, b)
    assert again.out.endswith(f"{out}: 0 runs added, 4 in all\n")
    for kind in ("--csv", "--traces"):
        assert fedac("export", out, kind, "-").out == fedac("export", whole, kind, "-").out


def test_refusals(assert_refused, sweep, tmp_path):
    a, out = sweep("a", "0.1"), tmp_path / "out"
    assert_refused("merge", saying="Missing argument 'OUT'")
    assert_refused("merge", out, saying="Missing argument 'DIR...'")
    assert_refused("merge", out, a, tmp_path / "gone", saying="no sweep in")
    assert_refused("merge", out, a / "runs.sqlite", saying="no sweep in")
    assert_refused("merge", a, a, saying="is the store to merge into: leave it out")
    assert_refused("merge", a / "runs.sqlite", a, saying="OUT takes a writable folder; '")
    assert not out.exists()


def test_a_network_file_system_is_mentioned_once(fedac, sweep, tmp_path, monkeypatch):
    a, b = sweep("a", "0.1"), sweep("b", "0.5")
    monkeypatch.setattr(store, "is_network", lambda path: True)
    code, _, err = fedac("merge", tmp_path / "out", a, b)
    assert (code, err) == (
        0,
        f"fedac: warning: '{tmp_path / 'out'}' is on a network file system, where SQLite's locks "
        "do not hold between machines: use one store per machine with --shard, and join them with "
        "'fedac merge'\n",
    )


def test_what_was_added_before_a_refusal_is_said(fedac, sweep, tmp_path):
    a, b, out = sweep("a", "0.1"), sweep("b", "0.1"), tmp_path / "out"
    with closing(sqlite3.connect(b / "runs.sqlite")) as db, db:
        db.execute("UPDATE traces SET loss = loss + 1 WHERE step > 0")
    code, said, err = fedac("merge", out, a, b)
    assert (code, said) == (2, f"{a}: 1 runs added, 0 already there\n")
    assert f"nothing of '{b}' was added" in err
