"""The store: every finished run of a sweep, with its trace, in one SQLite file.

A group of runs is committed in one transaction, so a process may die at any instant: what was
committed stays, what was not is missing and can be asked for again. A run is found by the hash
of its configuration; nothing is ever overwritten. Figures and reports only read.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self

from fedac import __version__
from fedac.errors import InputError
from fedac.experiments.grid import Config

if TYPE_CHECKING:
    import pandas as pd

if sys.platform != "win32":
    import fcntl

FILE = "runs.sqlite"
SCHEMA = 1
# Another sweep holds the store for the milliseconds of a commit, never for long.
PATIENCE = 60.0

TABLES = """
CREATE TABLE origins (
    id INTEGER PRIMARY KEY, version TEXT NOT NULL, machine TEXT NOT NULL, UNIQUE (version, machine)
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
    dataset TEXT NOT NULL, data_hash TEXT NOT NULL, l2 REAL NOT NULL, algorithm TEXT NOT NULL,
    M INTEGER NOT NULL, K INTEGER NOT NULL, T INTEGER NOT NULL, eta REAL NOT NULL,
    seed INTEGER NOT NULL, record_every INTEGER NOT NULL, precision TEXT NOT NULL,
    status TEXT NOT NULL, best_loss REAL NOT NULL, final_loss REAL NOT NULL, f_star REAL NOT NULL,
    megabytes_per_worker REAL NOT NULL, n_samples INTEGER NOT NULL, n_features INTEGER NOT NULL,
    seconds REAL NOT NULL, created TEXT NOT NULL, origin INTEGER NOT NULL REFERENCES origins
);
CREATE TABLE traces (
    run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, loss REAL NOT NULL,
    PRIMARY KEY (run, step)
) WITHOUT ROWID;
"""
INSERT = f"""
INSERT INTO runs (
    key, {", ".join(field.name for field in fields(Config))},
    status, best_loss, final_loss, f_star, megabytes_per_worker, n_samples, n_features, seconds,
    created, origin
) VALUES ({", ".join("?" * (11 + len(fields(Config))))}) ON CONFLICT (key) DO NOTHING
"""
# What diverged has no final loss; kept is the last one before that.
FINAL = "CASE status WHEN 'ok' THEN final_loss END"
# The score of a run, as in `Run.trained_loss`.
TRAINED = (
    "CASE status WHEN 'ok' THEN (SELECT min(loss) FROM traces WHERE run = runs.id AND step > 0) END"
)
COLUMNS = (
    f"dataset, l2, algorithm, M, K, T, eta, seed, status, best_loss, {FINAL} AS final_loss, "
    f"best_loss - f_star AS best_suboptimality, {FINAL} - f_star AS final_suboptimality"
)
# The key makes the order total: two data sets may go by one name.
ORDER = "ORDER BY dataset, l2, algorithm, M, K, T, eta, seed, key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out of one run.

    Attributes
    ----------
    status : "ok" or "diverged"
        A diverged run keeps its trace up to there.
    steps, losses : tuple
        The trace: F of the output after so many steps.
    f_star : float
        F*, from which suboptimality is measured.
    megabytes_per_worker : float
        What a worker sends in all rounds together.
    n_samples, n_features : int
        The shape of the data.
    seconds : float
        The run's share of the engine's time for its group.
    """

    status: Literal["ok", "diverged"]
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    f_star: float
    megabytes_per_worker: float
    n_samples: int
    n_features: int
    seconds: float


