"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedac.errors import InputError


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, then move it there: no reader sees half of one.

    Only one process may write to a path. It always uses the same name beside it, so that a killed
    one leaves no pile of remains.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "file"
    >>> write_whole(path, lambda file: file.write(b"all of it"))
    >>> path.read_bytes(), [p.name for p in path.parent.iterdir()]
    (b'all of it', ['file'])
    """
    _require_replaceable(path)
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def require_writable(path: Path) -> None:
    """Say now what would keep a file from being written later.

    Examples
    --------
    >>> import tempfile
    >>> require_writable(Path(tempfile.mkdtemp()))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedac.errors.InputError: '...' is a folder; give the path of a file
    """
    _require_replaceable(path)
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path.resolve())
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from error


def _require_replaceable(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the path of a file")
    if path.exists() and not path.is_file():  # a device or a pipe, which a file would replace
        raise InputError(f"'{path}' is no file that could be replaced")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _sync_folder(folder: Path) -> None:
    """Make the move itself last through a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # pragma: no cover - Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
