"""The cache folder: downloaded data sets, optima and compiled code."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return ``$FEDAC_CACHE`` if set, else the user's cache directory for fedac."""
    chosen = os.environ.get("FEDAC_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedac", appauthor=False))
