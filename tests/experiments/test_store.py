"""The store: what goes in comes out, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest

from fedac import __version__
from fedac.errors import InputError
from fedac.experiments import store as module
from fedac.experiments.grid import Config
from fedac.experiments.store import FILE, SCHEMA, Outcome, Store

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and permissions")

CONFIG = Config(
    dataset="tiny",
    data_hash="0" * 64,
    l2=1e-3,
    algorithm="fedavg",
    M=4,
    K=2,
    T=8,
    eta=0.1,
    seed=1,
    record_every=4,
    precision="float32",
)
OUTCOME = Outcome(
    status="ok",
    steps=(0, 4, 8),
    losses=(0.7, 0.1, 0.3),
    f_star=0.05,
    megabytes_per_worker=0.001,
    n_samples=60,
    n_features=12,
    seconds=0.01,
)
GROUP = [(replace(CONFIG, eta=eta), OUTCOME) for eta in (10.0, 0.2, 0.1)]
NEXT_GROUP = [(replace(config, K=4), outcome) for config, outcome in GROUP]


@pytest.fixture
def folder(tmp_path):
    """Give a folder with a store of one group."""
    with Store(tmp_path / "out", create=True) as store:
        assert store.add(GROUP) == 3
    return tmp_path / "out"


@contextmanager
def read_only(folder):
    """Take away the right to write to a folder, also from root."""
    root = os.geteuid() == 0
    folder.chmod(0o555)
    for file in folder.iterdir():
        file.chmod(0o444)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_round_trip(folder):
    with Store(folder) as store:
        frame, traces, info = store.frame(), store.traces(), store.info()
    assert list(frame) == [
        "key", "dataset", "l2", "algorithm", "M", "K", "T", "eta", "seed", "status", "best_loss",
        "final_loss", "best_suboptimality", "final_suboptimality", "trained_loss", "f_star", "data_hash",
        "megabytes_per_worker", "n_samples", "n_features", "record_every", "precision", "seconds",
        "version", "created",
    ]  # fmt: skip
    assert list(frame.eta) == [0.1, 0.2, 10.0]
    row = frame.iloc[0]
    assert (row.key, row.dataset, row.M, row.K, row["T"]) == (CONFIG.key, "tiny", 4, 2, 8)
    assert (row.best_loss, row.final_loss, row.trained_loss) == (0.1, 0.3, 0.1)
    assert (row.best_suboptimality, row.final_suboptimality) == (0.1 - 0.05, 0.3 - 0.05)
    assert row.version == __version__
    assert pd.Timestamp(row.created).tzinfo is not None
    ours = traces[traces.key == CONFIG.key]
    assert list(ours.step) == [0, 4, 8]
    assert list(ours.loss) == [0.7, 0.1, 0.3]
    assert (info["runs"], info["diverged"], info["gradient_queries"]) == (3, 0, 3 * 4 * 8)
    assert info["seconds"] == pytest.approx(0.03)
    assert (info["seeds"], info["versions"]) == ([1], [__version__])
    assert info["machines"][0]["cores"] == os.cpu_count()


def test_an_empty_store_has_all_columns(folder, tmp_path):
    with Store(tmp_path / "empty", create=True) as store, Store(folder) as full:
        assert list(store.frame()) == list(full.frame())
        assert store.info()["runs"] == 0
        assert store.info()["machines"] == []
        assert store.add([]) == 0


def test_nothing_is_overwritten(folder):
    other = replace(OUTCOME, losses=(9.0, 9.0, 9.0))
    with Store(folder, create=True) as store:
        before = store.frame()
        assert store.add([(config, other) for config, _ in GROUP]) == 0
        pd.testing.assert_frame_equal(store.frame(), before)
        # Another configuration is another run beside it.
        assert store.add([(replace(CONFIG, precision="float64"), other)]) == 1
        assert len(store.frame()) == 4
        assert len(store.traces()) == 4 * 3


def test_missing_keeps_the_order(folder):
    wanted = [replace(CONFIG, eta=eta) for eta in (3.0, 0.1, 1.0, 10.0)]
    with Store(folder) as store:
        assert [config.eta for config in store.missing(wanted)] == [3.0, 1.0]


def test_a_group_is_all_or_nothing(folder):
    broken = replace(OUTCOME, f_star=float("nan"))
    with Store(folder, create=True) as store:
        with pytest.raises(InputError, match="NOT NULL"):
            store.add([*NEXT_GROUP, (replace(CONFIG, K=8), broken)])
        assert len(store.frame()) == 3
        assert store.add(NEXT_GROUP) == 3


def test_csv(folder, tmp_path):
    path = tmp_path / "runs.csv"
    with Store(folder) as store:
        store.export_csv(path)
    lines = path.read_bytes().split(b"\n")
    assert lines[0] == (
        b"dataset,l2,algorithm,M,K,T,eta,seed,status,best_loss,final_loss,"
        b"best_suboptimality,final_suboptimality"
    )
    assert lines[1] == b"tiny,0.001,fedavg,4,2,8,0.1,1,ok,0.1,0.3,0.05,0.25"
    assert len(lines) == 5
    assert lines[-1] == b""


def test_what_diverged_has_no_final_loss(folder, tmp_path):
    diverged = replace(OUTCOME, status="diverged", steps=(0, 4), losses=(0.7, 9.0))
    with Store(folder, create=True) as store:
        store.add([(replace(CONFIG, eta=20.0), diverged)])
        last = store.frame().iloc[-1]
        assert store.export_csv(tmp_path / "runs.csv") == 4
    assert last.best_loss == 0.7
    assert pd.isna(last.final_loss)
    assert pd.isna(last.final_suboptimality)
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert lines[-1].startswith("tiny,0.001,fedavg,4,2,8,20.0,1,diverged,0.7,,0.6")
    assert lines[-1].endswith(",")


def test_csv_does_not_depend_on_the_order_of_writing(tmp_path):
    texts = []
    for name, order in (("a", [GROUP, NEXT_GROUP]), ("b", [NEXT_GROUP[::-1], GROUP[::-1]])):
        with Store(tmp_path / name, create=True) as store:
            for group in order:
                store.add(group)
            store.export_csv(tmp_path / f"{name}.csv")
        texts.append((tmp_path / f"{name}.csv").read_bytes())
    assert texts[0] == texts[1]


def test_a_failed_export_leaves_the_old_file(folder, tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"
    path.write_text("old")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with Store(folder) as store:
        monkeypatch.setattr(module.csv, "writer", full)
        with pytest.raises(InputError, match="No space left on device"):
            store.export_csv(path)
        assert path.read_text() == "old"
        assert sorted(tmp_path.iterdir()) == [folder, path]
        with pytest.raises(InputError, match=r"cannot write '.*': No such file"):
            store.export_csv(tmp_path / "gone" / "runs.csv")
        with pytest.raises(InputError, match="it is a directory"):
            store.export_csv(tmp_path)


def test_parquet(folder, tmp_path):
    pytest.importorskip("pyarrow")
    with Store(folder) as store:
        store.export_parquet(tmp_path / "runs.parquet")
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), store.frame())


def test_parquet_without_pyarrow(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Store(folder) as store, pytest.raises(InputError, match=r"pip install 'fedac\[parquet\]'"):
        store.export_parquet(tmp_path / "runs.parquet")


def test_no_store(tmp_path):
    with pytest.raises(InputError, match=r"no sweep in '.*gone'.*fedac sweep FILE\.toml --out"):
        Store(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("create", [False, True])
def test_garbage(tmp_path, create):
    garbage = b"this is no database" * 1000
    (tmp_path / FILE).write_bytes(garbage)
    with pytest.raises(InputError, match=r"runs\.sqlite is damaged .*left as it is"):
        Store(tmp_path, create=create)
    assert (tmp_path / FILE).read_bytes() == garbage


@pytest.mark.parametrize("create", [False, True])
def test_damage_in_the_middle(folder, create):
    content = bytearray((folder / FILE).read_bytes())
    content[4096 : 4096 + 2048] = b"\xa5" * 2048
    (folder / FILE).write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        Store(folder, create=create)
    assert (folder / FILE).read_bytes() == content


@pytest.mark.parametrize("create", [False, True])
def test_a_newer_schema(folder, create):
    db = sqlite3.connect(folder / FILE)
    db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    content = (folder / FILE).read_bytes()
    with pytest.raises(InputError, match=r"newer fedac \(schema 2, this one knows 1\); upgrade"):
        Store(folder, create=create)
    assert (folder / FILE).read_bytes() == content


@pytest.mark.parametrize("create", [False, True])
def test_the_database_of_another_program(tmp_path, create):
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("CREATE TABLE bookmarks (url)")
    db.close()
    with pytest.raises(InputError, match="another program"):
        Store(tmp_path, create=create)


def test_killed_before_the_tables_were_made(tmp_path):
    (tmp_path / FILE).touch()
    with pytest.raises(InputError, match="holds no runs yet"):
        Store(tmp_path)
    with Store(tmp_path, create=True) as store:
        assert store.add(GROUP) == 3


@posix
def test_a_read_only_directory():
    import_module("fedac.experiments.bench")  # while its files can be read
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Store(folder, create=True) as store:
            store.add(GROUP)
        with read_only(folder):
            with Store(folder) as store:
                assert len(store.frame()) == 3
            with pytest.raises(InputError, match=r"cannot be opened or written \(.*denied\)"):
                Store(folder, create=True)


@posix
def test_a_read_only_directory_of_a_sweep_that_was_killed():
    with TemporaryDirectory() as name:
        folder = Path(name)
        kill_self = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        assert _in_a_process(f"store.add(GROUP); {kill_self}", folder) == -signal.SIGKILL
        assert (folder / f"{FILE}-wal").stat().st_size > 0
        (folder / f"{FILE}-shm").unlink()
        with read_only(folder), Store(folder) as store:
            assert len(store.frame()) == 3


def test_a_full_disk(folder):
    with Store(folder, create=True) as store:
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        many = [(replace(CONFIG, seed=seed), OUTCOME) for seed in range(2, 200)]
        with pytest.raises(InputError, match="the disk is full; what was finished is kept"):
            store.add(many)
        assert len(store.frame()) == 3
        store._db.execute("PRAGMA max_page_count = 1000000")
        assert store.add(many) == 198


def test_a_store_that_stays_locked(folder, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with Store(folder, create=True) as store, Store(folder, create=True) as other:
        other._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match=r"locked by another process for 0\.1 seconds"):
            store.add(NEXT_GROUP)
        other._db.execute("ROLLBACK")
        assert store.add(NEXT_GROUP) == 3


def test_readers_do_not_write(folder):
    with Store(folder) as store, pytest.raises(InputError, match="readonly"):
        store.add(NEXT_GROUP)


@posix
@pytest.mark.parametrize("statement", ["BEGIN", "INSERT INTO traces VALUES (5", "COMMIT"])
def test_killed_in_a_transaction(folder, statement):
    code = f"""
