"""The report: a store as one HTML file that needs no network.

`contents` computes what it shows, `fedac.experiments.page` assembles it from ``intro.html``,
``main.html`` and the scripts in ``js``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedac.errors import InputError
from fedac.experiments.page import assemble, write_page
from fedac.experiments.report.contents import page_data
from fedac.experiments.summary import find_spread
from fedac.federation.link import DEFAULT_LINK, Link

if TYPE_CHECKING:
    from fedac.experiments.store import Store

__all__ = ["render", "write"]

# In the order in which they appear on the page; `start` needs all the others.
SCRIPTS = ("headline", "view", "curves", "layout", "figure", "comparison", "start")
PUBLISHED = (
    "Hollow markers are the numbers that <cite>Yuan &amp; Ma, Federated Accelerated Stochastic "
    "Gradient Descent (NeurIPS 2020)</cite> published for their own runs."
)


def write(store: Store, path: str | Path, band: str = "range", link: Link = DEFAULT_LINK) -> Path:
    """Write the report of a store to a file."""
    return write_page(render(store, band, link), path)


def render(store: Store, band: str = "range", link: Link = DEFAULT_LINK) -> str:
    """Return the report of a store as HTML; the same runs give the same text.

    `band` says how seeds are summarized: see `over_seeds`; `link` what a round costs in seconds.
    """
    find_spread(band)
    frame = store.frame()
    if frame.empty:
        raise InputError(f"{store.path} has no runs to report; add some with 'fedac sweep'")
    title = "Suboptimality against communication: " + ", ".join(frame["dataset"].unique())
    data = page_data(frame, store.traces(), store.info(), band, link)
    compared = any(value is not None for value in data["cells"]["published"])
    return assemble(title, data, __name__, SCRIPTS, published=PUBLISHED if compared else "")
