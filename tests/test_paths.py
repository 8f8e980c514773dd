# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes, and which file systems are shared between machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import pytest

from fedac import paths
from fedac.errors import InputError
from fedac.paths import file_system, is_network, require_writable, write_atomically


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, lambda file: file.write(b"all of it"))
    assert path.read_bytes() == b"all of it"
    assert list(path.parent.iterdir()) == [path]

    def fail(file) -> None:
        file.write(b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"all of it"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    link.symlink_to(target)
    require_writable(link)
    for content in (b"once", b"again"):
        write_atomically(link, lambda file, content=content: file.write(content))
        assert target.read_bytes() == content
    assert link.is_symlink()
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"'.*pipe' is not a regular file"):
        require_writable(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"'.*file/a' cannot be written: "):
        require_writable(tmp_path / "file" / "a")


MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:40 / /home rw,relatime shared:1 master:2 - autofs /etc/auto.home rw
41 27 0:41 / /home rw,relatime shared:3 - nfs4 server:/home rw,vers=4.2
42 41 0:42 / /home/ada/fast rw - xfs /dev/nvme0n1 rw
43 27 0:43 / /my\040data rw - fuse.sshfs ada@server:/data rw
44 27 0:44 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw,flock
45 27 0:45 / /fuse rw - fuse.portal portal rw
a line of another kind
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "ext4"),
        ("/tmp/runs", "ext4"),
        ("/home/ada/runs", "nfs4"),
        ("/homes/ada", "ext4"),
        ("/home/ada/fast/runs", "xfs"),
        ("/my data/runs", "fuse.sshfs"),
        ("/scratch", "lustre"),
    ],
)
def test_the_deepest_and_latest_mount_counts(path, expected):
    assert file_system(PurePosixPath(path), MOUNTS) == expected


def test_no_mounts():
    assert file_system(PurePosixPath("/home"), "") == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's paths")
def test_is_network(tmp_path, monkeypatch):
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    monkeypatch.setattr(paths, "MOUNTS", file)
    places = ("/home/ada", "/my data", "/scratch/a/b", "/fuse", "/home/ada/fast", "/srv")
    assert [is_network(Path(path)) for path in places] == [True, True, True, False, False, False]
    (tmp_path / "link").symlink_to("/home/ada")
    assert is_network(tmp_path / "link" / "runs")


def test_a_system_that_does_not_say(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MOUNTS", tmp_path / "gone")
    assert not is_network(tmp_path)