def kill(statement):
    if statement.strip().startswith({statement!r}):
        os.kill(os.getpid(), signal.SIGKILL)
store._db.set_trace_callback(kill)
store.add(NEXT_GROUP)
"""
    assert _in_a_process(code, folder) == -signal.SIGKILL
    with Store(folder, create=True) as store:
        assert len(store.frame()) == 3
        assert len(store.missing([config for config, _ in NEXT_GROUP])) == 3
        assert store.add(NEXT_GROUP) == 3
        assert len(store.traces()) == 6 * 3


@posix
def test_claims_end_with_their_process(folder):
    with Store(folder, create=True) as store:
        with store.claim("group", wait=False) as ours:
            assert ours
            claim = "with store.claim('group', wait=False) as ours: sys.exit(3 if ours else 4)"
            assert _in_a_process(claim, folder) == 4
        die = "store.claim('group', wait=False).__enter__(); os._exit(5)"
        assert _in_a_process(die, folder) == 5
        with store.claim("group", wait=False) as ours:
            assert ours


def _in_a_process(code: str, folder: Path) -> int:
    """Run some code with a store open, in a process of its own; return its exit code."""
    setting = f"""
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("this", {__file__!r})
this = importlib.util.module_from_spec(spec)
spec.loader.exec_module(this)
GROUP, NEXT_GROUP = this.GROUP, this.NEXT_GROUP
store = this.Store({str(folder)!r}, create=True)
"""
    return subprocess.run([sys.executable, "-c", setting + code], check=False).returncode
