"""How kernels are compiled: without the interpreter's lock, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use; later processes read it from disk.

    Numba keeps it beside the source or, where that is read-only, in the user's cache; where
    neither can be written we compile anew in every process rather than fail.
    """
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return njit(nogil=True, error_model="numpy")(function)


def touch_if_older(source: str, dependencies: Iterable[str]) -> None:
    """Make `source` as new as what it is compiled with.

    Numba dates its cache by the kernel's own file only; an edited dependency would otherwise
    leave yesterday's code in use.
    """
    newest = max(Path(file).stat().st_mtime for file in dependencies)
    if Path(source).stat().st_mtime < newest:
        with suppress(OSError):  # a read-only install is not being edited
            Path(source).touch()
