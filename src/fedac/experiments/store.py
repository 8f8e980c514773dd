# SPDX-License-Identifier: Apache-2.0
"""The store: every finished run of a sweep, with its trace, in one SQLite file.

A group of runs is committed in one transaction, so a sweep that is killed loses at most the groups
it was running. A run is found by its key (`RunSpec.key`) and never overwritten.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from fedac import __version__
from fedac.errors import InputError, NetworkFileSystemWarning
from fedac.experiments.summary import records, with_unique_names
from fedac.experiments.workload import FURTHER_METRICS, Outcome, queries
from fedac.federation.federation import taking_part
from fedac.federation.link import megabytes_sent
from fedac.federation.spec import RunSpec, stored_options
from fedac.paths import is_network
from fedac.simulation.result import metric_column

if TYPE_CHECKING:
    import pandas as pd
if sys.platform != "win32":
    import fcntl

FILE = "runs.sqlite"
# Another sweep locks the database for the milliseconds of a commit, never for long.
BUSY_SECONDS = 60.0

DAMAGED = (
    "is damaged and was left unchanged: recover its runs with sqlite3's .recover, or use another "
    "directory"
)
UNUSABLE = "cannot be opened or written: check its permissions, or use another directory"
# By the beginning of the error's name.
PROBLEMS = {
    "SQLITE_FULL": "cannot grow: the disk is full; finished runs are kept, free some space",
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_NOTADB": DAMAGED,
    "SQLITE_READONLY": UNUSABLE,
    "SQLITE_CANTOPEN": UNUSABLE,
    "SQLITE_BUSY": "is locked by another process: try again later",
    "OSError": UNUSABLE,
}
# `spec` is the run as JSON (`RunSpec.stored`), so a new option needs no new column. In a trace,
# NULL means that there is no test set. `metrics` has the traces of its further metrics as JSON.
TABLES = """
CREATE TABLE origins (
    id INTEGER PRIMARY KEY, version TEXT NOT NULL, machine TEXT NOT NULL, UNIQUE (version, machine)
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, spec TEXT NOT NULL,
    status TEXT NOT NULL, best_loss REAL NOT NULL, final_loss REAL NOT NULL, f_star REAL NOT NULL,
    bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, minibatch INTEGER NOT NULL,
    n_samples INTEGER NOT NULL, n_features INTEGER NOT NULL, seconds REAL NOT NULL,
    created TEXT NOT NULL, origin INTEGER NOT NULL REFERENCES origins, metrics TEXT
);
CREATE TABLE traces (
    run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, loss REAL NOT NULL,
    test_loss REAL, test_accuracy REAL, PRIMARY KEY (run, step)
) WITHOUT ROWID
"""
# SQLite's user_version: a store with other tables has another number.
LAYOUT = 10

Origin = tuple[str, str]  # the version of fedac and the machine, as JSON
Best = tuple[float, str, float]  # suboptimality, algorithm and eta of a run
# The score of a run, as `Run.trained_loss`: the start point does not count.
TRAINED = """
CASE status WHEN 'ok' THEN (SELECT min(loss) FROM traces WHERE run = runs.id AND step > 0) END
"""
# The model at the end, on the test set.
AT_THE_END = """
(SELECT {0} FROM traces WHERE run = runs.id AND status = 'ok' ORDER BY step DESC LIMIT 1) AS {0}
"""
FRAME = f"""
SELECT key, spec, status, best_loss, CASE status WHEN 'ok' THEN final_loss END AS final_loss,
    f_star, bytes_up, bytes_down, minibatch, n_samples, n_features, seconds, version, created,
    {TRAINED} AS trained_loss, {AT_THE_END.format("test_loss")},
    {AT_THE_END.format("test_accuracy")}, {{metrics}} AS metrics
