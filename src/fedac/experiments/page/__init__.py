"""A page: one HTML file that loads nothing else, for the reports of sweeps and of comparisons.

A report has a folder of its own with ``intro.html``, ``main.html`` and scripts in ``js``; what all
share is here.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedac import __version__
from fedac.errors import InputError
from fedac.paths import write_atomically

# All that a report's own scripts may use.
SHARED = ("helpers", "tables", "theme", "lines", "unpack")


def assemble(
    title: str, data: dict[str, Any], package: str, scripts: Sequence[str], **texts: str
) -> str:
    """Return a page: template, style, scripts, plotly and the data in one text.

    The same data give the same bytes. The content security policy lets the browser run these
    two scripts and no other, and load nothing at all, whatever text the data contain.

    Parameters
    ----------
    package : str
        Whose folder has the report's own files.
    scripts : sequence of str
        Their names, the one that starts the page last.
    **texts : str
        HTML that ``intro.html`` has a place for.
    """
    parts = [_read(__name__, f"js/{name}.js") for name in SHARED]
    script = "\n".join([*parts, *(_read(package, f"js/{name}.js") for name in scripts)])
    plotly, plotly_digest = _plotly()
    policy = (
        f"default-src 'none'; script-src {_digest(script)} {plotly_digest}; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    )
    return Template(_read(__name__, "shell.html")).substitute(
        title=html.escape(title),
        version=__version__,
        policy=policy,
        intro=Template(_read(package, "intro.html")).substitute(texts),
        main=_read(package, "main.html"),
        style=_read(__name__, "style.css"),
        script=script,
        plotly=plotly,
        data=_pack(json.dumps(data, allow_nan=False, separators=(",", ":"))),
    )


def write_page(text: str, path: str | Path) -> Path:
    """Write a page to a file."""
    path = Path(path)
    try:
        write_atomically(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
    return path


def _pack(text: str) -> str:
    """Compress a text into characters that are safe anywhere in HTML, always the same ones."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def _plotly() -> tuple[str, str]:
    """Return the library, packed, and its digest."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    return _pack(library), _digest(library)


def _digest(script: str) -> str:
    """Return a script's hash as a content security policy writes it."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


# --- Numbers and tables as a page stores them.


def rounded(value: float, digits: int = 6) -> float | None:
    """Keep the digits that a reader can use; None for NaN and infinity, which JSON lacks.

    Examples
    --------
    >>> rounded(0.12345678), rounded(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return records as columns, which compress better.

    Examples
    --------
    >>> columns([{"K": 1, "M": 4}, {"K": 2, "M": 4}])
    {'K': [1, 2], 'M': [4, 4]}
    """
    return {name: [record[name] for record in records] for name in records[0]}
