"""The SQLite file of a store: opening, migrating, and errors in one line."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedac.errors import InputError

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

# The statements that lead from each schema to the next, beginning with an empty file.
MIGRATIONS = (
    """
    CREATE TABLE origins (
        id INTEGER PRIMARY KEY, version TEXT NOT NULL, machine TEXT NOT NULL,
        UNIQUE (version, machine)
    );
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
        dataset TEXT NOT NULL, data_hash TEXT NOT NULL, l2 REAL NOT NULL, algorithm TEXT NOT NULL,
        M INTEGER NOT NULL, K INTEGER NOT NULL, T INTEGER NOT NULL, eta REAL NOT NULL,
        seed INTEGER NOT NULL, record_every INTEGER NOT NULL, precision TEXT NOT NULL,
        status TEXT NOT NULL, best_loss REAL NOT NULL, final_loss REAL NOT NULL,
        f_star REAL NOT NULL, megabytes_per_worker REAL NOT NULL, n_samples INTEGER NOT NULL,
        n_features INTEGER NOT NULL, seconds REAL NOT NULL, created TEXT NOT NULL,
        origin INTEGER NOT NULL REFERENCES origins
    );
    CREATE TABLE traces (
        run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, loss REAL NOT NULL,
        PRIMARY KEY (run, step)
    ) WITHOUT ROWID
    """,
    # NULL in mu stands for l2; an empty hash for what schema 1 did not store.
    """
    ALTER TABLE runs ADD COLUMN mu REAL;
    ALTER TABLE runs ADD COLUMN objective TEXT NOT NULL DEFAULT 'logistic';
    ALTER TABLE runs ADD COLUMN intercept INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN rows_hash TEXT NOT NULL DEFAULT ''
    """,
    # An empty split stands for workers that draw from all rows. NULL in a trace: no test set.
    """
    ALTER TABLE runs ADD COLUMN split TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN split_seed INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN split_hash TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN participation REAL NOT NULL DEFAULT 1;
    ALTER TABLE runs ADD COLUMN batch TEXT NOT NULL DEFAULT '1';
    ALTER TABLE runs ADD COLUMN weighting TEXT NOT NULL DEFAULT 'examples';
    ALTER TABLE runs ADD COLUMN decay TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN test TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN test_hash TEXT NOT NULL DEFAULT '';
    ALTER TABLE traces ADD COLUMN test_loss REAL;
    ALTER TABLE traces ADD COLUMN test_accuracy REAL
    """,
    "ALTER TABLE runs ADD COLUMN wire TEXT NOT NULL DEFAULT 'float32'",
)
SCHEMA = len(MIGRATIONS)


def open_to_read(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Open a database without changing it; `stack` closes it."""
    db, found, _ = _open_unchanged(path, stack)
    if found < SCHEMA:
        db = _migrated_copy(db, found, ":memory:", stack)
    db.execute("PRAGMA query_only = ON")
    return db


def attach(db: sqlite3.Connection, path: Path, stack: ExitStack) -> None:
    """Let `db` read another database, as `source`, without changing it; `stack` detaches it."""
    # It stays open: a connection that cannot write relies on the files of one that can.
    source, found, file = _open_unchanged(path, stack)
    if found < SCHEMA:
        file = Path(stack.enter_context(TemporaryDirectory())) / path.name
        _migrated_copy(source, found, file, stack)
    db.execute("ATTACH ? AS source", (f"{file.absolute().as_uri()}?mode=ro",))
    stack.callback(db.execute, "DETACH source")


def open_to_write(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Open a database, create it or migrate it; only one process may do this at a time."""
    db, found = _connect(path, path, stack, mode="rwc")
    db.execute("PRAGMA journal_mode = WAL")
    # A write, even an empty one, fails now instead of after the first group.
    with db:
        db.execute("BEGIN IMMEDIATE")
        _migrate(db, found)
    return db


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into one line: the file, what is wrong, and why."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        code = getattr(error, "sqlite_errorname", "OSError")
        found = (text for kind, text in PROBLEMS.items() if code.startswith(kind))
        raise InputError(f"{path} {next(found, 'cannot be used')} ({error})") from None


def _open_unchanged(path: Path, stack: ExitStack) -> tuple[sqlite3.Connection, int, Path]:
    """Open a database that has tables; return it with its schema, and its file or a copy of it."""
    try:
        db, found = _connect(path, path, stack)
        file = path
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        # WAL mode needs files beside the database even for reading. Where the folder cannot be
        # written, read a copy.
        file = Path(stack.enter_context(TemporaryDirectory())) / path.name
        for name in (path.name, f"{path.name}-wal"):
            if path.with_name(name).exists():
                shutil.copyfile(path.with_name(name), file.with_name(name))
        db, found = _connect(path, file, stack)
    if found == 0:
        raise InputError(f"{path} has no runs yet")
    return db, found, file


def _connect(
    path: Path, file: Path, stack: ExitStack, mode: str = "rw"
) -> tuple[sqlite3.Connection, int]:
    """Open a database, or a copy of it in `file`; return it with its schema, 0 if it is empty."""
    address = f"{file.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    stack.callback(db.close)
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > SCHEMA:
        raise InputError(
            f"{path} was written by a newer fedac (schema {found}, this one knows {SCHEMA}); "
            "upgrade fedac, or use another directory"
        )
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise InputError(f"{path} {DAMAGED} ({' '.join(state.split())})")
    if found == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise InputError(f"{path} is the database of another program; use another directory")
    return db, found


def _migrated_copy(
    db: sqlite3.Connection, found: int, target: str | Path, stack: ExitStack
) -> sqlite3.Connection:
    copy = sqlite3.connect(target, isolation_level=None)
    stack.callback(copy.close)
    db.backup(copy)
    _migrate(copy, found)
    return copy


def _migrate(db: sqlite3.Connection, found: int) -> None:
    if found < SCHEMA:
        for statement in ";".join(MIGRATIONS[found:]).split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