FROM runs JOIN origins ON origin = origins.id
"""
# Sort order of a table. Of two runs that differ in their test sets only, the tested one comes
# first. Two data sets may share a name, so the key comes last.
ORDER = ["dataset", "l2", "algorithm", "M", "K", "T", "eta", "seed", "split", "participation",
         "batch", "test", "key"]  # fmt: skip
# First columns of a table; all other options follow, then the test set.
COLUMNS = [
    "key", "dataset", "l2", "algorithm", "M", "K", "T", "eta", "seed", "status", "best_loss",
    "final_loss", "best_suboptimality", "final_suboptimality", "f_star", "megabytes_per_worker",
    "n_samples", "n_features", "record_every", "precision", "seconds", "version", "created",
    "trained_loss", "data_hash", "mu",
]  # fmt: skip
# Columns that a table does not show, and the columns that costs are computed from.
HASHES = ["fingerprint", "rows_hash", "split_hash", "test_hash"]
TRAFFIC = ["bytes_up", "bytes_down", "minibatch"]
# The parts of an outcome that are columns.
OUTCOME = ("status", "f_star", *TRAFFIC, "n_samples", "n_features", "seconds")
# Columns that may consist of nulls.
FLOATS = ["final_loss", "trained_loss", "test_loss", "test_accuracy"]
# The metrics on the test set, in this order; all but the first two only where there are values.
TESTS = ["test_loss", "test_accuracy", *map(metric_column, FURTHER_METRICS)]


class StoredCurve(NamedTuple):
    """The suboptimality along a run, and the metrics on its test set."""

    status: str
    steps: list[int]
    suboptimality: list[float]
    metrics: dict[str, list[float]]


class Store:
    """All runs in a directory, for reading or, with `create`, for writing too.

    With `create`, the directory and its ``runs.sqlite`` are created if missing. A store that is
    damaged, of another layout, or not writable raises `InputError`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> run = RunSpec(dataset="tiny", algorithm="fedavg", M=4, local_steps=2, steps=8)
    >>> outcome = Outcome(
    ...     status="ok", steps=(0, 8), losses=(0.75, 0.5), f_star=0.25, bytes_up=48, bytes_down=48,
    ...     n_samples=60, n_features=12, seconds=0.01,
    ... )
    >>> with TemporaryDirectory() as folder, Store(folder, create=True) as store:
    ...     store.add([(run, outcome)]), store.add([(run, outcome)])
    ...     store.missing([run])
    ...     store.best([run.key])
    (1, 0)
    []
    (0.25, 'fedavg', 0.5)
    """

    def __init__(self, directory: str | Path, create: bool = False) -> None:
        self.path = Path(directory) / FILE
        with ExitStack() as stack, explained(self.path):
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if is_network(self.path.parent):
                    warnings.warn(
                        f"'{directory}' is on a network file system, where SQLite's locks do not "
                        "hold between machines: use one store per machine with --shard, and join "
                        "them with 'fedac merge'",
                        NetworkFileSystemWarning,
                        stacklevel=2,
                    )
                self._lock = stack.enter_context(self.path.with_name("runs.lock").open("ab"))
                # SQLite does not wait when two processes change the journal's mode at once.
                with self.claim("open", wait=True):
                    self._db = open_to_write(self.path, stack)
            elif self.path.is_file():
                self._db, _ = _open_unchanged(self.path, stack)
                self._db.execute("PRAGMA query_only = ON")
            else:
                raise InputError(
                    f"no sweep in '{directory}': there is no {FILE}; "
                    f"create one with 'fedac sweep FILE.toml --out {directory}'"
                )
            self._metrics = "metrics" if "metrics" in run_columns(self._db) else "NULL"
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def missing(self, runs: Sequence[RunSpec]) -> list[RunSpec]:
        """Return the runs that are not in the store, in the order given."""
        found = {key for (key,) in self._select("key FROM runs", [run.key for run in runs])}
        return [run for run in runs if run.key not in found]

    def best(self, keys: Iterable[str]) -> Best | None:
        """Return suboptimality, algorithm and eta of the best run; None if all diverged."""
        # SQLite takes the other columns from the row of the minimum.
        [(suboptimality, text)] = self._select(f"min({TRAINED} - f_star), spec FROM runs", keys)
        if suboptimality is None:
            return None
        spec = json.loads(text)
        return suboptimality, spec["algorithm"], spec["eta"]

    def backend_of(self, data_hash: str) -> str | None:
        """Return the back end of the first stored runs of a network; None if there are none."""
        query = (
            "SELECT json_extract(spec, '$.backend') AS backend FROM runs WHERE "
            "json_extract(spec, '$.data_hash') = ? AND backend IS NOT NULL ORDER BY id LIMIT 1"
        )
        with explained(self.path):
            found = self._db.execute(query, (data_hash,)).fetchone()
        return None if found is None else str(found[0])

    def add(self, results: Sequence[tuple[RunSpec, Outcome]], origin: Origin | None = None) -> int:
        """Store some runs and their traces, all or none; return how many are new.

        `origin` is the machine that made them (default: this one).
        """
        if not results:
            return 0
        origin = origin or this_origin()
        created = datetime.now(UTC).isoformat(timespec="seconds")
        new = 0
        with explained(self.path), self._db as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR IGNORE INTO origins (version, machine) VALUES (?, ?)", origin)
            query = "SELECT id FROM origins WHERE version = ? AND machine = ?"
            (origin_id,) = db.execute(query, origin).fetchone()
            for run, outcome in results:
                trace = (outcome.losses, outcome.test_losses, outcome.test_accuracies)
                values = {name: getattr(outcome, name) for name in OUTCOME} | {
                    "key": run.key,
                    "spec": json.dumps(run.stored(), sort_keys=True),
                    "best_loss": min(outcome.losses),
                    "final_loss": outcome.losses[-1],
                    "created": created,
                    "origin": origin_id,
                    "metrics": json.dumps(dict(outcome.metrics)) if outcome.metrics else None,
                }
                names = f"({', '.join(values)}) VALUES (:{', :'.join(values)})"
                insert = f"INSERT INTO runs {names} ON CONFLICT (key) DO NOTHING"
                inserted = db.execute(insert, values)
                if inserted.rowcount:
                    new += 1
                    points = f"INSERT INTO traces VALUES ({inserted.lastrowid}, ?, ?, ?, ?)"
                    none = (None,) * len(outcome.steps)  # where there is no test set
                    columns = (outcome.steps, *(each or none for each in trace))
                    db.executemany(points, zip(*columns, strict=True))
        return new

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per run, sorted by configuration.

        ``trained_loss`` is the score of a run: its smallest loss after at least one step, missing
        if it diverged. ``test_loss`` and ``test_accuracy`` are those at the end, as are
        ``test_auc``, ``test_log_loss``, ``test_r2`` and ``test_mae``, which exist if a run has
        them. Networks have neither ``f_star`` nor suboptimalities. ``dataset``, ``algorithm``,
        ``split`` and ``federation`` are unique: see `with_unique_names`.
        """
        runs = with_unique_names(self._table())
        last = ["test", *(name for name in TESTS if name in runs), *TRAFFIC, "federation"]
        others = [name for name in runs if name not in (*COLUMNS, *HASHES, *last)]
        return runs[[*COLUMNS, *others, *last]]

    def _table(self) -> pd.DataFrame:
        """Return a table with a row per run: what is stored of its Spec, and its results."""
        import pandas as pd

        with explained(self.path):
            query = FRAME.format(metrics=self._metrics)
            runs = pd.read_sql_query(query, self._db, dtype=dict.fromkeys(FLOATS, "float64"))
        ended = zip(runs.pop("metrics"), runs["status"], strict=True)
        found = [
            json.loads(text) if isinstance(text, str) and status == "ok" else {}
            for text, status in ended
        ]
        for name in FURTHER_METRICS:
            values = [metrics[name][-1] if name in metrics else math.nan for metrics in found]
            if not all(map(math.isnan, values)):
                runs[metric_column(name)] = values
        specs = [json.loads(text) for text in runs["spec"]]
        columns = {}
        for name, option in stored_options().items():
            column, absent = option.column or name, None if option.absent is ... else option.absent
            values = [spec.get(column, absent) for spec in specs]
            if len(option.kind) > 1:  # text in any case
                values = [str(value) for value in values]
            columns[column] = pd.Series(values, dtype=option.kind[-1])
        runs = runs.drop(columns="spec").assign(**columns)
        runs["mu"] = runs["mu"].fillna(runs["l2"])
        runs["f_star"] = runs["f_star"].mask(runs["model"] != "")  # networks have none
        for which in ("best", "final"):
            runs[f"{which}_suboptimality"] = runs[f"{which}_loss"] - runs["f_star"]
        present = [taking_part(run.participation, run.M) or run.M for run in records(runs)]
        runs["megabytes_per_worker"] = [
            megabytes_sent(run.bytes_up, run.T // run.K, present=some, M=run.M)
            for run, some in zip(records(runs), present, strict=True)
        ]
        ascending = [name != "test" for name in ORDER]
        return runs.sort_values(ORDER, ascending=ascending, ignore_index=True)

    def traces(self) -> pd.DataFrame:
        """Return the losses along all runs: key, step, loss, test_loss, test_accuracy.

        Further metrics have the same columns as in `frame`.
        """
        import pandas as pd

        columns = "key, step, loss, test_loss, test_accuracy"
        query = f"SELECT {columns} FROM runs JOIN traces ON run = runs.id ORDER BY key, step"
        types = {"test_loss": "float64", "test_accuracy": "float64"}  # nulls without a test set
        with explained(self.path):
            points = pd.read_sql_query(query, self._db, dtype=types)
            keys = self._db.execute(f"SELECT key, {self._metrics} FROM runs").fetchall()
        further = {key: json.loads(text) for key, text in keys if text}
        lengths = points.groupby("key", sort=False).size()
        for name in FURTHER_METRICS:
            if any(name in metrics for metrics in further.values()):
                found = (
                    further.get(key, {}).get(name, [math.nan] * n) for key, n in lengths.items()
                )
                points[metric_column(name)] = np.concatenate([*map(np.asarray, found)])
        return points

    def curves(self, keys: Iterable[str]) -> dict[str, StoredCurve]:
        """Return the traces of some runs by their keys."""
        found: dict[str, StoredCurve] = {}
        keys = list(keys)
        columns = "key, status, f_star, step, loss, test_loss, test_accuracy"
        joined = f"{columns} FROM runs JOIN traces ON run = runs.id"
        for key, status, f_star, step, loss, *tests in self._select(
            joined, keys, "ORDER BY run, step"
        ):
            curve = found.setdefault(key, StoredCurve(status, [], [], {}))
            curve.steps.append(step)
            curve.suboptimality.append(loss - f_star)
            for name, value in zip(("loss", "accuracy"), tests, strict=True):
                if value is not None:
                    curve.metrics.setdefault(name, []).append(value)
        for key, text in self._select(f"key, {self._metrics} FROM runs", keys):
            found[key].metrics.update(json.loads(text or "{}"))
        return found

    def info(self) -> dict[str, Any]:
        """Return the origin of the runs: machines, versions, seconds in the engine, queries."""
        runs = self._table()
        query = "SELECT version, machine FROM origins WHERE id IN (SELECT origin FROM runs)"
        with explained(self.path):
            origins = self._db.execute(f"{query} ORDER BY id").fetchall()
        return {
            "runs": len(runs),
            "diverged": int((runs["status"] == "diverged").sum()),
            "seconds": float(runs["seconds"].sum()),
            "gradient_queries": sum(queries(run, run.n_samples) for run in records(runs)),
            "seeds": sorted(runs["seed"].unique().tolist()),
            "first": runs["created"].min(),
            "last": runs["created"].max(),
            "versions": list(dict.fromkeys(version for version, _ in origins)),
            "machines": [json.loads(each) for each in dict.fromkeys(m for _, m in origins)],
        }

    @contextmanager
    def claim(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Yield whether this process holds a lock until the block ends; two sweeps share the work.

        The lock of a process that dies is released. Windows has no such locks, so every claim
        succeeds: a run may be computed twice, but is stored once.
        """
        if sys.platform == "win32":
            yield True
            return
        offset = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)
        ours = True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, offset)
        except OSError as error:
            ours = error.errno not in (errno.EACCES, errno.EAGAIN)
        try:
            yield ours
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, offset)

    def _select(self, columns: str, keys: Iterable[str], more: str = "") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} WHERE key IN (SELECT value FROM json_each(?)) {more}"
        with explained(self.path):
            return self._db.execute(query, (json.dumps(list(keys)),)).fetchall()


@contextmanager
def open_store(folder: str | Path | None) -> Iterator[Store]:
    """Open a store in a folder, or a temporary one."""
    place = TemporaryDirectory() if folder is None else nullcontext(folder)
    with place as path, Store(path, create=True) as store:
        yield store


def attach(db: sqlite3.Connection, path: Path, stack: ExitStack) -> None:
    """Let `db` read another database, as `source`, without changing it; `stack` detaches it."""
    # It stays open: a connection that cannot write relies on the files of one that can.
    _, file = _open_unchanged(path, stack)
    db.execute("ATTACH ? AS source", (f"{file.absolute().as_uri()}?mode=ro",))
    stack.callback(db.execute, "DETACH source")


def open_to_write(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Open a database or create it; only one process may do this at a time."""
    db, layout = _connect(path, path, stack, mode="rwc")
    db.execute("PRAGMA journal_mode = WAL")
    # A write, even an empty one, fails now instead of after the first group.
    with db:
        db.execute("BEGIN IMMEDIATE")
        if layout == 0:
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {LAYOUT}")
        elif "metrics" not in run_columns(db):
            db.execute("ALTER TABLE runs ADD COLUMN metrics TEXT")
    return db


def run_columns(db: sqlite3.Connection, schema: str = "main") -> list[str]:
    """Return the columns of the table of runs; earlier versions had no `metrics`."""
    return [name for _, name, *_ in db.execute(f"PRAGMA {schema}.table_info(runs)")]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into one line: the file, what is wrong, and why."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        code = getattr(error, "sqlite_errorname", "OSError")
        found = (text for kind, text in PROBLEMS.items() if code.startswith(kind))
        raise InputError(f"{path} {next(found, 'cannot be used')} ({error})") from None


def _open_unchanged(path: Path, stack: ExitStack) -> tuple[sqlite3.Connection, Path]:
    """Open a database that has tables; return it with its file, or a copy of that."""
    try:
        db, layout = _connect(path, path, stack)
        file = path
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        # WAL mode needs files next to the database even for reading: read a copy if the folder is
        # read-only.
        file = Path(stack.enter_context(TemporaryDirectory())) / path.name
        for name in (path.name, f"{path.name}-wal"):
            if path.with_name(name).exists():
                shutil.copyfile(path.with_name(name), file.with_name(name))
        db, layout = _connect(path, file, stack)
    if layout == 0:
        raise InputError(f"{path} has no runs yet")
    return db, file


def _connect(
    path: Path, file: Path, stack: ExitStack, mode: str = "rw"
) -> tuple[sqlite3.Connection, int]:
    """Open a database, or a copy of it in `file`; return it with its layout, 0 if it is empty."""
    address = f"{file.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    stack.callback(db.close)
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    if layout not in (0, LAYOUT):
        raise InputError(
            f"{path} was written by another version of fedac (layout {layout}, this one has "
            f"{LAYOUT}): use that version, or another directory"
        )
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise InputError(f"{path} {DAMAGED} ({' '.join(state.split())})")
    if layout == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise InputError(f"{path} is the database of another program; use another directory")
    return db, layout


def this_origin() -> Origin:
    """Return the version and the machine of this process, which mark its runs."""
    return __version__, json.dumps(describe_machine())


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the versions of Python, NumPy and Numba."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba")},
    }
