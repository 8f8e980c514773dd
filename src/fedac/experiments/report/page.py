"""Assemble the report: one file that loads nothing else."""

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

# In the order in which they appear on the page; `start` needs all the others.
SCRIPTS = (
    "helpers", "tables", "headline", "view", "curves", "layout", "figure", "comparison", "start",
)  # fmt: skip
PUBLISHED = (
    "Hollow markers are the numbers that <cite>Yuan &amp; Ma, Federated Accelerated Stochastic "
    "Gradient Descent (NeurIPS 2020)</cite> published for their own runs."
)


def assemble(title: str, data: dict[str, Any]) -> str:
    """Return the page: template, style, scripts, plotly and the data in one text.

    The same data give the same bytes. The content security policy lets the browser run these
    two scripts and no other, and load nothing at all, whatever text the store contains.
    """
    script = "\n".join(_read(f"js/{name}.js") for name in SCRIPTS)
    plotly, plotly_digest = _plotly()
    compared = any(value is not None for value in data["cells"]["published"])
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
        data=_pack(json.dumps(data, allow_nan=False, separators=(",", ":"))),
    )


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


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
