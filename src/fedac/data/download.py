"""Downloads that resume where the connection broke."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from fedac.errors import DataError

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 16

# Gets the bytes so far and, if known, the size of the whole file.
OnProgress = Callable[[int, int | None], object]


def download_file(url: str, path: Path, sha256: str | None, on_progress: OnProgress) -> None:
    """Download ``url`` to ``path``, resuming from ``path.part`` if that exists.

    The file appears at ``path`` only once it is complete and its checksum, if one is given, is
    right. If the download fails, the partial file is kept; if the checksum is wrong, it is deleted.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _resume(url, part, on_progress)
        got = file_sha256(part)
        if sha256 in (None, got):
            part.replace(path)
            return
        part.unlink()
    except OSError as error:
        kept = "; the next attempt will resume the partial download" if _size(part) else ""
        raise DataError(
            f"cannot download {url}: {_reason(error)}{kept}. "
            f"To work offline, put the file at {path} or in the folder $FEDAC_DATA"
        ) from None
    raise DataError(f"{url} has changed or was damaged: expected sha256 {sha256}, got {got}")


def _resume(url: str, part: Path, on_progress: OnProgress) -> None:
    """Append the missing bytes to ``part``."""
    import requests

    have = _size(part)
    # Ranges count bytes as sent, so the server must not compress them.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        if have and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range") == f"bytes */{have}":
                return  # it is already complete
            part.unlink()  # too long to be a part of this file
            return _resume(url, part, on_progress)
        response.raise_for_status()
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            have = 0  # a server without support for ranges sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                file.write(chunk)
                on_progress(file.tell(), total)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: OSError) -> str:
    """Summarize an error: the network library's own messages fill a screen."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT_SECONDS} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was lost"
    if isinstance(error, requests.ConnectionError):
        return "no connection to the server"
    return error.strerror or str(error)
