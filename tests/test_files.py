"""Atomic file writes."""

import os
from pathlib import Path

import pytest

from fedac.errors import InputError
from fedac.paths import require_writable, write_atomically


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
