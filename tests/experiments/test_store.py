# SPDX-License-Identifier: Apache-2.0
"""The store: runs come out as they went in, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest

from fedac import __version__
from fedac.errors import InputError
from fedac.experiments import sweep
from fedac.experiments.export import write_csv, write_traces
from fedac.experiments.grid import make_grid
from fedac.experiments.store import FILE, LAYOUT, Store
from fedac.experiments.workload import Outcome
from fedac.federation.spec import RunSpec

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and permissions")

CONFIG = RunSpec(
    dataset="tiny",
    data_hash="0" * 64,
    l2=1e-3,
    algorithm="fedavg",
    M=4,
    local_steps=2,
    steps=8,
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
    bytes_up=48,
    bytes_down=48,
    n_samples=60,
    n_features=12,
    seconds=0.01,
)
DATA = Path(__file__).parent / "data"
GROUP = [(replace(CONFIG, eta=eta), OUTCOME) for eta in (10.0, 0.2, 0.1)]
NEXT_GROUP = [(replace(config, local_steps=4), outcome) for config, outcome in GROUP]


def before_costs(path):
    """Return a CSV file without its last columns, which came later."""
    return b"".join(line.rsplit(b",", 3)[0] + b"\n" for line in path.read_bytes().splitlines())


@pytest.fixture
def folder(tmp_path):
    """Give a folder with a store of one group."""
    with Store(tmp_path / "out", create=True) as store:
        assert store.add(GROUP) == 3
    return tmp_path / "out"


@contextmanager
def read_only(folder):
    """Make a folder read-only, even for root."""
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
        "final_loss", "best_suboptimality", "final_suboptimality", "f_star",
        "megabytes_per_worker", "n_samples", "n_features", "record_every", "precision", "seconds",
        "version", "created", "trained_loss", "data_hash", "mu", "model", "objective", "intercept",
        "backend", "split", "split_seed", "participation", "batch", "weighting", "mode",
        "availability", "oversample", "epochs", "decay", "wire", "timing", "test",
        "test_loss", "test_accuracy", "bytes_up", "bytes_down", "minibatch", "federation",
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
            store.add([*NEXT_GROUP, (replace(CONFIG, local_steps=8), broken)])
        assert len(store.frame()) == 3
        assert store.add(NEXT_GROUP) == 3


def test_a_diverged_run_and_the_start_point_have_no_score(folder):
    diverged = replace(OUTCOME, status="diverged", steps=(0, 4), losses=(0.01, 0.02))
    stuck = replace(OUTCOME, losses=(0.02, 9.0, 0.3))
    configs = [replace(CONFIG, eta=eta) for eta in (20.0, 30.0)]
    with Store(folder, create=True) as store:
        store.add(list(zip(configs, (diverged, stuck), strict=True)))
        *_, first, last = store.frame().itertuples()
        assert store.best([configs[0].key]) is None
        assert store.best(c.key for c in configs) == (0.3 - 0.05, "fedavg", 30.0)
    assert (first.status, first.best_loss) == ("diverged", 0.01)
    assert pd.isna([first.final_loss, first.final_suboptimality, first.trained_loss]).all()
    assert (last.best_loss, last.trained_loss) == (0.02, 0.3)


def test_options_of_the_problem(folder):
    options = {"mu": 0.5, "objective": "least-squares", "intercept": True}
    config = replace(
        CONFIG, local_steps=4, data_hash="1", fingerprint="f" * 16, mu=0.5, loss="least-squares",
        intercept=True,
    )  # fmt: skip
    with Store(folder, create=True) as store:
        assert store.add([(config, OUTCOME)]) == 1
        frame = store.frame().set_index("key")
    assert frame.loc[config.key, list(options)].to_dict() == options
    usual = {"mu": CONFIG.l2, "objective": "logistic", "intercept": False}
    assert frame.loc[CONFIG.key, list(options)].to_dict() == usual


def test_options_of_clients_and_test_sets(folder):
    options = {
        "split": "label", "split_seed": 3, "participation": 0.5, "batch": "full",
        "weighting": "uniform", "decay": "1/r", "test": "tiny.t",
    }  # fmt: skip
    config = replace(CONFIG, split_hash="5" * 64, test_hash="6" * 64, **options)
    tested = replace(OUTCOME, test_losses=(0.9, 0.2, 0.4), test_accuracies=(0.5, 0.75, 0.625))
    diverged = replace(tested, status="diverged")
    with Store(folder, create=True) as store:
        store.add([(config, tested), (replace(config, eta=9.0), diverged)])
        frame, traces = store.frame().set_index("key"), store.traces()
        info = store.info()
    assert frame.loc[config.key, list(options)].to_dict() == options
    assert frame.loc[config.key, "federation"] == (
        "split label, split seed 3, participation 0.5, batch full, weighting uniform, decay 1/r"
    )
    # At the end, like the final loss: a diverged run has none.
    assert tuple(frame.loc[config.key, ["test_loss", "test_accuracy"]]) == (0.4, 0.625)
    assert frame.loc[replace(config, eta=9.0).key, ["test_loss", "test_accuracy"]].isna().all()
    ours = traces[traces.key == config.key]
    assert list(ours.test_loss) == [0.9, 0.2, 0.4]
    assert list(ours.test_accuracy) == [0.5, 0.75, 0.625]
    # Half of the clients, so half of the rows, in each of 8 steps; and the runs of before.
    assert info["gradient_queries"] == 2 * 30 * 8 + 3 * 4 * 8
    usual = frame.loc[CONFIG.key]
    assert (usual.split, usual.split_seed, usual.participation, usual.batch) == ("", 0, 1.0, "1")
    assert (usual.weighting, usual.decay, usual.test, usual.federation) == ("examples", "", "", "")
    assert pd.isna([usual.test_loss, usual.test_accuracy]).all()
    assert traces[traces.key == CONFIG.key].test_loss.isna().all()


def test_further_metrics_of_a_test_set(folder):
    """They have columns if some run has values, also in a store of an earlier version."""
    config = replace(CONFIG, test="tiny.t", test_hash="6" * 64)
    metrics = {"r2": (-1.0, 0.25, 0.5), "mae": (3.0, 2.0, 1.5)}
    tested = replace(OUTCOME, test_losses=(9.0, 4.0, 2.0), metrics=metrics)
    diverged = replace(config, eta=9.0), replace(tested, status="diverged")
    with sqlite3.connect(folder / FILE) as db:
        db.execute("ALTER TABLE runs DROP COLUMN metrics")
    with Store(folder) as store:
        before, curves = store.traces(), store.curves([CONFIG.key])
        assert "test_r2" not in {*store.frame(), *before}
    assert curves[CONFIG.key].metrics == {}
    with Store(folder, create=True) as store:
        assert store.add([(config, tested), diverged]) == 2
        frame, traces = store.frame().set_index("key"), store.traces()
        (curve,) = store.curves([config.key]).values()
    assert curve.metrics == {"loss": [9.0, 4.0, 2.0], "r2": [-1.0, 0.25, 0.5], "mae": [3, 2, 1.5]}
    assert tuple(frame.loc[config.key, ["test_r2", "test_mae"]]) == (0.5, 1.5)
    assert frame.loc[[diverged[0].key, CONFIG.key], "test_r2"].isna().all()
    assert "test_auc" not in frame
    assert list(traces.loc[traces.key == diverged[0].key, "test_mae"]) == [3.0, 2.0, 1.5]
    assert traces.loc[traces.key == CONFIG.key, "test_mae"].isna().all()
    pd.testing.assert_frame_equal(
        traces.loc[~traces.key.isin([config.key, diverged[0].key]), list(before)].reset_index(
            drop=True
        ),
        before,
    )


def old_grid(**values):
    defaults = {
        "name": "old",
        "dataset": str(DATA / "small"),
        "l2": 1e-2,
        "algorithms": ("fedac-i", "fedac-ii", "fedac-vanilla", "fedavg", "fedavg-weighted",
                       "mb-sgd", "mb-ac-sgd"),
        "workers": (4,),
        "local_steps": (1, 4),
        "steps": 16,
        "record_every": 8,
        "eta": (0.1, 1.0, 90.0),
    }  # fmt: skip
    return make_grid(**defaults | values)


def export(folder, tmp_path, *grids):
    """Run grids and return what is exported of them: runs and traces."""
    with Store(folder, create=True) as store:
        for grid in grids:
            sweep.run(grid, store)
        for write, name in ((write_csv, "runs.csv"), (write_traces, "traces.csv")):
            write(store, tmp_path / name)
    return [before_costs(tmp_path / name) for name in ("runs.csv", "traces.csv")]


def test_runs_keys_and_exports_never_change(tmp_path):
    """These files were written by the first versions; a trace has the keys of its run."""
    usual = old_grid(algorithms=("fedac-i", "mb-sgd"), seeds=(1, 2))
    other = old_grid(
        algorithms=("fedavg",), seeds=(1, 2), eta=(0.1,), mu=0.05, loss="squared-hinge",
        intercept=True, precision="float64",
    )  # fmt: skip
    runs, traces = export(tmp_path / "second", tmp_path, usual, other)
    assert runs == (DATA / "runs-2.csv").read_bytes()
    assert traces == (DATA / "traces-2.csv").read_bytes()
    runs, _ = export(tmp_path / "first", tmp_path, old_grid())
    assert runs.splitlines() == (DATA / "runs-1.csv").read_bytes().splitlines()[:43]
    with Store(tmp_path / "first", create=True) as store:
        assert sweep.run(old_grid(mu=0.02, eta=(0.1,)), store).new == 14


def test_no_store(tmp_path):
    with pytest.raises(InputError, match=r"no sweep in '.*gone'.*fedac sweep FILE\.toml --out"):
        Store(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("create", [False, True])
def test_garbage(tmp_path, create):
    garbage = b"not a database" * 1000
    (tmp_path / FILE).write_bytes(garbage)
    with pytest.raises(InputError, match=r"runs\.sqlite is damaged and was left unchanged"):
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
@pytest.mark.parametrize("layout", [4, LAYOUT + 1])
def test_another_layout(folder, create, layout):
    db = sqlite3.connect(folder / FILE)
    db.execute(f"PRAGMA user_version = {layout}")
    db.close()
    content = (folder / FILE).read_bytes()
    with pytest.raises(InputError, match=rf"another version of fedac \(layout {layout}, this one"):
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
    with pytest.raises(InputError, match="has no runs yet"):
        Store(tmp_path)
    with Store(tmp_path, create=True) as store:
        assert store.add(GROUP) == 3


@posix
def test_a_read_only_directory():
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Store(folder, create=True) as store:
            store.add(GROUP)
        with read_only(folder):
            with Store(folder) as store:
                assert len(store.frame()) == 3
            with pytest.raises(InputError, match=r"cannot be opened or written: .*denied"):
                Store(folder, create=True)


@posix
@pytest.mark.slow
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
        with pytest.raises(InputError, match="the disk is full; finished runs are kept"):
            store.add(many)
        assert len(store.frame()) == 3
        store._db.execute("PRAGMA max_page_count = 1000000")
        assert store.add(many) == 198


def test_a_store_that_stays_locked(folder, monkeypatch):
    monkeypatch.setattr("fedac.experiments.store.BUSY_SECONDS", 0.1)
    with Store(folder, create=True) as store, Store(folder, create=True) as other:
        other._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match="is locked by another process: try"):
            store.add(NEXT_GROUP)
        other._db.execute("ROLLBACK")
        assert store.add(NEXT_GROUP) == 3


def test_readers_do_not_write(folder):
    with Store(folder) as store, pytest.raises(InputError, match="readonly"):
        store.add(NEXT_GROUP)


@posix
@pytest.mark.slow
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
@pytest.mark.slow
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
    """Run some code with an open store in another process; return its exit code."""
    setting = f"""
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("this", {__file__!r})
this = importlib.util.module_from_spec(spec)
spec.loader.exec_module(this)
GROUP, NEXT_GROUP = this.GROUP, this.NEXT_GROUP
store = this.Store({str(folder)!r}, create=True)
"""
    return subprocess.run([sys.executable, "-c", setting + code], check=False).returncode
