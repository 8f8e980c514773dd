"""Stores on network file systems: several machines must not share one there."""

from __future__ import annotations

import warnings
from pathlib import Path

from fedac.errors import NetworkFileSystemWarning
from fedac.filesystems import is_network


def warn_if_shared(folder: Path) -> None:
    """Warn if a store that is opened for writing is on a network file system."""
    if is_network(folder):
        warnings.warn(
            f"'{folder}' is on a network file system, where SQLite's locks do not hold between "
            "machines: use one store per machine with --shard, and join them with 'fedac merge'",
            NetworkFileSystemWarning,
            stacklevel=3,  # where the store is opened
        )