class Store:
    """All runs in a directory, for reading or, with `create`, for adding to.

    Parameters
    ----------
    directory : path
        Holds, or shall hold, ``runs.sqlite``.
    create : bool
        Open for writing, and make what is not there yet.

    Raises
    ------
    InputError
        When there is no store, or it is damaged, newer than this program, or cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> config = Config(
    ...     dataset="tiny", data_hash="0" * 64, l2=1e-3, algorithm="fedavg", M=4, K=2, T=8,
    ...     eta=0.5, seed=1, record_every=8, precision="float32",
    ... )
    >>> outcome = Outcome(
    ...     status="ok", steps=(0, 8), losses=(0.75, 0.5), f_star=0.25, megabytes_per_worker=0.1,
    ...     n_samples=60, n_features=12, seconds=0.01,
    ... )
    >>> with TemporaryDirectory() as folder, Store(folder, create=True) as store:
    ...     store.add([(config, outcome)]), store.add([(config, outcome)])
    ...     store.missing([config])
    ...     float(store.frame().best_suboptimality[0])
    (1, 0)
    []
    0.25
    """

    def __init__(self, directory: str | Path, create: bool = False) -> None:
        self.path = Path(directory) / FILE
        with ExitStack() as stack, self._explained():
            self._db = self._open_to_write(stack) if create else self._open_to_read(stack)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def missing(self, configs: Sequence[Config]) -> list[Config]:
        """Return the configurations that are not in the store, in the order given."""
        keys = json.dumps([config.key for config in configs])
        query = "SELECT key FROM runs WHERE key IN (SELECT value FROM json_each(?))"
        with self._explained():
            stored = {key for (key,) in self._db.execute(query, (keys,))}
        return [config for config in configs if config.key not in stored]

    def add(self, results: Sequence[tuple[Config, Outcome]]) -> int:
        """Keep some runs and their traces, all or none; return how many are new."""
        if not results:
            return 0
        from fedac.experiments.machine import describe_machine

        origin = (__version__, json.dumps(describe_machine()))
        created = datetime.now(UTC).isoformat(timespec="seconds")
        new = 0
        with self._explained(), self._transaction():
            execute = self._db.execute
            execute("INSERT OR IGNORE INTO origins (version, machine) VALUES (?, ?)", origin)
            (origin_id,) = execute(
                "SELECT id FROM origins WHERE version = ? AND machine = ?", origin
            ).fetchone()
            for config, outcome in results:
                values = (
                    outcome.status, min(outcome.losses), outcome.losses[-1], outcome.f_star,
                    outcome.megabytes_per_worker, outcome.n_samples, outcome.n_features,
                    outcome.seconds, created, origin_id,
                )  # fmt: skip
                inserted = execute(INSERT, (config.key, *astuple(config), *values))
                if inserted.rowcount:
                    new += 1
                    trace = zip(outcome.steps, outcome.losses, strict=True)
                    self._db.executemany(
                        f"INSERT INTO traces VALUES ({inserted.lastrowid}, ?, ?)", trace
                    )
        return new

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per run, sorted by configuration."""
        return self._read(
            f"SELECT key, {COLUMNS}, {TRAINED} AS trained_loss, f_star, data_hash, "
            "megabytes_per_worker, n_samples, n_features, record_every, precision, seconds, "
            "version, created "
            f"FROM runs JOIN origins ON origin = origins.id {ORDER}"
        )

    def traces(self) -> pd.DataFrame:
        """Return the losses along all runs: key, step, loss."""
        return self._read(
            "SELECT key, step, loss FROM runs JOIN traces ON run = runs.id ORDER BY key, step"
        )

    def info(self) -> dict[str, Any]:
        """Say how the runs were made.

        Returns
        -------
        dict
            ``runs``, ``diverged``, ``seconds`` (in the engine), ``gradient_queries`` (M*T per
            run), ``seeds``, ``first`` and ``last`` (when), ``versions`` (of fedac) and
            ``machines`` (as `describe_machine` describes them).
        """
        query = (
            "SELECT count(*), coalesce(sum(status = 'diverged'), 0), coalesce(sum(seconds), 0.0), "
            "coalesce(sum(M * T), 0), min(created), max(created) FROM runs"
        )
        names = ("runs", "diverged", "seconds", "gradient_queries", "first", "last")
        with self._explained():
            info = dict(zip(names, self._db.execute(query).fetchone(), strict=True))
            seeds = self._db.execute("SELECT DISTINCT seed FROM runs ORDER BY seed").fetchall()
            origins = self._db.execute("SELECT version, machine FROM origins ORDER BY id")
            versions, machines = zip(*origins, strict=True) if info["runs"] else ((), ())
        return info | {
            "seeds": [seed for (seed,) in seeds],
            "versions": list(dict.fromkeys(versions)),
            "machines": [json.loads(machine) for machine in dict.fromkeys(machines)],
        }

    def export_csv(self, path: str | Path) -> int:
        """Write a line per run and return how many; equal runs give equal bytes."""
        written = 0
        with self._explained(), _written(Path(path)) as target:
            rows = self._db.execute(f"SELECT {COLUMNS} FROM runs {ORDER}")
            with target.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(column for column, *_ in rows.description)
                for written, row in enumerate(rows, start=1):  # noqa: B007
                    writer.writerow(row)
        return written

    def export_parquet(self, path: str | Path) -> int:
        """Write the table of `frame` for programs that read Parquet; return its rows."""
        try:
            import_module("pyarrow")
        except ImportError:
            raise InputError("Parquet needs pyarrow: pip install 'fedac[parquet]'") from None
        frame = self.frame()
        with _written(Path(path)) as target:
            frame.to_parquet(target, engine="pyarrow", index=False)
        return len(frame)

    @contextmanager
    def claim(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Yield whether `name` is ours until the block ends, so that two sweeps share the work.

        The system drops the claims of a process that dies. Where it has no such locks
        (Windows) everybody gets what they ask for: work may be done twice, never kept twice.
        """
        if sys.platform == "win32":
            yield True
            return
        place = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)
        ours = True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except OSError as error:
            ours = error.errno not in (errno.EACCES, errno.EAGAIN)
        try:
            yield ours
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, place)

    def _open_to_read(self, stack: ExitStack) -> sqlite3.Connection:
        if not self.path.is_file():
            raise InputError(
                f"no sweep in '{self.path.parent}': it has no {FILE}; "
                f"make one with 'fedac sweep FILE.toml --out {self.path.parent}'"
            )
        try:
            db = self._connect(stack, self.path)
            found = self._schema(db)
        except sqlite3.OperationalError as error:
            if not _code(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
            # Even to read, WAL mode needs files beside the database: in a directory that
            # cannot be written, a copy elsewhere is read instead.
            folder = stack.enter_context(TemporaryDirectory())
            for name in (FILE, f"{FILE}-wal"):
                if self.path.with_name(name).exists():
                    shutil.copyfile(self.path.with_name(name), Path(folder) / name)
            db = self._connect(stack, Path(folder) / FILE)
            found = self._schema(db)
        if found == 0:
            raise InputError(f"{self.path} holds no runs yet")
        db.execute("PRAGMA query_only = ON")
        return db

    def _open_to_write(self, stack: ExitStack) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = stack.enter_context(self.path.with_name("runs.lock").open("ab"))
        # SQLite does not wait when two processes change the journal's mode at once.
        with self.claim("open", wait=True):
            db = self._connect(stack, self.path, create=True)
            found = self._schema(db)
            db.execute("PRAGMA journal_mode = WAL")
            # Notices now, not after the first group, what cannot be written.
            with self._transaction(db):
                if found == 0:
                    for statement in TABLES.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {SCHEMA}")
        return db

    def _connect(self, stack: ExitStack, path: Path, *, create: bool = False) -> sqlite3.Connection:
        address = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        db = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)
        stack.callback(db.close)
        return db

    def _schema(self, db: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 if there are none; refuse what we cannot use."""
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found > SCHEMA:
            raise InputError(
                f"{self.path} was written by a newer fedac (schema {found}, this one knows "
                f"{SCHEMA}); upgrade fedac, or use another directory"
            )
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise InputError(f"{self.path} {_damaged(state)}")
        if found == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise InputError(f"{self.path} is a database of another program; use another directory")
        return int(found)

    @contextmanager
    def _transaction(self, db: sqlite3.Connection | None = None) -> Iterator[None]:
        db = db or self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            # A full disk makes SQLite roll back by itself.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _read(self, query: str) -> pd.DataFrame:
        import pandas as pd

        with self._explained():
            return pd.read_sql_query(query, self._db)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what SQLite and the system report into what happened and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"{self.path} {_explanation(error)}") from None
        except OSError as error:
            raise InputError(f"{self.path} {_unusable(error.strerror or str(error))}") from None


def _code(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _damaged(how: str) -> str:
    line = " ".join(how.split())
    return (
        f"is damaged ({line}) and is left as it is; rescue its runs with sqlite3's .recover, or "
        "use another directory"
    )


def _unusable(why: str) -> str:
    return f"cannot be opened or written ({why}); use another directory, or ask for the right to"


def _explanation(error: sqlite3.Error) -> str:
    code = _code(error)
    if code == "SQLITE_FULL":
        return "cannot grow, the disk is full; what was finished is kept: free space and go on"
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _damaged(str(error))
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return _unusable(str(error))
    if code.startswith("SQLITE_BUSY"):
        return f"has been locked by another process for {PATIENCE:g} seconds; try again later"
    if code.startswith("SQLITE_IOERR"):
        return f"cannot be read or written ({error}); is the disk full, or gone?"
    return f"cannot be used: {error}"


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Yield where to write, and put it in place of `path` only when it is whole."""
    try:
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise InputError(f"cannot write '{path}': it is a directory")
            yield path  # a pipe or a device: there is nothing to put in place of
            return
        whole = path.resolve()
        part = whole.with_name(f".{whole.name}.{os.getpid()}")
        try:
            yield part
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
