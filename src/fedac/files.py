"""Atomic file writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedac.errors import InputError


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, writer: str = "", private: bool = False
) -> None:
    """Write to a temporary file in the same folder, then rename it: readers never see half a file.

    Processes that write to one path at a time need a name each, `writer`. The temporary name is
    always the same otherwise, so that a killed process leaves at most one behind. A `private` file
    has mode 0600.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "file"
    >>> write_atomically(path, lambda file: file.write(b"all of it"))
    >>> path.read_bytes(), [p.name for p in path.parent.iterdir()]
    (b'all of it', ['file'])
    """
    _require_replaceable(path)
    path = path.resolve()  # keep symbolic links
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path, writer)
    try:
        if private:  # one that a killed process left behind may have another mode
            temporary.unlink(missing_ok=True)
        mode = 0o600 if private else 0o666
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_writable(path: Path) -> None:
    """Fail early if a file cannot be written.

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
        temporary = _temporary(path.resolve())
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from error


def _require_replaceable(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the path of a file")
    if path.exists() and not path.is_file():  # a device or a pipe
        raise InputError(f"'{path}' is not a regular file")


def _temporary(path: Path, writer: str = "") -> Path:
    return path.with_name(f".{path.name}{writer and '.' + writer}.part")
