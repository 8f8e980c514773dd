"""The report: a store as one HTML file that needs no network.

`contents` computes what it shows, `page` assembles it from ``page.html``, ``style.css`` and the
scripts in ``js``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedac.errors import InputError
from fedac.experiments.report.contents import page_data
from fedac.experiments.report.page import assemble
from fedac.experiments.seeds import find_spread
from fedac.files import write_atomically
from fedac.link import DEFAULT_LINK, Link

if TYPE_CHECKING:
    from fedac.experiments.store import Store

__all__ = ["render", "write"]


def write(store: Store, path: str | Path, band: str = "range", link: Link = DEFAULT_LINK) -> Path:
    """Write the report of a store to a file."""
    text, path = render(store, band, link), Path(path)
    try:
        write_atomically(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
    return path


def render(store: Store, band: str = "range", link: Link = DEFAULT_LINK) -> str:
    """Return the report of a store as HTML; the same runs give the same text.

    `band` says how seeds are summarized: see `over_seeds`; `link` what a round costs in seconds.
    """
    find_spread(band)
    frame = store.frame()
    if frame.empty:
        raise InputError(f"{store.path} has no runs to report; add some with 'fedac sweep'")
    title = "Accuracy against communication: " + ", ".join(frame["dataset"].unique())
    return assemble(title, page_data(frame, store.traces(), store.info(), band, link))
