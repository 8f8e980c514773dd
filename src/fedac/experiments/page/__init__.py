# SPDX-License-Identifier: Apache-2.0
"""HTML pages in one file that loads nothing else, for the reports of sweeps and comparisons.

A report has its own folder with ``intro.html``, ``main.html`` and scripts in ``js``. Template,
style and shared scripts are here.
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

# The shared scripts; a report's own scripts follow them.
SHARED = ("helpers", "tables", "theme", "lines", "unpack")


def assemble(
    title: str, data: dict[str, Any], package: str, scripts: Sequence[str], **texts: str
) -> str:
    """Return a page: template, style, scripts, plotly and the data in one text.

    `package` has the report's own files, `scripts` names its scripts (the one that starts the page
    last), and `texts` fill the placeholders of ``intro.html`` and ``main.html``.

    The same data gives the same bytes. The content security policy lets the browser run these two
    scripts and nothing else, and load nothing at all, even if the data contains HTML.
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
        main=Template(_read(package, "main.html")).substitute(texts),
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


def rounded(value: float, digits: int = 6) -> float | None:
    """Round to significant digits; NaN and infinity become None, because JSON has neither."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, which compress better."""
    return {name: [row[name] for row in rows] for name in rows[0]}


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
    """Return a script's hash in the form of a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
