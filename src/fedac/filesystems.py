"""Which file systems are shared between machines: locks and mapped files may fail there."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

# The types that Linux lists, without the "fuse." of those that run in user space.
NETWORK = frozenset({
    "9p", "afs", "beegfs", "blobfuse2", "ceph", "ceph-fuse", "cifs", "coda", "davfs", "gcsfuse",
    "glusterfs", "gpfs", "juicefs", "lustre", "mount-s3", "nfs", "nfs4", "orangefs", "panfs",
    "pvfs2", "rclone", "s3fs", "smb3", "smbfs", "sshfs", "wekafs",
})  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")


def is_network(path: Path) -> bool:
    """Return whether a path, which need not exist, is on a network file system.

    Where the system does not say, as on other systems than Linux, the answer is no.
    """
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return file_system(PurePosixPath(path.resolve()), mounts).removeprefix("fuse.") in NETWORK


def file_system(path: PurePosixPath, mounts: str) -> str:
    """Return the type of file system that an absolute path is on.

    `mounts` is the text of Linux's ``/proc/self/mountinfo``.

    Examples
    --------
    >>> mounts = '''
    ... 27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
    ... 41 27 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
    ... '''
    >>> file_system(PurePosixPath("/home/ada"), mounts)
    'nfs4'
    """
    deepest, found = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # Spaces and the like are written as \040.
        place = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        # Of two that are mounted at one place, the later one hides the other.
        if path.is_relative_to(place) and len(place.parts) >= deepest:
            deepest, found = len(place.parts), after.split(" ")[0]
    return found
