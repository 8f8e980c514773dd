"""The SQLite file of a store: its tables, opening it, and errors in one line."""

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
# `spec` is the run as JSON (`RunSpec.stored`), so a new option needs no new column. In a trace,
# NULL means that there is no test set.
TABLES = """
CREATE TABLE origins (
    id INTEGER PRIMARY KEY, version TEXT NOT NULL, machine TEXT NOT NULL, UNIQUE (version, machine)
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, spec TEXT NOT NULL,
    status TEXT NOT NULL, best_loss REAL NOT NULL, final_loss REAL NOT NULL, f_star REAL NOT NULL,
    bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, minibatch INTEGER NOT NULL,
    n_samples INTEGER NOT NULL, n_features INTEGER NOT NULL, seconds REAL NOT NULL,
    created TEXT NOT NULL, origin INTEGER NOT NULL REFERENCES origins
);
CREATE TABLE traces (
    run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL, loss REAL NOT NULL,
    test_loss REAL, test_accuracy REAL, PRIMARY KEY (run, step)
) WITHOUT ROWID
"""
# SQLite's user_version: a store with other tables has another number.
LAYOUT = 10


def open_to_read(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Open a database without changing it; `stack` closes it."""
    db, _ = _open_unchanged(path, stack)
    db.execute("PRAGMA query_only = ON")
    return db


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
