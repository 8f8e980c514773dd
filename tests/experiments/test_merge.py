# SPDX-License-Identifier: Apache-2.0
"""Joining stores: as if one machine had made all runs, whatever happens to the process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest

from fedac.errors import InputError
from fedac.experiments import sweep
from fedac.experiments.export import write_csv, write_traces
from fedac.experiments.grid import make_grid
from fedac.experiments.merge import Shard, merge_stores
from fedac.experiments.store import FILE, LAYOUT, Store

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and permissions")

DATA = Path(__file__).parent / "data"
PARTS = 3
# Groups of 4 runs; 1e9 diverges.
GRID = make_grid(
    name="tiny", dataset="synthetic", l2=1e-2, algorithms=("fedac-i", "mb-sgd"), workers=(4, 8),
    local_steps=(4, 8), steps=16, eta=(0.1, 1e9), record_every=8, test=0.25,
)  # fmt: skip
RUNS = 16


def make(folder, shard):
    """Sweep a part of the grid."""
    with Store(folder, create=True) as store:
        sweep.run(GRID, store, shard=shard)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Give a folder with the store of a whole sweep and those of its three parts."""
    folder = tmp_path_factory.mktemp("made")
    make(folder / "whole", Shard(1, 1))
    for part in range(1, PARTS + 1):
        make(folder / f"part-{part}", Shard(part, PARTS))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """Give a copy of these stores."""
    return shutil.copytree(made, tmp_path / "stores")


@pytest.fixture
def parts(folder):
    return [folder / f"part-{part}" for part in range(1, PARTS + 1)]


@contextmanager
def edited(folder):
    """Open the database of a store, which is changed behind its back."""
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        yield db


def content(folder):
    """Return everything in a store; origins by what they are."""
    with Store(folder) as store:
        runs = "SELECT * FROM runs JOIN origins ON origin = origins.id ORDER BY key"
        frame = pd.read_sql_query(runs, store._db).drop(columns=["id", "origin"])
        return frame, store.traces()


def assert_same(one, other):
    for ours, theirs in zip(one, other, strict=True):
        pd.testing.assert_frame_equal(ours, theirs)


def exported(folder, tmp_path):
    found = []
    with Store(folder) as store:
        for write in (write_csv, write_traces):
            write(store, tmp_path / "file.csv")
            found.append((tmp_path / "file.csv").read_bytes())
    return found


def counts(merged):
    return [(each.added, each.before) for each in merged.joined]


def test_a_part_of_an_earlier_version_has_no_further_metrics(folder, parts):
    with edited(parts[0]) as db:
        db.execute("ALTER TABLE runs DROP COLUMN metrics")
    assert merge_stores(folder / "all", parts).runs == RUNS
    with Store(parts[0]) as store:
        old = set(store.frame()["key"])
    with Store(folder / "all") as store:
        frame = store.frame()
    ended = frame[frame["status"] == "ok"]
    assert set(ended.loc[ended["test_auc"].isna(), "key"]) == old & set(ended["key"])
    assert not ended["test_auc"].isna().all()


def test_parts_become_the_whole(folder, parts, tmp_path):
    before = [(part / FILE).read_bytes() for part in parts]
    merged = merge_stores(folder / "all", parts)
    assert merged.runs == RUNS
    assert sum(each.added for each in merged.joined) == RUNS
    assert all(each.added and not each.before for each in merged.joined)
    assert [each.source for each in merged.joined] == parts
    assert exported(folder / "all", tmp_path) == exported(folder / "whole", tmp_path)
    with Store(folder / "all", create=True) as store:
        assert (sweep.run(GRID, store).new, set(store.frame().status)) == (0, {"ok", "diverged"})
    assert [(part / FILE).read_bytes() for part in parts] == before


def test_the_order_does_not_matter(folder, parts, tmp_path):
    merge_stores(folder / "forth", parts)
    merge_stores(folder / "back", reversed(parts))
    assert_same(content(folder / "forth"), content(folder / "back"))
    assert exported(folder / "forth", tmp_path) == exported(folder / "back", tmp_path)


def test_twice_adds_nothing(folder, parts):
    merge_stores(folder / "all", parts)
    before = content(folder / "all")
    again = merge_stores(folder / "all", [*parts, *parts])
    assert [each.added for each in again.joined] == [0] * 6
    assert (sum(each.before for each in again.joined), again.runs) == (2 * RUNS, RUNS)
    assert_same(before, content(folder / "all"))


def test_the_same_runs_of_another_sweep_are_kept_once(folder, parts):
    # Made at another time, so with other `seconds`.
    before = content(folder / "whole")
    merged = merge_stores(folder / "whole", parts)
    assert (sum(each.before for each in merged.joined), merged.runs) == (RUNS, RUNS)
    assert_same(before, content(folder / "whole"))


