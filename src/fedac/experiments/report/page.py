"""How the report is put together: one file that asks nobody for anything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from fedac import __version__

PUBLISHED = (
    "Hollow markers are the numbers that <cite>Yuan &amp; Ma, Federated Accelerated Stochastic "
    "Gradient Descent (NeurIPS 2020)</cite> published for their own runs."
)


def assemble(title: str, contents: dict[str, Any]) -> str:
    """Return the page: template, style, script, plotly and the contents in one text.

    The same contents give the same bytes. The content security policy lets the browser run these
    two scripts and no other, and load nothing at all, whatever text the store holds.
    """
    script = _read("page.js")
    plotly, plotly_digest = _plotly()
    compared = any(value is not None for value in contents["cells"]["published"])
    policy = (
        f"default-src 'none'; script-src {_digest(script)} {plotly_digest}; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    )
    return Template(_read("page.html")).substitute(
        title=html.escape(title),
        version=__version__,
        policy=policy,
        published=PUBLISHED if compared else "",
        style=_read("style.css"),
        script=script,
        plotly=plotly,
        data=pack(json.dumps(contents, allow_nan=False, separators=(",", ":"))),
    )


def pack(text: str) -> str:
    """Compress a text into letters that are safe anywhere in HTML.

    Examples
    --------
    >>> unpack(pack("</script>"))
    '</script>'
    """
    # No time stamp: the same text gives the same letters.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def unpack(packed: str) -> str:
    """Undo `pack`, as the page does in the browser."""
    return gzip.decompress(base64.b64decode(packed)).decode()


@cache
def _plotly() -> tuple[str, str]:
    """Return the library, packed, and its digest."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    return pack(library), _digest(library)


def _digest(script: str) -> str:
    """Name a script in a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
