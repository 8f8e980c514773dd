"""The report: a store as one HTML file that needs no network.

`contents` says what is in it, `page` puts it together, ``page.html``, ``style.css`` and
``page.js`` are what the browser gets.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedac.errors import InputError
from fedac.experiments.report.contents import contents
from fedac.experiments.report.page import assemble

if TYPE_CHECKING:
    from fedac.experiments.store import Store

__all__ = ["render", "write"]


def write(store: Store, path: str | Path) -> Path:
    """Write the report of a store to a file.

    Raises
    ------
    InputError
        When the store has no runs to show, or the file cannot be written.
    """
    text, path = render(store), Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
    return path


def render(store: Store) -> str:
    """Return the report of a store as HTML; the same runs give the same text."""
    frame = store.frame()
    if frame["best_suboptimality"].notna().sum() == 0:
        raise InputError(f"{store.path} holds no runs to report; 'fedac sweep' adds some")
    title = "Accuracy against communication: " + ", ".join(frame["dataset"].unique())
    return assemble(title, contents(frame, store.traces(), store.info()))