def test_a_store_that_has_some_of_the_runs(folder, parts):
    merge_stores(folder / "some", parts[:2])
    (joined,) = merge_stores(folder / "some", [folder / "whole"]).joined
    with Store(parts[2]) as store:
        assert joined.added == len(store.frame())
    assert joined.added + joined.before == RUNS


def test_origins_are_carried_over(folder, parts):
    for number, part in enumerate(parts):
        with edited(part) as db:
            db.execute(
                "UPDATE origins SET version = ?, machine = ?", (f"9.{number}", f'"{number}"')
            )
    merge_stores(folder / "all", parts)
    with Store(folder / "all") as store:
        info = store.info()
    assert (info["versions"], info["machines"]) == (["9.0", "9.1", "9.2"], ["0", "1", "2"])
    for part in parts:
        ours, theirs = content(folder / "all")[0], content(part)[0]
        ours = ours[ours.key.isin(theirs.key)].reset_index(drop=True)
        pd.testing.assert_frame_equal(ours, theirs)
    # Nothing is added for runs that are there already.
    merge_stores(folder / "whole", parts)
    with edited(folder / "whole") as db:
        assert db.execute("SELECT count(*) FROM origins").fetchone() == (1,)


ONE = (
    "run = (SELECT id FROM runs WHERE json_extract(spec, '$.algorithm') = 'fedac-i' AND "
    "json_extract(spec, '$.M') = 8 AND json_extract(spec, '$.K') = 4 AND "
    "json_extract(spec, '$.eta') < 1)"
)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (f"UPDATE traces SET loss = loss * (1 + 1e-15) WHERE step = 8 AND {ONE}",
         "first at step 8"),
        (f"UPDATE traces SET loss = 1 WHERE step > 0 AND {ONE}", "first at step 8"),
        (f"UPDATE traces SET test_loss = 1 WHERE step = 16 AND {ONE}", "first at step 16"),
        (f"UPDATE traces SET test_accuracy = NULL WHERE step = 0 AND {ONE}", "first at step 0"),
        (f"UPDATE traces SET step = 9 WHERE step = 8 AND {ONE}", "first at step 8"),
        (f"DELETE FROM traces WHERE step = 16 AND {ONE}", "first at step 16"),
        (f"INSERT INTO traces SELECT run, 12, loss, 1, 1 FROM traces WHERE step = 8 AND {ONE}",
         "first at step 12"),
        (f"UPDATE runs SET status = 'diverged' WHERE {ONE.replace('run', 'id', 1)}",
         "in its status or F*"),
        (f"UPDATE runs SET f_star = f_star / 2 WHERE {ONE.replace('run', 'id', 1)}",
         "in its status or F*"),
    ],
)  # fmt: skip
def test_stores_that_disagree(folder, parts, change, where):
    whole, out = folder / "whole", folder / "all"
    with edited(whole) as db:
        assert db.execute(change).rowcount > 0
    # The source also has runs that the store lacks.
    guilty = _only_part_with(parts, M=8, K=4)
    merge_stores(out, [guilty])
    before = content(out)
    with pytest.raises(InputError) as refused:
        merge_stores(out, [whole])
    run = "fedac-i with M=8, K=4, eta=0.1, seed=1"
    assert str(refused.value) == (
        f"'{out}' and '{whole}' disagree on {run}, {where}: "
        f"nothing of '{whole}' was added; use another folder for it"
    )
    assert_same(before, content(out))
    with pytest.raises(InputError, match=f"disagree on {run}, {re.escape(where)}: "):
        merge_stores(whole, [guilty])


def test_sources_before_the_one_that_disagrees_are_kept(folder, parts):
    with edited(parts[1]) as db:
        db.execute("UPDATE traces SET loss = 0.5")
    merge_stores(folder / "all", [folder / "whole"])
    with pytest.raises(InputError, match=r"'.*part-1' and '.*whole' disagree on .* at step 0: "):
        merge_stores(parts[0], [parts[1], folder / "whole", parts[2]])
    assert _keys(parts[0]) == _keys(folder / "all") - _keys(parts[2])


def _only_part_with(parts, **values):
    found = []
    for part in parts:
        with Store(part) as store:
            found += [part] * bool((store.frame()[[*values]] == values).all(axis=1).any())
    (one,) = found
    return one


def _keys(folder):
    return set(content(folder)[0].key)


