"""Downloads that resume where the connection broke."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedac.errors import DataError

if TYPE_CHECKING:
    import requests

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 16

# Gets the bytes so far and, if known, the size of the whole file.
OnProgress = Callable[[int, int | None], object]


def download_file(url: str, path: Path, sha256: str | None, on_progress: OnProgress) -> None:
    """Download ``url`` to ``path``, resuming from ``path.part`` if that exists.

    Parameters
    ----------
    url : str
        Address of the file.
    path : Path
        Destination; the file appears there only once it is complete and verified.
    sha256 : str or None
        Expected checksum, if known.
    on_progress : callable
        Called after every chunk with the bytes so far and the total, None if unknown.

    Raises
    ------
    DataError
        When the download fails (the partial file is kept) or the checksum is wrong (the file
        is deleted).
    """
    import pooch

    # pooch logs advice for developers, such as to pass a known_hash.
    pooch.get_logger().setLevel(logging.WARNING)
    part = path.with_name(path.name + ".part")
    try:
        pooch.retrieve(
            url,
            known_hash=sha256 and f"sha256:{sha256}",
            fname=path.name,
            path=path.parent,
            downloader=ResumingDownloader(part, on_progress),
        )
    except OSError as error:
        kept = "; the next attempt will resume the partial download" if _size(part) else ""
        raise DataError(
            f"cannot download {url}: {_reason(error)}{kept}. "
            f"To work offline, put the file at {path} or in the folder $FEDAC_DATA"
        ) from None
    except ValueError as error:  # pooch found a wrong checksum and deleted the file
        raise DataError(f"{url}: {error}") from None


class ResumingDownloader:
    """Downloader for pooch that writes to ``part`` and requests only the missing bytes."""

    def __init__(self, part: Path, on_progress: OnProgress) -> None:
        self.part = part
        self.on_progress = on_progress

    def __call__(self, url: str, output_file: str, _pooch: Any) -> None:
        """Download ``url`` and, once complete, move it to ``output_file``."""
        import requests

        have = _size(self.part)
        # Ranges count bytes as sent, so the server must not compress them.
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            if have and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # Our part is either the whole file or longer than it, and then not a part of it.
                if response.headers.get("Content-Range") != f"bytes */{have}":
                    self.part.unlink()
                    return self(url, output_file, _pooch)
            else:
                response.raise_for_status()
                # A server without support for ranges answers 200 and sends the whole file.
                resumes = response.status_code == HTTPStatus.PARTIAL_CONTENT
                self._receive(response, have if resumes else 0)
        self.part.replace(output_file)

    def _receive(self, response: requests.Response, have: int) -> None:
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with self.part.open("ab" if have else "wb") as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                file.write(chunk)
                self.on_progress(file.tell(), total)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Examples
    --------
    >>> import os
    >>> file_sha256(Path(os.devnull))[:8]
    'e3b0c442'
    """
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
