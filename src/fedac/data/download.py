"""Download a file so that a cut connection costs only what is still missing."""

from __future__ import annotations

import hashlib
import logging
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedac.errors import DataError

if TYPE_CHECKING:
    import requests

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 16


def download(url: str, path: Path, sha256: str | None) -> None:
    """Download ``url`` to ``path``, going on from ``path.part`` if that exists.

    Parameters
    ----------
    url : str
        Where the file is.
    path : Path
        Where it goes; nothing is put there before it is whole and verified.
    sha256 : str or None
        Its checksum, if known.

    Raises
    ------
    DataError
        When the download fails, in which case the partial file is kept, or when the
        checksum is wrong, in which case it is not.
    """
    import pooch

    # Its notices tell the reader to pass a known_hash to pooch: not our reader's business.
    pooch.get_logger().setLevel(logging.WARNING)
    part = path.with_name(path.name + ".part")
    try:
        pooch.retrieve(
            url,
            known_hash=sha256 and f"sha256:{sha256}",
            fname=path.name,
            path=path.parent,
            downloader=ResumingDownloader(part),
        )
    except OSError as error:
        kept = "; the partial download is kept and will be continued" if _size(part) else ""
        raise DataError(
            f"cannot download {url}: {_reason(error)}{kept}. "
            f"To do without: put the file at {path} or in the folder $FEDAC_DATA"
        ) from None
    except ValueError as error:  # pooch compared the checksums, and removed the file
        raise DataError(f"{url}: {error}") from None


class ResumingDownloader:
    """Downloader for pooch that fills ``part`` and asks only for what it lacks."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __call__(self, url: str, output_file: str, _pooch: Any) -> None:
        """Download ``url`` and move it, once whole, to ``output_file``."""
        import requests

        have = _size(self.part)
        # Ranges count bytes of the file as sent, so it must not be compressed on the way.
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            if have and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # Nothing lies beyond what we have: either that is all of it, or it is
                # longer than the file and so cannot be a part of it.
                if response.headers.get("Content-Range") != f"bytes */{have}":
                    self.part.unlink()
                    return self(url, output_file, _pooch)
            else:
                response.raise_for_status()
                # A server without ranges answers 200 and sends everything again.
                resumes = response.status_code == HTTPStatus.PARTIAL_CONTENT
                self._receive(response, have if resumes else 0)
        self.part.replace(output_file)

    def _receive(self, response: requests.Response, have: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = Console(stderr=True)
        columns = (
            TextColumn(self.part.stem),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with (
            self.part.open("ab" if have else "wb") as file,
            Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ):
            task = progress.add_task("download", total=total, completed=have)
            for chunk in response.iter_content(CHUNK_BYTES):
                file.write(chunk)
                progress.advance(task, len(chunk))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def file_sha256(path: Path) -> str:
    """Give the SHA-256 of a file, in hexadecimal.

    Examples
    --------
    >>> import os
    >>> file_sha256(Path(os.devnull))[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: OSError) -> str:
    """Put the cause in a few words: the network library's own messages fill a screen."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT_SECONDS} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, requests.ConnectionError):
        return "no connection to the server"
    return error.strerror or str(error)