def test_bad_sources_are_found_before_anything_is_written(folder, parts):
    with pytest.raises(InputError, match=r"no sweep in '.*gone': there is no runs\.sqlite"):
        merge_stores(folder / "all", [*parts, folder / "gone"])
    content = bytearray((parts[1] / FILE).read_bytes())
    content[4096 : 4096 + 2048] = b"\xa5" * 2048
    (parts[1] / FILE).write_bytes(content)
    with pytest.raises(InputError, match=r"part-2.runs\.sqlite is damaged and was left unchanged"):
        merge_stores(folder / "all", parts)
    with edited(parts[2]) as db:
        db.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    with pytest.raises(InputError, match=r"part-3.runs\.sqlite was written by another version"):
        merge_stores(folder / "all", [parts[0], parts[2]])
    (parts[0] / FILE).write_bytes(b"")
    with pytest.raises(InputError, match=r"part-1.runs\.sqlite has no runs yet"):
        merge_stores(folder / "all", parts[:1])
    assert not (folder / "all").exists()


def test_a_store_is_not_merged_into_itself(folder, parts, monkeypatch):
    monkeypatch.chdir(folder)
    for same in (parts[0], Path("part-1"), folder / "part-2" / ".." / "part-1"):
        with pytest.raises(
            InputError, match=r"'.*part-1' is the store to merge into: leave it out"
        ):
            merge_stores(parts[0], [parts[1], same])
    assert len(_keys(parts[0])) < RUNS / 2


@posix
def test_a_source_in_a_read_only_folder(made):
    with TemporaryDirectory() as name:
        source, out = Path(name) / "source", Path(name) / "out"
        shutil.copytree(made / "whole", source)
        out.mkdir()
        out.chmod(0o777)
        root = os.geteuid() == 0
        Path(name).chmod(0o755)
        source.chmod(0o555)
        for file in source.iterdir():
            file.chmod(0o444)
        if root:
            os.seteuid(65534)
        try:
            assert counts(merge_stores(out, [source])) == [(RUNS, 0)]
        finally:
            if root:
                os.seteuid(0)
            source.chmod(0o755)


def test_a_source_that_a_sweep_is_writing(folder, parts):
    with Store(parts[0], create=True) as live:
        (half,) = live._db.execute("SELECT count(*) FROM runs").fetchone()
        live._db.execute("BEGIN IMMEDIATE")
        live._db.execute("UPDATE runs SET status = 'half-written'")
        assert counts(merge_stores(folder / "all", parts[:1])) == [(half, 0)]
        live._db.execute("ROLLBACK")
        merge_stores(parts[0], parts[1:2])  # as if the sweep went on
        later = merge_stores(folder / "all", parts[:1])
        assert counts(later) == [(later.runs - half, half)]


def test_a_locked_store(folder, parts, monkeypatch):
    monkeypatch.setattr("fedac.experiments.store.BUSY_SECONDS", 0.1)
    with Store(folder / "all", create=True) as store:
        store._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match=r"all.runs\.sqlite is locked by another process: try"):
            merge_stores(folder / "all", parts)
        store._db.execute("ROLLBACK")
        assert merge_stores(folder / "all", parts).runs == RUNS


def test_odd_names(folder, parts):
    odd = parts[0].rename(folder / "50% of ?#'it' & é")
    assert merge_stores(folder / "all ?#", [odd]).runs == len(_keys(odd))


KILL = """
import os, signal, sqlite3, sys
from fedac.experiments import merge

def kill(statement):
    global left
    if statement.strip().startswith(sys.argv[1]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def traced(path, stack):
    db = open_to_write(path, stack)
    db.set_trace_callback(kill)
    return db

open_to_write, merge.open_to_write = merge.open_to_write, traced
left = int(sys.argv[2])
merge.merge_stores(sys.argv[3], sys.argv[4:])
"""


@posix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "time"),
    [("BEGIN", 1), ("INSERT INTO main.traces", 1), ("COMMIT", 1), ("ATTACH", 2), ("COMMIT", 2),
     ("INSERT INTO main.runs", 3), ("DETACH", 3)],
)  # fmt: skip
def test_killed(folder, parts, statement, time, tmp_path):
    arguments = [statement, str(time), str(folder / "all"), *map(str, parts)]
    done = subprocess.run([sys.executable, "-c", KILL, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL
    # Whole sources, or nothing of them.
    kept = time if statement == "DETACH" else time - 1
    expected = set().union(*map(_keys, parts[:kept]))
    assert _keys(folder / "all") == expected
    again = merge_stores(folder / "all", parts)
    assert [each.added == 0 for each in again.joined] == [at < kept for at in range(PARTS)]
    assert exported(folder / "all", tmp_path) == exported(folder / "whole", tmp_path)
    merge_stores(folder / "unhurt", parts)
    assert_same(content(folder / "all"), content(folder / "unhurt"))
