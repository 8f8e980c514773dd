"""What clients remember between rounds, for the lanes that share a vector."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedac.errors import InputError
from fedac.simulation._fast.records import Kept
from fedac.simulation._fast.simd import aligned

# Clients whose memories are moved at a time when lanes leave.
AT_ONCE = 1024


@dataclass(eq=False)
class ClientMemory:
    """The memories of all clients in some lanes.

    Attributes
    ----------
    indices : list of int
        Which lanes of the problem these are, in the order of the memory's columns.
    kept : Kept
        The memories, and who has one.
    """

    indices: list[int]
    kept: Kept

    @classmethod
    def make(
        cls, indices: list[int], clients: int, shape: tuple[int, int, int], dtype: npt.DTypeLike
    ) -> ClientMemory:
        """Make the memory of lanes; `shape` is their coordinates, vectors and padded lanes.

        Pages of zeros take no space until a client first takes part.
        """
        d, P, V = shape
        return cls(indices, Kept(aligned((clients, d * P * V), dtype), np.zeros(clients, np.bool_)))

    def keep(self, indices: list[int], V: int) -> None:
        """Remove the lanes that have diverged."""
        if indices == self.indices:
            return
        columns = [self.indices.index(index) for index in indices]
        memory = self.kept.memory.reshape(len(self.kept.memory), -1, V)
        for first in range(0, len(memory), AT_ONCE):
            some = memory[first : first + AT_ONCE]
            some[..., : len(columns)] = some[..., columns]
        self.indices = indices


def require_space(sizes: dict[str, int], itemsize: int) -> None:
    """Refuse memories that do not fit into what is free; `sizes` are the factors of their size."""
    needed = float(np.prod([float(size) for size in sizes.values()])) * itemsize
    free = _free_bytes()
    if free is not None and needed > free:
        factors = " x ".join(f"{size:,} {name}" for name, size in sizes.items())
        raise InputError(
            f"what the clients remember takes {needed / 1e6:,.0f} MB ({factors}), but only "
            f"{free / 1e6:,.0f} MB are free; use fewer clients, or fewer step sizes at a time"
        )


def _free_bytes() -> int | None:
    """Return how much memory is free, if the system says so."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    names: Any = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
