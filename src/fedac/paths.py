# SPDX-License-Identifier: Apache-2.0
"""The cache folder, atomic writes, and network file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from fedac.errors import InputError

# Network file systems as Linux names them, without the "fuse." of those in user space.
NETWORK = frozenset({
    "9p", "afs", "beegfs", "blobfuse2", "ceph", "ceph-fuse", "cifs", "coda", "davfs", "gcsfuse",
    "glusterfs", "gpfs", "juicefs", "lustre", "mount-s3", "nfs", "nfs4", "orangefs", "panfs",
    "pvfs2", "rclone", "s3fs", "smb3", "smbfs", "sshfs", "wekafs",
})  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")


def cache_dir() -> Path:
    """Return ``$FEDAC_CACHE`` if set, else the user's cache directory for fedac."""
    chosen = os.environ.get("FEDAC_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedac", appauthor=False))


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, writer: str = "", private: bool = False
) -> None:
    """Write to a temporary file in the same folder and rename it: readers never see half a file.

    Processes that write to the same path at the same time need different names in `writer`. The
    temporary name is otherwise fixed, so that a killed process leaves at most one file behind. A
    `private` file has mode 0600.
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
    """Raise `InputError` early if a file cannot be written."""
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


def is_network(path: Path) -> bool:
    """Return whether a path, which need not exist, is on a network file system.

    Locks and mapped files may fail there. Only Linux provides this information; on other systems
    the result is False.
    """
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return file_system(PurePosixPath(path.resolve()), mounts).removeprefix("fuse.") in NETWORK


def file_system(path: PurePosixPath, mounts: str) -> str:
    """Return the type of an absolute path's file system, given ``/proc/self/mountinfo``."""
    deepest, found = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # Spaces and the like are written as \\040.
        place = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        # Of two file systems mounted at one place, the later one hides the other.
        if path.is_relative_to(place) and len(place.parts) >= deepest:
            deepest, found = len(place.parts), after.split(" ")[0]
    return found
