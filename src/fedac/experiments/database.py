"""The SQLite file of a store: opening, migrating, transactions, and errors in plain words."""

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
)
SCHEMA = len(MIGRATIONS)


def open_to_read(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Open a database without changing it; `stack` closes it."""
    try:
        db = _connect(path, stack, mode="rw")
        found = _schema(db, path)
    except sqlite3.OperationalError as error:
        if not _code(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        # WAL mode needs files beside the database even for reading. Where the folder cannot be
        # written, read a copy.
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for name in (path.name, f"{path.name}-wal"):
            if path.with_name(name).exists():
                shutil.copyfile(path.with_name(name), folder / name)
        db = _connect(folder / path.name, stack, mode="rw")
        found = _schema(db, path)
    if found == 0:
        raise InputError(f"{path} has no runs yet")
    if found < SCHEMA:
        migrated = sqlite3.connect(":memory:", isolation_level=None)
        stack.callback(migrated.close)
        db.backup(migrated)
        _migrate(migrated, found)
        db = migrated
    db.execute("PRAGMA query_only = ON")
    return db


def open_to_write(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Open a database, create it or migrate it; only one process may do this at a time."""
    db = _connect(path, stack, mode="rwc")
    found = _schema(db, path)
    db.execute("PRAGMA journal_mode = WAL")
    # A write, even an empty one, fails now instead of after the first group.
    with transaction(db):
        _migrate(db, found)
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all of the block, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite itself rolls back on a full disk
            db.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into one line: what happened and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"{path} {_explanation(error)}") from None
    except OSError as error:
        raise InputError(f"{path} {_unusable(error.strerror or str(error))}") from None


def _connect(path: Path, stack: ExitStack, *, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    stack.callback(db.close)
    return db


def _schema(db: sqlite3.Connection, path: Path) -> int:
    """Return the version of the tables, 0 if there are none; refuse what we cannot use."""
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > SCHEMA:
        raise InputError(
            f"{path} was written by a newer fedac (schema {found}, this one knows {SCHEMA}); "
            "upgrade fedac, or use another directory"
        )
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise InputError(f"{path} {_damaged(state)}")
    if found == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise InputError(f"{path} is the database of another program; use another directory")
    return int(found)


def _migrate(db: sqlite3.Connection, found: int) -> None:
    if found < SCHEMA:
        for statement in ";".join(MIGRATIONS[found:]).split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def _code(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _damaged(how: str) -> str:
    return (
        f"is damaged ({' '.join(how.split())}) and was left unchanged; recover its runs with "
        "sqlite3's .recover, or use another directory"
    )


def _unusable(why: str) -> str:
    return f"cannot be opened or written ({why}); check its permissions, or use another directory"


def _explanation(error: sqlite3.Error) -> str:
    code = _code(error)
    if code == "SQLITE_FULL":
        return "cannot grow: the disk is full; finished runs are kept: free some space and continue"
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _damaged(str(error))
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return _unusable(str(error))
    if code.startswith("SQLITE_BUSY"):
        return f"has been locked by another process for {BUSY_SECONDS:g} seconds; try again later"
    if code.startswith("SQLITE_IOERR"):
        return f"cannot be read or written ({error}); is the disk full or disconnected?"
    return f"cannot be used: {error}"
